"""Embedding, head and multi-token prediction: what they hold, and what tied ones reduce.

Sources: Press and Wolf 2017 (tied embeddings); Narayanan et al. 2021 and Megatron-LM (first and
last stage add up the gradient of the table they share); DeepSeek-V3 report, section 2.2.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    LAYER,
    MODEL,
    TABLE,
    costs_of,
    group_of,
    kind,
    local,
    reduce,
    stack,
    task,
)

from plan3d.simulator.layers.memory_footprint import stored_parameters

TIED = replace(MODEL, tied=True)
PREDICTS = replace(MODEL, mtp_layers=1)
IN_A_V = "pp=2 virtual_stages=2 schedule=zb-v"


def stored(name, model=MODEL, text="tp=1", **software):
    question = task(4, model=model, software=stack(**software))
    dense, expert = stored_parameters(kind(model, name), local(question, text))
    assert np.all(expert == 0)
    return float(dense[0])


# Parameters


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_ends_are_split_over_the_vocabulary(tp):
    """V h / t; the last norm is whole."""
    assert stored("embedding", text=f"tp={tp}") == TABLE / tp
    assert stored("head", text=f"tp={tp}") == TABLE / tp + 1024


def test_positions_and_norms_of_the_ends_are_whole():
    """Learned positions and the embedding's LayerNorm, weights and biases; a bias a logit."""
    model = replace(
        MODEL, learned_positions=2048, embedding_norm=True, norm_bias=True, head_bias=True
    )
    assert stored("embedding", model, "tp=4") == TABLE / 4 + 2048 * 1024 + 2 * 1024
    assert stored("head", model, "tp=4") == TABLE / 4 + 2 * 1024 + 1024 / 4


@pytest.mark.parametrize(
    ("tp", "published", "padded"),
    [(1, 1000, 1024), (8, 1000, 1024), (1, 1025, 1152), (4, 1025, 1536), (8, 1025, 2048)],
)
def test_a_vocabulary_is_padded_to_128_a_tensor_rank(tp, published, padded):
    """Megatron-LM, make-vocab-size-divisible-by: to a multiple of 128 t."""
    model = replace(MODEL, vocabulary=published)
    question = task(8, model=model, software=stack(vocabulary_multiple=128))
    assert float(local(question, f"tp={tp}").vocabulary[0]) == padded
    assert stored("embedding", model, f"tp={tp}", vocabulary_multiple=128) == padded * 1024 / tp


def test_a_tied_head_on_the_embeddings_rank_has_only_its_norm():
    assert stored("shared head", TIED, "tp=2") == 1024
    assert stored("head", TIED, "tp=2") == TABLE / 2 + 1024


@pytest.mark.parametrize(("name", "copies"), [("shared mtp", 0), ("mtp", 1), ("lone mtp", 2)])
def test_multi_token_prediction_brings_what_its_rank_lacks(name, copies):
    """A block, a projection of 2 h to h and three norms; of embedding and head, what is not there:
    section 2.2 shares both with the main model."""
    expected = LAYER - 6 * 1024**2 + TABLE * copies / 2 + 2 * 1024**2 / 2 + 3 * 1024
    assert stored(name, PREDICTS, "tp=2") == expected


def held(model, text, gpus):
    """Parameters of each pipeline rank, those that differ."""
    stages = group_of(task(gpus, 8, model), text).stages
    return stages.weights.dense.ravel().tolist()


@pytest.mark.parametrize(
    ("model", "text", "gpus", "expected"),
    [
        (MODEL, "pp=1", 1, [4 * LAYER + 2 * TABLE + 1024]),
        (TIED, "pp=1", 1, [4 * LAYER + TABLE + 1024]),
        (MODEL, "pp=2", 2, [2 * LAYER + TABLE, 2 * LAYER + TABLE + 1024]),
        (TIED, "pp=2", 2, [2 * LAYER + TABLE, 2 * LAYER + TABLE + 1024]),
        # In a V both ends are on the first rank, and a tied table is there once.
        (MODEL, IN_A_V, 2, [2 * LAYER + 2 * TABLE + 1024, 2 * LAYER]),
        (TIED, IN_A_V, 2, [2 * LAYER + TABLE + 1024, 2 * LAYER]),
        # Both copies of DualPipe: every rank has a pair of stages, and so both ends.
        (TIED, "pp=2 schedule=dualpipe", 2, [4 * LAYER + TABLE + 1024]),
    ],
)
def test_parameters_of_the_ranks(model, text, gpus, expected):
    assert held(model, text, gpus) == expected


MTP = LAYER + 2 * 1024**2 + 3 * 1024


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Alone it finds both ends; with the head it lacks the embedding; between, both.
        ("pp=1", [4 * LAYER + 2 * TABLE + 1024 + MTP]),
        ("pp=2", [2 * LAYER + TABLE, 2 * LAYER + TABLE + 1024 + MTP + TABLE]),
        (
            "pp=4 layers_per_stage=Ett|tt|m|L",
            [2 * LAYER + TABLE, 2 * LAYER, MTP + 2 * TABLE, TABLE + 1024],
        ),
    ],
)
def test_where_multi_token_prediction_is(text, expected):
    assert held(PREDICTS, text, int(text[3])) == expected


# Seconds: gradients of four bytes


def tied_seconds(model, text, gpus):
    return float(group_of(task(gpus, 16, model), text).stages.tied_embedding_seconds[0])


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_first_and_last_rank_add_up_the_gradient_of_their_share(tp):
    """V h / t among two ranks of one domain."""
    found = tied_seconds(TIED, f"tp={tp} pp=2", 2 * tp)
    assert found == pytest.approx(reduce(4 * TABLE / tp, 2))
    assert tied_seconds(PREDICTS, f"tp={tp} pp=2", 2 * tp) == pytest.approx(found)


@pytest.mark.parametrize(
    ("grid", "tp", "share"), [("2x2", 4, 4), ("2.5d:2x2x2", 8, 4), ("2x2x2", 8, 8)]
)
def test_a_table_on_a_grid_is_reduced_in_the_shares_that_ranks_hold(grid, tp, share):
    """Copies of a 2.5d grid hold the same quarter."""
    text = f"tp={tp} tp_grid={grid} pp=2 micro_batch=4 sequence_parallel=0"
    found = tied_seconds(TIED, text, 2 * tp)
    size = 4 * TABLE / share
    across = 100e-6 + size / 10e9
    assert found == pytest.approx(across if 2 * tp > 8 else reduce(size, 2))


def test_two_ends_are_two_ranks_however_long_the_pipeline_is():
    assert tied_seconds(TIED, "pp=4", 4) == pytest.approx(reduce(4 * TABLE, 2))


def test_ends_in_two_domains_reduce_through_one_nic_each():
    """Half a cluster apart: a ring of two sends all bytes at 10 GB/s."""
    assert tied_seconds(TIED, "tp=4 pp=4", 16) == pytest.approx(100e-6 + 4 * TABLE / 4 / 10e9)


@pytest.mark.parametrize(
    ("model", "text", "gpus"),
    [
        (MODEL, "pp=2", 2),
        (TIED, "pp=1", 1),
        (TIED, IN_A_V, 2),
        (TIED, "pp=2 schedule=dualpipe dp=1", 2),
    ],
)
def test_ends_that_are_untied_or_on_one_rank_reduce_nothing(model, text, gpus):
    assert tied_seconds(model, text, gpus) == 0


@pytest.mark.parametrize(("tp", "text"), [(1, "pp=2"), (2, "tp=2 pp=2")])
def test_a_plan_of_one_replica_only_reduces_its_ends(tp, text):
    costs = costs_of(task(2 * tp, 4, TIED), text)
    assert costs.seconds["data_comm"] == pytest.approx(reduce(4 * TABLE / tp, 2))


def test_tied_ends_reduce_the_gradients_of_their_recipe():
    costs = costs_of(task(2, 4, TIED), "pp=2 precision=fp16")
    assert costs.seconds["data_comm"] == pytest.approx(reduce(2 * TABLE, 2))


@pytest.mark.parametrize(("model", "tables"), [(MODEL, 2), (TIED, 1)])
def test_memory_of_a_tied_plan(model, tables):
    """2 + 4 + 12 bytes of each parameter, the table once."""
    costs = costs_of(task(1, 4, model), "pp=1")
    n = 4 * LAYER + tables * TABLE + 1024
    found = [costs.memory[part] for part in ("weights", "gradients", "optimizer")]
    assert found == [2 * n, 4 * n, 12 * n]
