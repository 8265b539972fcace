"""Layers of the laboratory in plain numpy, each with a backward pass written by hand, and the chains made of them.

No automatic differentiation, no JAX: what a strategy frees is really gone, and a gradient is right only if everything that the
backward pass reads was kept or computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from remat_lab.errors import InvalidArgument
from solvers.graph import Graph, Node

Array = NDArray[np.float64]
_EPSILON = 1e-5  # added to variances


class Layer:
    """A function of one array. Subclasses hold their parameters as named arrays.

    Attributes:
        name: for people.
        params: the arrays that the backward pass returns gradients of.
    """

    name = "layer"

    def __init__(self, **params: Array):
        self.params: dict[str, Array] = params

    def forward(self, x: Array) -> Array:
        """The layer's output."""
        raise NotImplementedError

    def backward(self, x: Array, y: Array, grad: Array) -> tuple[Array, dict[str, Array]]:
        """Gradients with respect to input and parameters, from input, output and the output's gradient."""
        raise NotImplementedError

    def flops(self, x: Array, y: Array) -> float:
        """Floating-point operations of the forward pass."""
        return float(y.size)


class Dense(Layer):
    """tanh(x W): rows to rows."""

    name = "dense"

    def forward(self, x: Array) -> Array:
        """[batch, m] to [batch, n]."""
        return np.tanh(x @ self.params["W"])

    def backward(self, x: Array, y: Array, grad: Array) -> tuple[Array, dict[str, Array]]:
        """tanh' = 1 - tanh²."""
        inner = grad * (1 - y * y)
        return inner @ self.params["W"].T, {"W": x.T @ inner}

    def flops(self, x: Array, y: Array) -> float:
        """Two for each product."""
        return 2.0 * x.shape[0] * self.params["W"].size


class Recurrence(Layer):
    """One step of a recurrent network: tanh(h W + u V), with the step's own input u."""

    name = "step"

    def __init__(self, u: Array, **params: Array):
        super().__init__(**params)
        self.u = u

    def forward(self, x: Array) -> Array:
        """The next state."""
        return np.tanh(x @ self.params["W"] + self.u @ self.params["V"])

    def backward(self, x: Array, y: Array, grad: Array) -> tuple[Array, dict[str, Array]]:
        """This step's share of the gradients of the shared parameters."""
        inner = grad * (1 - y * y)
        return inner @ self.params["W"].T, {"W": x.T @ inner, "V": self.u.T @ inner}

    def flops(self, x: Array, y: Array) -> float:
        """Two for each product."""
        return 2.0 * x.shape[0] * (self.params["W"].size + self.params["V"].size)


class Convolution(Layer):
    """A convolution of width 3 over [batch, channels, length], zeros beyond the ends."""

    name = "conv"

    def forward(self, x: Array) -> Array:
        """[batch, m, length] to [batch, n, length]."""
        return np.einsum("bclk,nck->bnl", self._windows(x), self.params["K"], optimize=True)

    def backward(self, x: Array, y: Array, grad: Array) -> tuple[Array, dict[str, Array]]:
        """The input's gradient is a convolution with the kernel turned round."""
        turned = self.params["K"][:, :, ::-1]
        return np.einsum("bnlk,nck->bcl", self._windows(grad), turned, optimize=True), {
            "K": np.einsum("bclk,bnl->nck", self._windows(x), grad, optimize=True)
        }

    def flops(self, x: Array, y: Array) -> float:
        """Two for each product."""
        return 2.0 * x.shape[0] * x.shape[2] * self.params["K"].size

    @staticmethod
    def _windows(x: Array) -> Array:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
        return np.lib.stride_tricks.sliding_window_view(padded, 3, axis=2)


class BatchNorm(Layer):
    """Normalises each channel over batch and length; scale and shift are learnt."""

    name = "bn"

    def forward(self, x: Array) -> Array:
        """The same shape."""
        return self._normal(x)[0] * self.params["scale"][:, None] + self.params["shift"][:, None]

    def backward(self, x: Array, y: Array, grad: Array) -> tuple[Array, dict[str, Array]]:
        """Statistics are computed again from the input."""
        normal, deviation = self._normal(x)
        scaled = grad * self.params["scale"][:, None]
        centred = scaled - scaled.mean((0, 2), keepdims=True) - normal * (scaled * normal).mean((0, 2), keepdims=True)
        return centred / deviation, {"scale": (grad * normal).sum((0, 2)), "shift": grad.sum((0, 2))}

    def flops(self, x: Array, y: Array) -> float:
        """Two passes for the statistics and one to normalise."""
        return 6.0 * y.size

    @staticmethod
    def _normal(x: Array) -> tuple[Array, Array]:
        deviation = np.sqrt(x.var((0, 2), keepdims=True) + _EPSILON)
        return (x - x.mean((0, 2), keepdims=True)) / deviation, deviation


class Relu(Layer):
    """max(x, 0)."""

    name = "relu"

    def forward(self, x: Array) -> Array:
        """The same shape."""
        return np.maximum(x, 0)

    def backward(self, x: Array, y: Array, grad: Array) -> tuple[Array, dict[str, Array]]:
        """Where the output is positive."""
        return grad * (y > 0), {}


@dataclass(frozen=True)
class Chain:
    """Layers one after the other; the loss is half the squared norm of the last output, so its gradient is that output.

    Attributes:
        profile: the name of its kind.
        layers: in order.
        x: the input.
        graph: forward step i is node i; backward steps follow, last layer first, with the gradients of parameters as outputs.
    """

    profile: str
    layers: tuple[Layer, ...]
    x: Array
    graph: Graph = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", self._graph())

    def _graph(self) -> Graph:
        n, value, nodes = len(self.layers), self.x, list[Node]()
        below: list[int] = []
        costs: list[float] = []
        for i, layer in enumerate(self.layers):
            out = layer.forward(value)
            costs.append(layer.flops(value, out))
            below.append(value.nbytes)
            nodes.append(Node(f"{layer.name}{i}", costs[-1], out.nbytes, (i - 1,) if i else ()))
            value = out
        above: tuple[int, ...] = ()
        outputs: list[int] = []
        for i in reversed(range(n)):
            lead = len(nodes)
            reads = (*((i - 1,) if i else ()), i, *above)
            nodes.append(Node(f"grad {nodes[i].name}", 2 * costs[i], below[i], reads, backward=True, external=not i))
            above = (lead,)
            for name, param in self.layers[i].params.items():
                outputs.append(len(nodes))
                nodes.append(Node(f"grad {name}{i}", 0, param.nbytes, part_of=lead, backward=True, external=True))
        return Graph(tuple(nodes), (*outputs, *above))

    def reference(self) -> list[Array]:
        """Gradients of all parameters, last layer first, and of the input, by a plain loop that keeps everything."""
        values = [self.x]
        for layer in self.layers:
            values.append(layer.forward(values[-1]))
        grad, found = values[-1], list[Array]()
        for i in reversed(range(len(self.layers))):
            grad, of_params = self.layers[i].backward(values[i], values[i + 1], grad)
            found.extend(of_params.values())
        return [*found, grad]


def _matrix(rng: np.random.Generator, m: int, n: int) -> Array:
    return rng.standard_normal((m, n)) / np.sqrt(m)


def _uniform(n: int, rng: np.random.Generator) -> Chain:
    return Chain("uniform", tuple(Dense(W=_matrix(rng, 32, 32)) for _ in range(n)), rng.standard_normal((64, 32)))


def _heterogeneous(n: int, rng: np.random.Generator) -> Chain:
    widths = [32, *(int(w) for w in rng.choice((8, 16, 32, 64, 128), n))]
    layers = tuple(Dense(W=_matrix(rng, a, b)) for a, b in pairwise(widths))
    return Chain("heterogeneous", layers, rng.standard_normal((64, 32)))


def _conv_bn_relu(n: int, rng: np.random.Generator) -> Chain:
    layers: list[Layer] = []
    for i in range(n):
        if i % 3 == 0:
            layers.append(Convolution(K=rng.standard_normal((8, 8, 3)) / np.sqrt(24)))
        else:
            layers.append(BatchNorm(scale=np.exp(0.1 * rng.standard_normal(8)), shift=np.zeros(8)) if i % 3 == 1 else Relu())
    return Chain("conv-bn-relu", tuple(layers), rng.standard_normal((8, 8, 32)))


def _recurrent(n: int, rng: np.random.Generator) -> Chain:
    shared = {"W": _matrix(rng, 32, 32), "V": _matrix(rng, 16, 32)}
    steps = tuple(Recurrence(rng.standard_normal((64, 16)), **shared) for _ in range(n))
    return Chain("recurrent", steps, rng.standard_normal((64, 32)))


PROFILES: Mapping[str, Callable[[int, np.random.Generator], Chain]] = {
    "uniform": _uniform,
    "heterogeneous": _heterogeneous,
    "conv-bn-relu": _conv_bn_relu,
    "recurrent": _recurrent,
}


def make_chain(profile: str, layers: int = 24, seed: int = 0) -> Chain:
    """A chain of a profile; equal seeds give equal chains.

    Raises:
        InvalidArgument: for an unknown profile or fewer than two layers.
    """
    if profile not in PROFILES:
        raise InvalidArgument(f"there is no profile {profile!r}: choose one of {', '.join(PROFILES)}")
    if layers < 2:
        raise InvalidArgument(f"layers={layers}: a chain to divide needs at least 2")
    return PROFILES[profile](layers, np.random.default_rng(seed))
