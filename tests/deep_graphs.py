"""Deep networks as graphs, without tracing any: what planners of deep networks are tested on."""

from __future__ import annotations

from solvers.graph import Graph, Node


def residual_network(blocks: int, *, wide: int = 400, narrow: int = 100, skips: bool = False) -> Graph:
    """Blocks of two narrow values between wide sums, and the backward pass.

    Args:
        blocks: how many.
        wide: bytes of a sum.
        narrow: bytes of a value within a block.
        skips: whether the sums of the first half are also read by the second half, innermost first, as in a U-Net.
    """
    nodes = [Node("stem", 10, wide)]
    inside: list[tuple[int, ...]] = []

    def add(name: str, cost: float, size: int, *deps: int, **more: bool) -> int:
        nodes.append(Node(name, cost, size, deps, **more))
        return len(nodes) - 1

    x = 0
    sums = [0]
    for k in range(blocks):
        far = (sums[blocks - 1 - k],) if skips and k >= (blocks + 1) // 2 else ()
        a = add(f"a{k}", 40, narrow, x, *far)
        b = add(f"b{k}", 60, narrow, a)
        c = add(f"c{k}", 40, wide, b)
        x_next = add(f"sum{k}", 4, wide, c, x)
        inside.append((x, a, b, c, *far))
        x = x_next
        sums.append(x)
    g = add("loss", 5, 4, x)
    g = add("gradient", 5, wide, x, g, backward=True)
    for k in reversed(range(blocks)):
        x, a, b, c, *far = inside[k]
        gc = add(f"gc{k}", 80, wide, g, c, backward=True)
        gb = add(f"gb{k}", 80, narrow, gc, b, backward=True)
        ga = add(f"ga{k}", 120, narrow, gb, a, backward=True)
        add(f"weights{k}", 40, narrow, ga, x, *far, backward=True, external=True)
        g = add(f"g{k}", 44, wide, ga, g, backward=True)
    add("first", 10, narrow, g, 0, backward=True, external=True)
    outputs = tuple(v for v, node in enumerate(nodes) if node.external)
    return Graph(tuple(nodes), outputs)


def dense_network(layers: int, *, size: int = 100) -> Graph:
    """Layers of which each reads the results of all earlier ones, as in a DenseNet, and the backward pass: no narrow place.

    Args:
        layers: how many.
        size: bytes of a result.
    """
    nodes = [Node("stem", 10, size), *(Node(f"layer{k}", 30 + 10 * k, size, tuple(range(k))) for k in range(1, layers + 1))]
    features = range(layers + 1)
    nodes.append(Node("loss", 5, 4, tuple(features)))
    nodes.append(Node("gradient", 5, size * len(features), (len(nodes) - 1, *features), backward=True))
    outputs: list[int] = []
    for k in reversed(features):
        g = len(nodes) - 1  # the gradient of all results up to this one
        outputs.append(len(nodes))
        nodes.append(Node(f"weights{k}", 30 + 10 * k, size, (g, *range(max(1, k))), backward=True, external=True))
        if k:
            nodes.append(Node(f"g{k}", 60 + 20 * k, size * k, (g, k), backward=True))
    return Graph(tuple(nodes), tuple(outputs))
