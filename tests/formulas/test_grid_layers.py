"""A transformer layer on a grid of tensor ranks: shares, seconds, and what of them hides.

Sources: Xu et al. 2021 (Optimus), section 3; Singh et al. 2023 (AxoNN), sections 3 and 4. Hidden
1024, ffn 4096; a micro-batch of four sequences of 1024 tokens. Grids are rows x columns x depth.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    ATTENTION,
    BLOCK,
    LOGITS,
    MODEL,
    cluster,
    costs_of,
    gather,
    kind,
    local,
    of_blocks,
    reduce,
    scatter,
    task,
)

from plan3d.simulator.layers.communication import axis_group, grid_messages, grid_overlap
from plan3d.simulator.layers.layer_kinds import work_of
from plan3d.simulator.layers.memory_footprint import (
    grid_kept_bytes,
    kept_activations,
    stored_parameters,
    weight_gradient_inputs,
)
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.plan.tensor_grid import Grid, GridKind, parse_grid
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.workload.blocks import Mlp

GRIDS = {"2x2": 4, "2x4": 8, "2.5d:2x2x2": 8, "2x2x2": 8}


def on(text, gpus=8, model=MODEL):
    tp = GRIDS[text]
    question = task(gpus, 8, model)
    return local(question, f"tp={tp} tp_grid={text} micro_batch=4 sequence_parallel=0")


@pytest.mark.parametrize(("text", "share"), [("2x2", 4), ("2.5d:2x2x2", 4), ("2x2x2", 8)])
def test_parameters_of_a_layer_on_a_grid(text, share):
    dense, _ = stored_parameters(kind(MODEL, "block 0"), on(text))
    assert dense == 12 * 1024**2 / share + 2 * 1024


def test_grouped_queries_are_repeated_on_a_grid():
    """One key/value head: two feature ranks hold a copy each, as two tensor ranks would."""
    model = of_blocks(replace(BLOCK, attention=replace(ATTENTION, kv_heads=1)))
    dense, _ = stored_parameters(kind(model, "block 0"), on("2x2", model=model))
    assert dense == (2 * 1024**2 + 2 * 256 * 1024 + 8 * 1024**2) / 4 + 2 * 1024


@pytest.mark.parametrize(
    ("text", "tokens", "hidden", "features"),
    [("2x2", 2048, 2, 2), ("2.5d:2x2x2", 1024, 2, 2), ("2x2x2", 2048, 2, 2)],
)
def test_activations_of_a_layer_on_a_grid(text, tokens, hidden, features):
    """Two norms, q, k, v and their output, and the MLP's two widths, as in one dimension but for
    the tokens and widths of a rank."""
    seen, one = on(text), kind(MODEL, "block 0")
    found, buffers, _ = kept_activations(one, seen)
    assert found == 2 * tokens * 1024 * (4 / hidden + 4 / features + 8 / features)
    # Buffers of hidden states, and what the largest product gathers: the MLP's second.
    own = 3 * 2 * tokens * 1024 / hidden
    summa = tokens * 4096 / 2 + 2 * (4096 * 1024 / 2 - 4096 * 1024 / 4)
    cube = 2 * (4096 * 1024 / 4 - 4096 * 1024 / 8)
    assert buffers == own + 2 * (cube if text == "2x2x2" else summa)
    # Inputs and outputs of four products: h + 3 h, h + h, h + 4 h, 4 h + h, split in two.
    pending = weight_gradient_inputs(one, work_of(one, seen), seen, np.zeros(1))
    assert pending == grid_kept_bytes(one, seen) == 2 * tokens * 1024 * 16 / 2


@pytest.mark.parametrize(("gated", "up"), [(False, 4096), (True, 2 * 4096)])
def test_a_rectangle_gathers_whole_rows_of_tokens(gated, up):
    """Two rows share 4096 tokens, four columns the widths: x of 2048 tokens along columns, w of a
    quarter of its outputs along rows, for each of four products."""
    model = of_blocks(replace(BLOCK, mlp=Mlp(ffn=4096, gated=gated)))
    ahead, _ = grid_messages(kind(model, "block 0"), on("2x4", model=model))
    widths = ((1024, 3072), (1024, 1024), (1024, up), (4096, 1024))
    assert [[c.size for c in one.blocking] for one in ahead] == [[2048 * a] for a, _ in widths]
    assert [[c.size for c in one.weights] for one in ahead] == [[a * b / 4] for a, b in widths]


def test_ranks_along_an_axis_lie_apart():
    """Columns are neighbours, rows a row of columns apart, depth a plane: of 64 ranks in domains
    of eight, columns and rows are inside, depth has a rank in each."""
    cube = Grid(GridKind.THREE_D, 2, 4, 8)
    found = [axis_group(cube, axis, cluster(64)) for axis in ("columns", "rows", "depth")]
    assert [[float(part) for part in one] for one in found] == [[4, 4, 1], [2, 2, 1], [8, 1, 8]]


def seconds_of_products(passes):
    """A 2x2x2 cube's four products of 4096 tokens: weights along depth, sums of outputs."""
    out = 0.0
    for width_in, width_out in ((1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024)):
        weight, tokens = 2 * width_in * width_out / 4, 4096 / 2
        if passes == "forward":
            out += gather(weight, 2) + reduce(2 * tokens * width_out / 2, 2)
        else:
            out += gather(weight, 2) + scatter(weight, 2) + reduce(2 * tokens * width_in / 2, 2)
    return out


def test_seconds_of_a_layer_on_a_cube():
    """Nothing hides unless overlap_tp says so; full recompute gathers weights once for both its
    passes."""
    one = kind(MODEL, "block 0")
    ahead, behind = grid_overlap(one, on("2x2x2"), np.ones(1), np.ones(1))
    assert ahead == (pytest.approx(seconds_of_products("forward")), 0)
    assert behind == (pytest.approx(seconds_of_products("backward")), 0)
    text = "tp=8 tp_grid=2x2x2 micro_batch=4 sequence_parallel=0 recompute=full"
    _, again = grid_overlap(one, local(task(8, 8), text), np.ones(1), np.ones(1))
    weights = sum(
        gather(2 * a * b / 4, 2)
        for a, b in ((1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024))
    )
    assert again.exposed == pytest.approx(seconds_of_products("backward") - weights)


def test_overlap_hides_weights_and_sums_of_input_gradients():
    """AxoNN, section 4: gathers behind the forward products (half contends, as of ZeRO 3); backward
    sums of dx (a quarter contends) and then what is moved of weights, in a window long enough."""
    text = "tp=8 tp_grid=2x2x2 micro_batch=4 sequence_parallel=0 overlap_tp=1"
    ahead, behind = grid_overlap(
        kind(MODEL, "block 0"), local(task(8, 8), text), np.ones(1), np.ones(1)
    )
    products = ((1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024))
    weights = [2 * a * b / 4 for a, b in products]
    gathers = sum(gather(w, 2) for w in weights)
    scatters = sum(scatter(w, 2) for w in weights)
    outputs = sum(reduce(2 * 2048 * b / 2, 2) for _, b in products)
    inputs = sum(reduce(2 * 2048 * a / 2, 2) for a, _ in products)
    assert ahead.exposed == pytest.approx(outputs)
    assert ahead.contention == pytest.approx(0.5 * gathers)
    assert behind.exposed == 0
    assert behind.contention == pytest.approx(0.25 * inputs + 0.5 * (gathers + scatters))


def test_a_window_that_sums_fill_hides_no_weights():
    """Windows of the products of a rank: an eighth of 12 h^2 twice a token forward, and twice that
    backward, where sums of dx outlast it."""
    text = "tp=8 tp_grid=2x2x2 micro_batch=4 sequence_parallel=0"
    window = 2 * 4096 * 12 * 1024**2 / 8 / 100e12
    products = ((1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024))
    weights = [2 * a * b / 4 for a, b in products]
    gathers = sum(gather(w, 2) for w in weights)
    inputs = sum(reduce(2 * 2048 * a / 2, 2) for a, _ in products)
    assert gathers < window
    assert inputs > 2 * window
    hidden = 0.5 * gathers + 0.75 * 2 * window
    question = task(8, 4, replace(MODEL, order=(0,)))
    alone, overlapped = (costs_of(question, f"{text} overlap_tp={o}") for o in (0, 1))
    # The ends hide all but contention: the embedding's gather and scatter have no window.
    head = 2 * 2048 * 1024 / 2
    ends = min(gather(2 * 1024**2 / 4, 2), LOGITS * 4 / 8) * 0.5 + 0.75 * min(
        reduce(head, 2), 2 * LOGITS * 4 / 8
    )
    found = [one.seconds["tensor_comm"] + one.seconds["contended"] for one in (alone, overlapped)]
    assert found[0] - found[1] == pytest.approx(hidden + ends)


def test_a_plan_on_a_grid_sends_in_every_layer():
    """Two micro-batches; four blocks, and the ends: a table of 1024 x 1024 looked up (no sum of
    its tokens' gradient), and the head."""
    text = "tp=8 tp_grid=2x2x2 micro_batch=4 sequence_parallel=0"
    found = costs_of(task(8, 8), text).seconds["tensor_comm"]
    assert found == pytest.approx(plan_on_a_cube())
    # Layers that run again send their outputs again; their weights are gathered no more often.
    outputs = sum(reduce(2 * 2048 * b / 2, 2) for b in (3072, 1024, 4096, 1024))
    again = costs_of(task(8, 8), f"{text} recompute=full").seconds["tensor_comm"]
    assert again == pytest.approx(plan_on_a_cube() + 2 * 4 * outputs)


def test_a_table_may_mix_grids():
    """A line of eight all-reduces two whole outputs a layer and pass, and one at either end."""
    line = 2 * (4 * 2 * 2 + 2) * reduce(2 * 4096 * 1024, 8)
    codes = np.array([parse_grid("2x2x2"), parse_grid("1d"), parse_grid("2x2x2")])
    plans = Plan(tp=8, micro_batch=4, sequence_parallel=0, tp_grid=codes)
    found = evaluate(task(8, 8), plans).seconds["tensor_comm"]
    assert found == pytest.approx([plan_on_a_cube(), line, plan_on_a_cube()])


def plan_on_a_cube():
    """Seconds of the collectives of a step."""
    weight, tokens = 2 * 1024**2 / 4, 2 * 2048 * 1024 / 2
    embedding = gather(weight, 2) + reduce(tokens, 2) + scatter(weight, 2)
    head = 2 * gather(weight, 2) + scatter(weight, 2) + 2 * reduce(tokens, 2)
    layer = seconds_of_products("forward") + seconds_of_products("backward")
    return 2 * (4 * layer + embedding + head)
