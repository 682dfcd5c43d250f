"""Operator graph: partitions of operators over ranks, layouts of tensors, and their costs.

Operators are nodes of a networkx DAG, edges say whose output they read. A partition of an
operator reads its inputs in one layout and leaves its output in another; between two operators
that disagree a collective changes the layout. A tensor is brought into a layout once, however
many operators read it there; gradients take the same way back.

    rows        a rank holds rows of the weight (W x): reads x whole, leaves its features of y
    columns     columns: reads its features of x, leaves a partial sum of y
    replicated  the whole weight: reads x whole, leaves y whole, n times the work

Rows are Megatron's column-parallel, columns its row-parallel layers (it writes x W).
Source: Shoeybi et al. 2019, section 3; Zheng et al. 2022 (Alpa), section 4.
Neglected: overlap, and collectives that are cheaper in two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.operators import collectives

Graph = Any
"""A networkx.DiGraph; nodes carry `size` and `partitions`."""
Choice = Mapping[str, int]
"""The partition of each operator, by index."""


class OperatorLayout(Enum):
    """How the ranks hold a tensor."""

    WHOLE = "whole"
    """Every rank has all of it."""
    PARTIAL = "partial"
    """Every rank has a summand of all of it."""
    FEATURES = "features"
    """A rank has some of the features (or heads) of every token."""
    TOKENS = "tokens"
    """A rank has some tokens."""


class Partition(NamedTuple):
    """One way to split an operator."""

    name: str
    input_layout: OperatorLayout
    """Of every input: any but PARTIAL."""
    output_layout: OperatorLayout
    seconds: float = 0.0
    """Of its own work on a rank."""
    bytes: float = 0.0
    """What a rank keeps for it: weights and their states."""

    @property
    def input_gradient(self) -> OperatorLayout:
        """Layout of the gradient of its inputs: a rank that reads all of an input and computes a
        share of the output has a summand of the gradient."""
        if self.input_layout is not OperatorLayout.WHOLE:
            return self.input_layout
        whole = self.output_layout is OperatorLayout.WHOLE
        return OperatorLayout.WHOLE if whole else OperatorLayout.PARTIAL

    @property
    def output_gradient(self) -> OperatorLayout:
        """Layout in which it reads the gradient of its output."""
        partial = self.output_layout is OperatorLayout.PARTIAL
        return OperatorLayout.WHOLE if partial else self.output_layout


class Prices(NamedTuple):
    """What a collective costs; each takes the size of the whole tensor."""

    all_reduce: Callable[[float], float]
    all_gather: Callable[[float], float]
    reduce_scatter: Callable[[float], float]
    all_to_all: Callable[[float], float]


def ring_units(ranks: int) -> Prices:
    """Units of (n-1)/n sizes sent by a rank of a ring: an all-reduce is 2, its halves 1 each."""
    return Prices(lambda x: 2 * x, lambda x: x, lambda x: x, lambda x: x / ranks)


def naive_units(ranks: int) -> Prices:
    """The same where sums are always all-reduced, and sliced afterwards."""
    return ring_units(ranks)._replace(reduce_scatter=lambda x: 2 * x)


def cluster_prices(cluster: Cluster, ranks: int, stride: int = 1) -> Prices:
    """Seconds on a cluster between `ranks` ranks, `stride` apart; sizes are bytes."""
    group = collectives.place_group(ranks, stride, cluster)
    return Prices(
        lambda x: float(collectives.all_reduce(x, group, cluster)),
        lambda x: float(collectives.all_gather(x, group, cluster)),
        lambda x: float(collectives.reduce_scatter(x, group, cluster)),
        lambda x: float(collectives.all_to_all(x / ranks, group, cluster)),
    )


def matmul(ranks: int, seconds: float = 0.0, weight: float = 0.0) -> tuple[Partition, ...]:
    """Partitions of W x: `seconds` of the whole product, `weight` bytes of the whole matrix."""
    share, part = seconds / ranks, weight / ranks
    return (
        Partition("rows", OperatorLayout.WHOLE, OperatorLayout.FEATURES, share, part),
        Partition("columns", OperatorLayout.FEATURES, OperatorLayout.PARTIAL, share, part),
        Partition("replicated", OperatorLayout.WHOLE, OperatorLayout.WHOLE, seconds, weight),
    )


def layout_preserving(
    ranks: int, layouts: Sequence[OperatorLayout], seconds: float = 0.0
) -> tuple[Partition, ...]:
    """Partitions of an operator that leaves what it reads: activations, norms, attention cores.

    `layouts` are those in which it can work on shares alone: FEATURES for an attention core (a
    head sees all tokens), TOKENS for a norm (it sees all features).
    """
    split = {
        layout: seconds / (1 if layout is OperatorLayout.WHOLE else ranks) for layout in layouts
    }
    return tuple(Partition(layout.value, layout, layout, split[layout]) for layout in layouts)


def empty_graph() -> Graph:
    """A graph without operators."""
    import networkx

    return networkx.DiGraph()


def add_operator(
    graph: Graph, name: str, inputs: Sequence[str], size: float, partitions: Sequence[Partition]
) -> None:
    """Add an operator that reads the outputs of others; `size` is that of its whole output.

    Raises InputError for a name that is taken, an input that is not there yet, and partitions
    that cannot be priced.
    """
    if name in graph:
        raise InputError(f"operator {name!r} is in the graph already")
    missing = [other for other in inputs if other not in graph]
    if missing:
        raise InputError(f"operator {name!r} reads {missing[0]!r}, which is not in the graph")
    if not partitions:
        raise InputError(f"operator {name!r} needs at least one partition")
    summed = [p.name for p in partitions if p.input_layout is OperatorLayout.PARTIAL]
    if summed:
        raise InputError(f"operator {name!r}: {summed[0]} cannot read a partial sum")
    if not size >= 0 or any(not (p.seconds >= 0 and p.bytes >= 0) for p in partitions):
        raise InputError(f"operator {name!r}: sizes, seconds and bytes must not be negative")
    graph.add_node(name, size=size, partitions=tuple(partitions))
    graph.add_edges_from((other, name) for other in dict.fromkeys(inputs))


def add_input(
    graph: Graph, name: str, size: float, layout: OperatorLayout = OperatorLayout.WHOLE
) -> None:
    """Add a tensor that comes from outside in one layout."""
    add_operator(graph, name, (), size, [Partition("given", OperatorLayout.WHOLE, layout)])


def add_output(
    graph: Graph, name: str, inputs: Sequence[str], layout: OperatorLayout = OperatorLayout.WHOLE
) -> None:
    """Ask for tensors in one layout."""
    add_operator(graph, name, inputs, 0.0, [Partition("wanted", layout, layout)])


def reshard(
    prices: Prices, have: OperatorLayout, want: OperatorLayout, size: float
) -> tuple[str, float]:
    """The collective that changes a layout, and its cost; a slice of what a rank has is free."""
    if have is want:
        return "", 0.0
    if have is OperatorLayout.WHOLE:
        return "slice", 0.0
    if have is OperatorLayout.PARTIAL:
        name = "all_reduce" if want is OperatorLayout.WHOLE else "reduce_scatter"
    else:
        name = "all_gather" if want is OperatorLayout.WHOLE else "all_to_all"
    return name, getattr(prices, name)(size)


class Change(NamedTuple):
    """A tensor, or its gradient, on its way from one layout to another."""

    tensor: str
    backward: bool
    collective: str
    cost: float


def changes(graph: Graph, prices: Prices, choice: Choice, training: bool) -> Iterator[Change]:
    """Every change of layout that a choice of partitions needs, each once."""
    for name, node in graph.nodes(data=True):
        own = node["partitions"][choice[name]]
        readers = [graph.nodes[r]["partitions"][choice[r]] for r in graph.successors(name)]
        inputs = dict.fromkeys(reader.input_layout for reader in readers)
        pairs = [(False, own.output_layout, want) for want in inputs]
        if training:
            gradients = dict.fromkeys(reader.input_gradient for reader in readers)
            pairs += [(True, have, own.output_gradient) for have in gradients]
        for backward, have, want in pairs:
            collective, cost = reshard(prices, have, want, node["size"])
            if collective:
                yield Change(name, backward, collective, cost)


def cost(graph: Graph, prices: Prices, choice: Choice, training: bool = False) -> float:
    """Work and collectives of a choice of partitions, in the unit of the prices."""
    work = sum(n["partitions"][choice[name]].seconds for name, n in graph.nodes(data=True))
    return float(work + sum(c.cost for c in changes(graph, prices, choice, training)))


def rank_bytes(graph: Graph, choice: Choice) -> float:
    """Bytes that a rank keeps."""
    return float(sum(n["partitions"][choice[name]].bytes for name, n in graph.nodes(data=True)))
