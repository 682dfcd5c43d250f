"""The integer program's partition is the cheapest, and Megatron's for a transformer layer."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.search.layer_ilp.operator_graph import (
    OperatorLayout,
    Partition,
    add_operator,
    add_output,
    cluster_prices,
    cost,
    empty_graph,
    layout_preserving,
    matmul,
    naive_units,
    rank_bytes,
    ring_units,
)
from plan3d.search.layer_ilp.operator_graph import add_input as tensor
from plan3d.search.layer_ilp.tensor_partition import partition
from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError
from plan3d.simulator.base.units import GIB
from plan3d.simulator.hardware.cluster import Cluster

RANKS = 8
GEMMS = ("qkv", "projection", "up", "down")


def chain(*widths, seconds=1.0):
    """y = W_n ... W_1 x, tensors of these widths from h1 to y."""
    graph = empty_graph()
    tensor(graph, "x", 1.0)
    before = "x"
    for i, width in enumerate(widths, start=1):
        add_operator(graph, f"W{i}", [before], width, matmul(RANKS, seconds, weight=RANKS))
        before = f"W{i}"
    add_output(graph, "y", [before])
    return graph


def every_choice(graph):
    """All choices of partitions."""
    names = list(graph.nodes)
    counts = [range(len(graph.nodes[name]["partitions"])) for name in names]
    return (dict(zip(names, indices, strict=True)) for indices in product(*counts))


def brute_force(graph, prices, training=False, limit=float("inf")):
    """The least cost of any choice that fits; None where none does."""
    fits = (choice for choice in every_choice(graph) if rank_bytes(graph, choice) <= limit)
    return min((cost(graph, prices, choice, training) for choice in fits), default=None)


@st.composite
def graphs(draw):
    """Chains, and diamonds in which one tensor has two readers and one operator two inputs."""
    graph = empty_graph()
    tensor(graph, "x", draw(st.integers(1, 9)), draw(st.sampled_from([*OperatorLayout])))
    names = ["x"]
    for i in range(draw(st.integers(1, 5))):
        inputs = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        size, seconds = draw(st.integers(0, 9)), draw(st.integers(0, 5))
        layouts = draw(st.lists(st.sampled_from(SPLITS), min_size=1, max_size=3, unique=True))
        weighted = matmul(4, seconds, 4 * draw(st.integers(0, 2)))
        split = draw(st.booleans())
        partitions = weighted if split else layout_preserving(4, layouts, seconds)
        add_operator(graph, f"op{i}", inputs, size, partitions)
        names.append(f"op{i}")
    add_output(graph, "y", names[-2:], draw(st.sampled_from(SPLITS)))
    return graph


SPLITS = [OperatorLayout.WHOLE, OperatorLayout.FEATURES, OperatorLayout.TOKENS]


@given(
    graph=graphs(),
    training=st.booleans(),
    prices=st.sampled_from([ring_units(4), naive_units(4)]),
    limit=st.sampled_from([float("inf"), 4.0, 9.0, 16.0]),
)
def test_the_program_is_brute_force(graph, training, prices, limit):
    least = brute_force(graph, prices, training, limit)
    if least is None:
        with pytest.raises(NoFeasiblePlanError, match="the smallest needs"):
            partition(graph, prices, training=training, limit=limit)
        return
    found = partition(graph, prices, training=training, limit=limit)
    assert found.cost == pytest.approx(least, rel=1e-9, abs=1e-9)
    assert found.complete
    assert found.bound <= found.cost + 1e-9
    assert found.gap < 1e-6
    assert found.bytes <= limit
    work = sum(
        p.seconds
        for name, node in graph.nodes(data=True)
        for p in node["partitions"]
        if p.name == found.choice[name]
    )
    assert work + sum(change.cost for change in found.changes) == pytest.approx(found.cost)


def test_a_tensor_is_gathered_once_for_two_readers():
    graph = empty_graph()
    tensor(graph, "x", 5.0, OperatorLayout.FEATURES)
    rows = [Partition("rows", OperatorLayout.WHOLE, OperatorLayout.FEATURES)]
    for name in ("left", "right"):
        add_operator(graph, name, ["x"], 1.0, rows)
    prices = ring_units(2)
    forward = partition(graph, prices)
    assert forward.cost == 5.0
    assert [c.collective for c in forward.changes] == ["all_gather"]
    # Both gradients are partial sums: they are added first and scattered once.
    both = partition(graph, prices, training=True)
    assert both.cost == 10.0
    assert [(c.collective, c.backward) for c in both.changes] == [
        ("all_gather", False),
        ("reduce_scatter", True),
    ]


def test_memory_decides_between_replication_and_communication():
    graph = chain(1.0, 1.0, seconds=0.0)
    free = partition(graph, ring_units(RANKS))
    assert set(free.choice.values()) == {"given", "replicated", "wanted"}
    assert free.cost == 0
    assert free.gap == 0
    tight = partition(graph, ring_units(RANKS), limit=2.0)
    assert "replicated" not in tight.choice.values()
    assert tight.cost == 2.0


def layer(cluster, tokens=4096, hidden=8192, norms=(OperatorLayout.WHOLE, OperatorLayout.TOKENS)):
    """A transformer layer in bf16: sizes in bytes, seconds at 400 TFLOP/s and 2 TB/s."""
    element, rate, stream = 2, 4e14, 2e12
    graph, size = empty_graph(), tokens * hidden * element

    def product(name, before, inner, outer):
        seconds = 2 * tokens * inner * outer / rate
        weight = 16 * inner * outer
        partitions = matmul(RANKS, seconds, weight)
        add_operator(graph, name, [before], tokens * outer * element, partitions)

    def pointwise(name, before, width, layouts):
        seconds = 3 * tokens * width * element / stream
        every = layout_preserving(RANKS, layouts, seconds)
        add_operator(graph, name, before, tokens * width * element, every)

    heads = (OperatorLayout.WHOLE, OperatorLayout.FEATURES)
    tensor(graph, "x", size, norms[-1])
    pointwise("norm", ["x"], hidden, norms)
    product("qkv", "norm", hidden, 3 * hidden)
    pointwise("attention", ["qkv"], hidden, heads)
    product("projection", "attention", hidden, hidden)
    pointwise("add", ["x", "projection"], hidden, norms)
    pointwise("norm2", ["add"], hidden, norms)
    product("up", "norm2", hidden, 4 * hidden)
    pointwise("activation", ["up"], 4 * hidden, (*heads, OperatorLayout.TOKENS))
    product("down", "activation", 4 * hidden, hidden)
    pointwise("add2", ["add", "down"], hidden, norms)
    add_output(graph, "out", ["add2"], norms[-1])
    return graph, size


def cluster():
    return Cluster.profile("h100-sxm", gpus=RANKS)


def test_a_transformer_layer_is_split_as_megatron_splits_it():
    graph, size = layer(cluster(), norms=(OperatorLayout.WHOLE,))
    prices = cluster_prices(cluster(), RANKS)
    found = partition(graph, prices, training=True)
    assert [found.choice[name] for name in GEMMS] == ["rows", "columns", "rows", "columns"]
    assert found.choice["attention"] == found.choice["activation"] == "features"
    # Two all-reduces forward and two backward: Shoeybi et al. 2019, figure 4.
    assert [c.collective for c in found.changes if c.cost] == 4 * ["all_reduce"]
    communication = sum(c.cost for c in found.changes)
    assert communication == pytest.approx(4 * prices.all_reduce(size))
    assert found.gap < 1e-6


def test_with_norms_split_by_token_it_is_sequence_parallelism():
    graph, _ = layer(cluster())
    found = partition(graph, cluster_prices(cluster(), RANKS), training=True, limit=12 * GIB)
    assert [found.choice[name] for name in GEMMS] == ["rows", "columns", "rows", "columns"]
    assert {found.choice[name] for name in ("norm", "norm2", "add", "add2")} == {"tokens"}
    # Korthikanti et al. 2022, figure 6: a gather and a scatter for each all-reduce.
    names = sorted(c.collective for c in found.changes if c.cost)
    assert names == 4 * ["all_gather"] + 4 * ["reduce_scatter"]


def test_a_time_limit_too_short_is_said():
    graph, _ = layer(cluster())
    with pytest.raises(NoFeasiblePlanError, match="within the time limit"):
        partition(graph, cluster_prices(cluster(), RANKS), time_limit=1e-9)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g: add_operator(g, "x", [], 1, matmul(2)), "in the graph already"),
        (lambda g: add_operator(g, "b", ["a"], 1, matmul(2)), "reads 'a', which is not"),
        (lambda g: add_operator(g, "b", ["x"], 1, []), "at least one partition"),
        (lambda g: add_output(g, "y", ["x"], OperatorLayout.PARTIAL), "cannot read a partial sum"),
        (lambda g: add_operator(g, "b", ["x"], -1, matmul(2)), "must not be negative"),
        (lambda g: add_operator(g, "b", ["x"], 1, matmul(2, -1)), "must not be negative"),
    ],
)
def test_what_is_not_a_graph_is_refused(build, message):
    graph = empty_graph()
    tensor(graph, "x", 1.0)
    with pytest.raises(InputError, match=message):
        build(graph)


def test_an_operator_may_take_no_time_and_no_memory_but_not_less():
    graph, whole = empty_graph(), OperatorLayout.WHOLE
    for name, seconds, size in (("a", 0, 0), ("b", 0, 1), ("c", 1, 0)):
        add_operator(graph, name, [], 0, [Partition("p", whole, whole, seconds, size)])
    assert {*graph} == {"a", "b", "c"}
    for seconds, size in ((-1e-9, 1), (1, -1e-9)):
        with pytest.raises(InputError, match="must not be negative"):
            add_operator(graph, "d", [], 0, [Partition("p", whole, whole, seconds, size)])


@pytest.mark.parametrize("limits", [{"time_limit": 0}, {"workers": 0}])
def test_limits_that_cannot_be_kept_are_refused(limits):
    with pytest.raises(InputError, match="must be"):
        partition(chain(1.0), ring_units(2), **limits)
