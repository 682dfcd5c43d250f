"""Packed documents: attention of each token among those of its own document, by hand.

Sources: causal attention over l tokens has l (l + 1) / 2 scores, half of l^2 as plan3d counts;
FlashAttention's kernels of variable lengths skip the others.
"""

import pytest
from round_numbers import MODEL, SCORES, costs_of, stack, task

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.operators.attention import causal_span
from plan3d.simulator.operators.model_flops import task_flops_per_token
from plan3d.simulator.task import mean_over_documents
from plan3d.simulator.workload.blocks import Attention


@pytest.mark.parametrize(
    ("documents", "share"),
    [
        ((1024,), 1.0),
        ((256, 256, 256, 256), 1 / 4),
        ((256,), 1 / 4),
        # (512^2 + 2 x 256^2) / 1024 = 384 of 1,024 keys.
        ((512, 256, 256), 3 / 8),
    ],
)
def test_scores_are_those_inside_documents(documents, share):
    plan = "micro_batch=1"
    packed = costs_of(task(documents=documents), plan)
    whole = costs_of(task(), plan)
    # Four layers, four micro-batches, a backward pass of twice the forward one.
    assert packed.compute_seconds["attention"] == pytest.approx(4 * 4 * 3 * SCORES * share)
    assert packed.compute_seconds["matmul"] == whole.compute_seconds["matmul"]
    assert packed.memory == whole.memory


def test_windows_end_inside_documents():
    attention = Attention(heads=8, kv_heads=8, head_dim=128, value_dim=128, window=256)
    # 256 tokens see 128 on average; of 768 all but the first 256 see 256: 256 - 256^2 / 1536.
    expected = (256 * 128 + 768 * (256 - 256**2 / 1536)) / 1024
    found = mean_over_documents((256, 768), 1024, lambda length: causal_span(attention, length))
    assert found == pytest.approx(expected)


def test_model_flops_count_what_documents_need():
    weights = task_flops_per_token(task()) - 6 * 4 * 8 * 256 * 1024
    found = task_flops_per_token(task(documents=(512, 512)))
    assert found == pytest.approx(weights + 6 * 4 * 8 * 256 * 512)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"documents": (2048,)}, "length of a document 2048 must be a whole number from 1 to"),
        ({"documents": (0,)}, "must be a whole number from 1 to the sequence 1024"),
        ({"documents": (512,), "software": stack(flash_attention=False)}, "need flash attention"),
    ],
)
def test_documents_that_no_sequence_holds_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        task(model=MODEL, **changes)
