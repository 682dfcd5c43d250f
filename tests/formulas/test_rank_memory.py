"""Working sets, buffers, logits and reserve of a rank, and every byte of a plan.

Sources: Korthikanti et al. 2022, sections 4.2.3 and 5 (first stage, full recompute); Narayanan et
al. 2021, section 2.2 (micro-batches in flight). SBH is s b h of one micro-batch.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import MODEL, costs_of, group_of, kind, local, sparse, stack, task

from plan3d.simulator.layers.memory_footprint import gathered_inputs, kept_activations, loss_bytes
from plan3d.simulator.step.memory import further_share, usable_bytes

SBH = 1024 * 1 * 1024


def kept(text, software=None):
    """Bytes a layer keeps, gathered buffers, and those alive while it is run again."""
    question = task(4, software=software or stack())
    found = kept_activations(kind(MODEL, "block 0"), local(question, text))
    return [float(np.ravel(part)[0]) for part in found]


# Working sets, gathered buffers and logits


def test_full_recompute_keeps_layers_alive_while_they_run_again():
    """Two layers' worth of all that a layer keeps; selective recompute none."""
    assert kept("recompute=full")[2] == 2 * 32 * SBH
    assert kept("recompute=full", software=stack(working_sets=1.5))[2] == 48 * SBH
    assert kept("recompute=selective")[2] == 0


def test_tensor_ranks_gather_hidden_states_into_buffers():
    """Three of 2 s b h in this stack."""
    assert kept("tp=2")[1] == 3 * 2 * SBH
    assert kept("tp=1")[1] == 0


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("tp=4", 2 * (1 - 1 / 4)),
        ("tp=1", 0),
        ("tp=4 recompute=selective", 0),
        ("tp=4 recompute=full", 0),
    ],
)
def test_a_stack_may_keep_gathered_inputs(text, more):
    """Of two norms, 2 h each, what other ranks have of it."""
    question = task(4, software=stack(keeps_gathered=True))
    found = gathered_inputs(kind(MODEL, "block 0"), local(question, text))
    assert found == 2 * more * SBH
    assert gathered_inputs(kind(MODEL, "block 0"), local(task(4), text)) == 0


def test_a_gpu_holds_slack_and_what_is_not_counted_besides_tensors():
    """Slack of 5 % and 2 % that is not counted: 1.02 x 1.05 - 1 = 7.1 %."""
    both = task(4, software=stack(allocator_slack=0.05, uncounted=0.02))
    assert further_share(both) == pytest.approx(0.071)
    assert further_share(task(4, software=stack(uncounted=0.02))) == pytest.approx(0.02)


def test_workspaces_of_cublas_stay():
    """Three of 32 MiB, and four more beside experts."""
    software = stack(cublas_workspaces=3.0, expert_workspaces=4.0)
    for model, each in ((MODEL, 3), (sparse(), 7)):
        found, none = (costs_of(task(1, 4, model, software=s), "tp=1") for s in (software, stack()))
        assert found.memory["buffers"] - none.memory["buffers"] == each * 32 * 2**20


@pytest.mark.parametrize(("sharded", "split"), [(True, 4), (False, 1)])
def test_logits_wait_and_are_alive_during_the_loss(sharded, split):
    """Six bytes each of this stack's ten wait for the backward pass."""
    question = task(4, software=stack(sharded_logits=sharded))
    waiting, besides = loss_bytes(local(question, "tp=4"))
    assert waiting == 6 * 1024 * 1024 / split
    assert besides == 4 * 1024 * 1024 / split


def test_multi_token_prediction_has_logits_of_its_own():
    """Six bytes that wait, twice; four more of one at a time while its loss runs."""
    costs = costs_of(task(model=replace(MODEL, mtp_layers=1)), "tp=1")
    assert costs.memory["logits"] == 2 * 6 * SBH
    assert costs.memory["buffers"] == 4 * SBH


# Whole ranks


def test_the_first_rank_keeps_as_many_micro_batches_as_stages():
    """1F1B, equation 5 and section 4.2.3: rank r of p keeps p - r; GPipe all eight, with all
    logits on the last."""
    layer, head = 2 * 16 * SBH, 4 * SBH
    stages = group_of(task(2, 8), "pp=2").stages
    assert stages.activations.ravel().tolist() == [2 * 2 * layer, 2 * layer + head]
    assert stages.logits.ravel().tolist() == [0, 6 * SBH]
    stages = group_of(task(2, 8), "pp=2 schedule=gpipe").stages
    assert stages.activations.ravel().tolist() == [8 * 2 * layer, 8 * (2 * layer + head)]
    assert stages.logits.ravel().tolist() == [0, 8 * 6 * SBH]


def test_what_waits_for_weight_gradients_keeps_less():
    """ZB-H1 (Qi et al. 2024, table 1): the last of two ranks has one micro-batch whole and one that
    lacks its weight gradient, 32 of a layer's 34 + 40 s b h; mask and head keep what they do."""
    paper = stack(flash_attention=False, dropout=True)
    stages = group_of(task(2, 8, software=paper), "pp=2 schedule=zb-h1").stages
    first, last = 2 * (2 * 74 + 1), (2 * 74 + 4) + (2 * 32 + 4)
    assert stages.activations.ravel().tolist() == [first * SBH, last * SBH]


@pytest.mark.parametrize(("text", "gpus", "more"), [("tp=2", 2, 2), ("tp=2 pp=2", 4, 0)])
def test_gathered_inputs_are_kept_without_a_pipeline(text, gpus, more):
    """Two norms' outputs of 2 h, the half of the other rank, of each layer."""
    keeps = task(gpus, software=stack(keeps_gathered=True))
    with_, without = (costs_of(q, text).memory["activations"] for q in (keeps, task(gpus)))
    assert with_ - without == 4 * more * SBH


def test_the_larger_of_working_set_and_loss_is_alive():
    """A vocabulary of 65,536: 4 x 64 s b h of the loss, or 2 x 32 s b h of a layer."""
    small = costs_of(task(), "recompute=full").memory["buffers"]
    large = costs_of(task(model=replace(MODEL, vocabulary=65536)), "recompute=full")
    assert small == 2 * 32 * SBH
    assert large.memory["buffers"] == 4 * 64 * SBH


@pytest.mark.parametrize(
    ("text", "apart", "each"),
    [
        # 6 + 2 bytes a logit, of which 6 wait; 2 of their gradient and 2 of that of the head.
        ("tp=1", 10.0, 2),
        ("tp=1 loss=unfused", 10.0, 4),
        # Pieces: an eighth of 2 bytes, and the head's gradient beside the sum before.
        ("tp=1 loss=chunked", 10.0, 2 / 8 + 2 * 2),
        # Weight gradients that are added up by their product are no tensor.
        ("tp=1 loss=chunked", 0.0, 8 / 8),
    ],
)
def test_the_gradient_of_the_head_stands_beside_that_of_the_logits(text, apart, each):
    """As many logits as the head has weights, 1,024 by 1,024."""
    software = stack(
        **{"logit_bytes": 8.0, "kept_logit_bytes": 6.0, "accumulation_bytes": apart},
        **{"unfused_logit_bytes": 3.0, "loss_pieces": 8},
    )
    kept = {"tp=1": 6.0, "tp=1 loss=unfused": 3.0}.get(text, 0.0)
    found = costs_of(task(software=software), text).memory
    assert found["logits"] == kept * 1024**2
    assert found["buffers"] == max(each - kept * (text == "tp=1 loss=unfused"), 0) * 1024**2


@pytest.mark.parametrize(
    ("text", "gpus", "channels"),
    [
        ("tp=1", 1, 0),
        # All ranks, and those that share gradients.
        ("dp=2", 2, 2 * 16),
        # Context ranks share gradients too.
        ("cp=2", 2, 3 * 16),
        # All 8 ranks and the 4 of a copy of the model have two neighbours.
        ("tp=2 pp=2 dp=2", 8, 2 * 32 + 3 * 16),
        # A group along every axis of a grid with several ranks.
        ("tp=4 tp_grid=2x2 micro_batch=4 sequence_parallel=0", 4, (2 + 2) * 32),
        ("tp=8 tp_grid=2x2x2 micro_batch=4 sequence_parallel=0", 8, (2 + 3) * 32),
    ],
)
def test_reserve_is_a_context_and_buffers_of_process_groups(text, gpus, channels):
    """1 GB, and 1 MB for each of 16 channels to a neighbour."""
    assert costs_of(task(gpus, 8), text).memory["reserve"] == 1e9 + channels * 1e6


def test_the_allocator_reserves_a_share_of_everything_else():
    costs = costs_of(task(software=stack(allocator_slack=0.06)), "tp=1")
    parts = dict(costs.memory)
    reserve = parts.pop("reserve")
    assert reserve == pytest.approx(1e9 + 0.06 * sum(parts.values()))
    assert costs.memory_bytes == pytest.approx(reserve + sum(parts.values()))


def test_what_comes_and_goes_leaves_holes_where_layers_run_again():
    """Not under ZeRO 3, and not where layers keep what they made."""
    flags = {"allocator_slack": 0.06, "rerun_slack": 0.5}
    for text, share in (
        ("recompute=full", 0.5),
        ("zero=2 recompute=full", 0.5),
        ("zero=3 recompute=full", 0.0),
        ("", 0.0),
    ):
        costs = costs_of(task(2, 8, software=stack(**flags)), f"dp=2 {text}")
        without = costs_of(task(2, 8, software=stack(allocator_slack=0.06)), f"dp=2 {text}")
        passing = sum(costs.memory[name] for name in ("activations", "logits", "buffers"))
        grown = costs.memory["reserve"] - without.memory["reserve"]
        assert grown == pytest.approx(share * passing)
        assert costs.memory_bytes == pytest.approx(without.memory_bytes + grown)


def test_what_is_not_counted_is_a_share_of_all_that_is():
    question = task(software=stack(allocator_slack=0.06))
    counted = costs_of(question, "tp=1")
    stacks = replace(question.software, uncounted=0.1)
    found = costs_of(replace(question, software=stacks), "tp=1")
    assert found.memory_bytes == pytest.approx(1.1 * counted.memory_bytes)
    within = usable_bytes(replace(question, software=stacks), float(found.memory_bytes))
    assert within == pytest.approx(counted.memory_bytes - counted.memory["reserve"])


def test_every_byte_of_a_plan():
    """tp 2, pp 2, dp 2, ZeRO 1, two sequences a micro-batch. The first rank is the fullest: two
    layers and the embedding, two micro-batches, their boundary tensors and gathered inputs."""
    n = 2 * (12 * 1024**2 / 2 + 2 * 1024) + 1024**2 / 2
    costs = costs_of(task(8, 16), "tp=2 pp=2 dp=2 micro_batch=2 zero=1")
    assert costs.worst_rank == 0
    assert costs.memory_bytes == sum(costs.memory.values())
    assert costs.memory == {
        "weights": 2 * n,
        "gradients": 4 * n,
        "optimizer": 12 * n / 2,
        "activations": 2 * 2 * 32 * 2 * SBH / 2,
        "logits": 0,
        "buffers": 3 * 2 * 2 * SBH + 2 * 2 * 2 * 2 * SBH / 2,
        "reserve": 1e9 + (2 * 32 + 3 * 16) * 1e6,
    }
