"""A table of whole layers gives back what was measured, and acts as a ratio elsewhere."""

import itertools
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.simulator.analysis.provenance import time_provenance
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware import layer_tables
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.gemm_tables import NEAR, Origin
from plan3d.simulator.hardware.leaves import PACKAGE
from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.hardware.profile_file import MEASUREMENTS
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.layers.cost_columns import Cost
from plan3d.simulator.layers.layer_costs import layer_costs
from plan3d.simulator.layers.layer_seconds import block_seconds
from plan3d.simulator.operators.work import Strategy
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.reporting.assumptions import assumptions
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.validation.timed_runs import with_layer_table, without_layer_table
from plan3d.simulator.workload.blocks import Attention
from plan3d.simulator.workload.model import Model

SIZES = np.array(list(itertools.product((1024, 4096), (1, 8), (1, 4), (1024, 2048))), float).T
RATIOS = np.exp(np.random.default_rng(1).normal(0, 0.3, (2, SIZES.shape[1])))
TABLE = layer_tables.build(SIZES, RATIOS)
BF16 = RECIPES[Precision.BF16]


def task(model="llama-7b", software="megatron-core", sequence=2048):
    cluster = Cluster.profile("a100-80gb-sxm", gpus=8)
    stack = software_profile(software)
    return Task(Model.preset(model), cluster, sequence=sequence, global_batch=32, software=stack)


def local(**fields):
    return Strategy.of(**fields)


def seconds(question, plan):
    return evaluate(question, plan).step_seconds


def test_measured_layers_have_their_ratio():
    assert layer_tables.ratios(TABLE, SIZES) == pytest.approx(RATIOS, rel=1e-12)
    assert (layer_tables.origins(TABLE, SIZES) == Origin.MEASURED).all()


def test_halfway_between_layers_is_the_geometric_mean():
    middle = np.sqrt(SIZES[:, [0]] * SIZES[:, [-1]])
    expected = np.exp(np.log(RATIOS).mean(axis=1))
    assert layer_tables.ratios(TABLE, middle)[:, 0] == pytest.approx(expected, rel=1e-12)
    assert layer_tables.origins(TABLE, middle).tolist() == [Origin.INTERPOLATED]


@given(st.tuples(*(st.floats(0.1, 1e5) for _ in range(4))))
def test_the_ratio_is_continuous_and_within_what_was_measured(sizes):
    at = np.array(sizes)[:, None]
    here = layer_tables.ratios(TABLE, at)
    assert (RATIOS.min() - 1e-12 <= here).all()
    assert (here <= RATIOS.max() + 1e-12).all()
    assert layer_tables.ratios(TABLE, at * (1 + 1e-7)) == pytest.approx(here, rel=1e-5)


def test_beyond_the_measured_layers_the_ratio_is_held():
    beyond = np.array([[99999.0], [64.0], [32.0], [65536.0]])
    corner = np.array([[4096.0], [8.0], [4.0], [2048.0]])
    assert (layer_tables.ratios(TABLE, beyond) == layer_tables.ratios(TABLE, corner)).all()
    assert layer_tables.origins(TABLE, beyond).tolist() == [Origin.EXTRAPOLATED]


def test_a_hundredth_beyond_the_last_side_is_inside():
    """A side of it halfway between two; twice as far beyond is outside."""
    inside = np.array([[4096 * (1 + 0.9 * NEAR)], [8.0], [2.0], [2048.0]])
    outside = inside * np.array([[(1 + 1.1 * NEAR) / (1 + 0.9 * NEAR)], [1], [1], [1]])
    assert layer_tables.origins(TABLE, inside).tolist() == [Origin.INTERPOLATED]
    assert layer_tables.origins(TABLE, outside).tolist() == [Origin.EXTRAPOLATED]


def test_a_blank_takes_the_nearest_measured_layer():
    table = layer_tables.build(SIZES[:, 1:], RATIOS[:, 1:])
    found = layer_tables.ratios(table, SIZES[:, [0]])[:, 0]
    assert found == pytest.approx(RATIOS[:, 1], rel=1e-12)  # of twice the sequence
    assert layer_tables.origins(table, SIZES[:, [0]]).tolist() == [Origin.INTERPOLATED]


@pytest.mark.parametrize("power", [1, -1])
def test_near_is_by_ratios_of_sizes_both_ways(power):
    """Blank is (4, 2): (4, 1) is a factor of 2 off, (1, 2) one of 4, (1, 1) both. And mirrored."""
    sides = np.array([[1, 4, 1], [1, 1, 2]], float) ** power
    sizes = np.stack([1024 * sides[0], 8 * sides[1], np.ones(3), np.full(3, 2048.0)])
    blank = np.array([[1024 * 4.0**power], [8 * 2.0**power], [1.0], [2048.0]])
    found = layer_tables.ratios(layer_tables.build(sizes, RATIOS[:, :3]), blank)[:, 0]
    assert found == pytest.approx(RATIOS[:, 1], rel=1e-12)


def test_a_file_round_trips(tmp_path):
    seconds = np.concatenate([RATIOS * 1e-3, np.full_like(RATIOS, 1e-3)])
    path = tmp_path / "layers.csv"
    path.write_text(layer_tables.format_table(SIZES, seconds, ("where from",)))
    assert path.read_text().startswith("# where from\nhidden,tp,")
    found = layer_tables.ratios(layer_tables.load(str(path)), SIZES)
    assert found == pytest.approx(RATIOS, rel=1e-4)


@pytest.mark.parametrize(
    "text",
    ["", "hidden,tp\n1,2\n", ",".join(layer_tables.COLUMNS) + "\n1,1,1,1,1,0,1,1\n", "a,b\n"],
)
def test_a_malformed_file_is_refused(tmp_path, text):
    path = tmp_path / f"bad{len(text)}.csv"
    path.write_text(text)
    with pytest.raises(InputError, match="not a table of layer times"):
        layer_tables.load(str(path))


def test_what_a_file_says_that_is_no_table_is_not_shown(tmp_path):
    """A profile may name any file."""
    path = tmp_path / "passwords"
    columns = ",".join(layer_tables.COLUMNS)
    for text in ("secret:x:0\n", f"{columns}\nsecret,1,1,1,1,1,1,1\n"):
        path.write_text(text)
        layer_tables.load.cache_clear()
        with pytest.raises(InputError) as error:
            layer_tables.load(str(path))
        assert "secret" not in str(error.value)


def test_a_layer_comes_out_as_measured():
    """Forward plus backward is ratio times what the model says of the layer alone."""
    plain, s = without_layer_table(task()), local(tp=[1, 8, 8], micro_batch=[1, 4, 2])
    modelled = block_seconds(plain, BF16, s)
    ratio = layer_tables.ratios(TABLE, np.array([[4096.0] * 3, s.tp, s.micro_batch, [2048.0] * 3]))
    costs = layer_costs(with_layer_table(plain, TABLE), BF16, s).table[:, 0]
    alone = costs[:, Cost.TOTAL] - costs[:, Cost.TENSOR_COMM]
    assert alone[0] == pytest.approx((ratio * modelled).sum(axis=0)[0], rel=1e-12)
    without = layer_costs(plain, BF16, s).table
    assert (
        without[:, 1:] == layer_costs(with_layer_table(plain, TABLE), BF16, s).table[:, 1:]
    ).all()


def test_ones_change_nothing():
    ones = layer_tables.build(SIZES, np.ones_like(RATIOS))
    plan = Plan(tp=2, micro_batch=2, recompute="full")
    assert seconds(with_layer_table(task(), ones), plan) == seconds(task(), plan)


@pytest.mark.parametrize("field", ["sustained", "memory_bound_rate"])
def test_a_what_if_acts_beside_a_table(field):
    plan, asked = Plan(tp=2, micro_batch=2), with_layer_table(task(), TABLE)
    stack = replace(asked.software, **{field: 0.5 * getattr(asked.software, field)})
    assert seconds(replace(asked, software=stack), plan) > 1.05 * seconds(asked, plan)


def test_a_table_is_for_its_stack_width_and_dense_layers():
    twice = layer_tables.build(SIZES, 2 * np.ones_like(RATIOS))
    plan = Plan(tp=2, micro_batch=2)
    asked = with_layer_table(task(), twice)
    other = replace(asked, software=software_profile("nanotron"))
    for question, precision in ((other, "bf16"), (asked, "fp32")):
        mine = replace(plan, precision=precision)
        assert seconds(question, mine) == seconds(without_layer_table(question), mine)
    moe = task("mixtral-8x7b")
    expert = Plan(tp=1, ep=8, micro_batch=1)
    assert seconds(with_layer_table(moe, twice), expert) == seconds(moe, expert)


def test_provenance_names_the_table():
    plan = Plan(tp=8, micro_batch=4, precision="fp16")
    asked = with_layer_table(task(), TABLE)
    shares = time_provenance(evaluate(asked, plan))
    assert shares["measured"] > 0.9
    assert sum(shares.values()) == pytest.approx(1.0)
    shipped = evaluate(task("gpt3-1.3b", "vtrain", 1024), Plan(tp=2, micro_batch=2))
    assert time_provenance(shipped)["interpolated"] > 0.9
    assert any("a100-vtrain-layers.csv" in line for line in assumptions(shipped))


def test_the_shipped_table_is_of_this_model():
    """Its column of modelled times is what the cost model says today, within a percent."""
    text = files(PACKAGE).joinpath(MEASUREMENTS, "a100-vtrain-layers.csv").read_text()
    sizes, times = layer_tables.parse_table(text)
    for hidden, name in ((1024, "gpt3-350m"), (2048, "gpt3-1.3b")):
        mine, width = sizes[0] == hidden, hidden // 16
        model = Model.preset(name)
        heads = Attention(heads=16, kv_heads=16, head_dim=width, value_dim=width)
        block = replace(model.kinds[0], attention=heads)
        question = without_layer_table(
            replace(task(name, "vtrain", 1024), model=replace(model, kinds=(block,)))
        )
        s = local(tp=sizes[1, mine], micro_batch=sizes[2, mine], recompute=2)
        found = block_seconds(question, RECIPES[Precision.FP16], s)
        assert found == pytest.approx(times[2:, mine], rel=0.03)


def test_ratios_between_sizes_are_on_the_straight_line_of_logarithms():
    """Half-way between two of the sizes in one dimension: the root of the product."""
    sides = [1024, 1, 1, 1024]
    for axis, other in enumerate((4096, 8, 4, 2048)):
        ends = np.array([sides, sides], float).T
        ends[axis, 1] = other
        middle = np.exp(np.log(ends).mean(axis=1))[:, None]
        found = layer_tables.ratios(TABLE, middle)[:, 0]
        assert found == pytest.approx(np.sqrt(layer_tables.ratios(TABLE, ends).prod(axis=1)))


@pytest.mark.parametrize("axis", range(4))
def test_ratios_lie_between_their_own_two_of_three_sizes(axis):
    """1, 2 and 8 at sizes of 1, 2 and 4: between them the roots of 2 and of 16."""
    sizes = np.ones((4, 3))
    sizes[axis] = 1, 2, 4
    table = layer_tables.build(sizes, np.array([[1.0, 2, 8], [3, 3, 3]]))
    asked = np.ones((4, 5))
    asked[axis] = 1, 2**0.5, 2, 2 * 2**0.5, 4
    found = layer_tables.ratios(table, asked)
    assert found[0] == pytest.approx([1, 2**0.5, 2, 4, 8])
    assert found[1] == pytest.approx([3] * 5)


@pytest.mark.parametrize(
    ("factor", "origin"),
    [(1 + 0.9 * NEAR, Origin.MEASURED), (1 + 1.1 * NEAR, Origin.INTERPOLATED),
     (1 / (1 + 0.9 * NEAR), Origin.MEASURED), (1 / (1 + 1.1 * NEAR), Origin.EXTRAPOLATED)],
)  # fmt: skip
def test_times_are_measured_near_a_size_and_extrapolated_beyond_the_first(factor, origin):
    sizes = np.array([[1024 * factor, 1, 1, 1024]]).T
    assert layer_tables.origins(TABLE, sizes).tolist() == [origin]


@pytest.mark.parametrize(
    ("factor", "origin"),
    [(1 + 0.9 * NEAR, Origin.MEASURED), (1 + 1.1 * NEAR, Origin.EXTRAPOLATED)],
)
def test_times_are_extrapolated_beyond_the_last_size(factor, origin):
    sizes = np.array([[4096 * factor, 8, 4, 2048]]).T
    assert layer_tables.origins(TABLE, sizes).tolist() == [origin]
