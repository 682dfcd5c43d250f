"""Losses by hand: bytes of logits, and what the pieces of a loss cost.

The head: 1,024 tokens, a vocabulary and a hidden state of 1,024, so 2^20 logits and as many
parameters; 1 TB/s. Liger's loss has as many pieces as the vocabulary is wider than a hidden state.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import ACCELERATOR, MODEL, cluster, costs_of, stack, task

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.layers.layer_kinds import layer_context
from plan3d.simulator.layers.layer_seconds import summing_seconds
from plan3d.simulator.layers.memory_footprint import logit_bytes
from plan3d.simulator.operators.work import Strategy
from plan3d.simulator.plan.field_values import Loss

LOGITS = 1024**2
STACK = stack(unfused_logit_bytes=12.0, fused_logit_bytes=4.0, loss_pieces=8)
LIGER = stack(fused_linear_loss=True)


@pytest.mark.parametrize(
    ("loss", "software", "wide", "kept", "peak", "summed"),
    [
        # Pieces of a vocabulary of 1,024 and of 3,000: those of the stack, or 1 and 3.
        ("usual", STACK, 1, 6, 10, 0),
        ("unfused", STACK, 1, 6, 12, 0),
        ("fused", STACK, 1, 4, 4, 0),
        ("chunked", STACK, 1, 0, 10 / 8, 8),
        ("fused-linear", LIGER, 1, 0, 10, 1),
        ("fused-linear", LIGER, 3, 0, 10 / 3, 3),
    ],
)
def test_a_loss(loss, software, wide, kept, peak, summed):
    """Logits that wait, those alive besides, and 6 bytes a parameter of the head and piece."""
    model = replace(MODEL, vocabulary=wide * 1024)
    question = task(software=software, model=model)
    found, usual = (costs_of(question, f"loss={name}") for name in (loss, "usual"))
    assert found.memory["logits"] == pytest.approx(kept * wide * LOGITS)
    less = (10 - 6 - (peak - kept)) * wide * LOGITS
    assert usual.memory["buffers"] - found.memory["buffers"] == pytest.approx(less)
    # Four micro-batches; without a wide copy 4 bytes in either pass instead of 8 and 2 x 8.
    fewer = (8 + 2 * 8 - 2 * 4) * (loss == "fused")
    more = 4 * (6 * summed - fewer) * wide * LOGITS / 1e12
    assert found.step_seconds - usual.step_seconds == pytest.approx(more)


def test_a_loss_of_liger_on_a100():
    """Liger-Kernel's table: 32 pieces of 32,768 tokens take 58.6 ms longer than torch's loss, and
    10 bytes a logit of a piece: 0.30 of each."""
    a100 = replace(
        ACCELERATOR,
        memory_bandwidth=2.039e12,
        training=replace(ACCELERATOR.training, streaming_efficiency=0.85),
    )
    model = replace(MODEL, hidden=4096, vocabulary=128256)
    question = task(cluster=cluster(1, accelerator=a100), model=model, software=LIGER)
    s = Strategy.of(loss=Loss.FUSED_LINEAR)
    local = layer_context(question, RECIPES[Precision.BF16], s)
    assert summing_seconds(local)[0] == pytest.approx(58.6e-3, rel=0.01)
    assert logit_bytes(local).peak == pytest.approx(np.array([0.30]), rel=0.05)


def test_a_loss_that_a_stack_lacks_is_refused():
    with pytest.raises(InputError, match="as usual, unfused, fused, chunked; nearest: loss=usual"):
        costs_of(task(software=STACK), "loss=fused-linear")
