"""Tiny named graphs with peaks and optima worked out by hand, shared by all tests of solvers."""

from __future__ import annotations

from dataclasses import dataclass, field

from solvers.graph import Graph, Node, chain, training_chain


@dataclass(frozen=True)
class Case:
    """A graph and what is known about it.

    Attributes:
        name: of the case.
        graph: the graph.
        live: bytes live during each step when everything is kept, in the given order.
        smallest: smallest budget that any schedule with first computations in the given order can meet.
        optima: budget -> least cost for that order, with any number of copies.
    """

    name: str
    graph: Graph
    live: tuple[int, ...]
    smallest: int
    optima: dict[int, float] = field(default_factory=dict[int, float])

    @property
    def peak(self) -> int:
        """Peak when everything is kept."""
        return max(self.live)


CASES = (
    # a -> b -> c: at each step the input and the output are live.
    Case("chain", chain([1, 2, 3], [4, 5, 6]), (4, 9, 11), 11, {11: 6}),
    # a is read by b and c, which d joins. During d all but a are live.
    Case(
        "diamond",
        Graph(
            (Node("a", 1, 3), Node("b", 2, 4, (0,)), Node("c", 3, 5, (0,)), Node("d", 4, 1, (1, 2))),
            (3,),
        ),
        (3, 7, 12, 10),
        12,
        {12: 10},
    ),
    # a skips over b, c, d to e. Dropping a after b and computing it again after d saves it during c and d: the
    # peak falls from 10 + 2 + 2 to 10 + 2, for the cost of a.
    Case(
        "skip",
        Graph(
            (
                Node("a", 7, 10),
                Node("b", 1, 2, (0,)),
                Node("c", 1, 2, (1,)),
                Node("d", 1, 2, (2,)),
                Node("e", 1, 0, (0, 3)),
            ),
            (4,),
        ),
        (10, 12, 14, 14, 12),
        12,
        {14: 11, 13: 18, 12: 18},
    ),
    # One step writes a (4 bytes) and its part p (3 bytes); b reads a only, c reads p and b.
    Case(
        "two results",
        Graph(
            (Node("a", 5, 4), Node("p", 0, 3, part_of=0), Node("b", 1, 1, (0,)), Node("c", 1, 1, (1, 2))),
            (3,),
        ),
        (7, 8, 5),
        8,
        {8: 7},
    ),
    # Workspace counts during its own step only, an external output never.
    Case(
        "workspace and external",
        Graph((Node("a", 1, 2), Node("b", 1, 100, (0,), workspace=6, external=True), Node("c", 1, 3, (0,))), (1, 2)),
        (2, 8, 5),
        8,
        {8: 3},
    ),
    # b (10 bytes) must go during d, and comes back cheaply only if a, which nothing else reads, is kept for it: a, b and c
    # make 12 then, as do b, d and e at the end.
    Case(
        "kept for a recomputation",
        Graph(
            (
                Node("a", 100, 1),
                Node("b", 1, 10, (0,)),
                Node("c", 1, 1, (1,)),
                Node("d", 1, 1, (2,), workspace=8),
                Node("e", 1, 1, (1, 3)),
            ),
            (4,),
        ),
        (1, 11, 11, 20, 12),
        12,
        {20: 104, 19: 105, 12: 105},
    ),
    # With 15 nothing else fits beside d, so a and b must both come back in the last stage: b before a would do (12), but stages
    # recompute in increasing position, and b while a is there makes 22. So b is kept beside d, which makes 16, and only a comes
    # back; its first instance is dropped unread.
    Case(
        "recomputed in increasing position",
        Graph(
            (
                Node("a", 1, 10),
                Node("x", 1, 0),
                Node("b", 1, 1, (1,), workspace=10),
                Node("d", 1, 1, workspace=14),
                Node("e", 1, 1, (0, 2, 3)),
            ),
            (4,),
        ),
        (10, 10, 21, 26, 13),
        16,
        {26: 5, 25: 6, 16: 6},
    ),
    # Three layers. Keeping all: f0 f1 f2 and then b2 make 4. With 3, b2 reads f1, f2, so f0 has to go, and f0 is
    # computed again for b1, which then holds f0, f1, b2 and its own result: 4 again. So 4 is the least.
    Case("training chain of 3", training_chain(3), (1, 2, 3, 4, 4, 2), 4, {4: 6}),
    # Five layers; keeping all peaks at 6 during b4 and b3. With 5, one value is missing during both, and f0 will do: it comes
    # back for b1. With 4, b3 leaves room for nothing but what it reads
    # (f2, f3, b4) and writes: so b2 needs f0 and f1 again, which fill what is left, and b1 needs f0 a third time: 10 + 3.
    Case("training chain of 5", training_chain(5), (1, 2, 3, 4, 5, 6, 6, 5, 4, 2), 4, {6: 10, 5: 11, 4: 13}),
)
