"""Cross-entropy as a plan asks for it: bytes of logits, and what pieces cost.

A loss in pieces has the logits of one piece in memory, and none wait for the backward pass; the
gradient of the head is added up piece by piece. Seconds of the loss itself are the stack's in every
case. Neglected: products of fewer rows, and pieces that do not divide the tokens.
Check: Liger-Kernel ead96b6, all_benchmark_data.csv, A100, h 4096, V 128256: in 32 pieces 4,096
tokens take 65.5 ms longer and 32,768 tokens 58.6 ms, here 58.2; 0.30 bytes a logit, here 0.31.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from ..operators import kernel_times
from ..plan.codes import Loss
from .layer_kinds import LayerContext

FUSED_LINEAR_BYTES = 10.0
"""Bytes of a logit of a piece: 16 bits, fp32, and its gradient in fp32."""
SUM_BYTES = 6.0
"""Bytes moved per parameter of the head to add the 16-bit gradient of a piece: two reads and a
write."""


def loss_pieces(local: LayerContext) -> Value:
    """Pieces of the tokens whose loss is computed one after the other [strategy]; 0 where all are
    together."""
    model, software = local.task.model, local.task.software
    each = np.zeros(len(Loss))
    each[Loss.CHUNKED] = software.loss_pieces
    each[Loss.FUSED_LINEAR] = np.ceil(model.vocabulary / model.hidden)
    out: Value = each[local.s.loss.astype(np.int64)]
    return out


def logit_bytes(local: LayerContext) -> tuple[Value, Value]:
    """Bytes of a logit at the peak of the loss, and of those the ones that wait for the backward
    pass [strategy]."""
    software, chosen = local.task.software, local.s.loss.astype(np.int64)
    whole = np.full(len(Loss), software.logit_bytes)
    whole[Loss.UNFUSED], whole[Loss.FUSED] = (
        software.unfused_logit_bytes,
        software.fused_logit_bytes,
    )
    whole[Loss.FUSED_LINEAR] = FUSED_LINEAR_BYTES
    cut = loss_pieces(local)
    peak = whole[chosen] / np.maximum(cut, 1.0)
    kept = np.where(cut > 0, 0.0, np.minimum(software.kept_logit_bytes, peak))
    return peak, kept


def summing_seconds(local: LayerContext) -> Value:
    """Seconds to add up the gradients of the head of all pieces of a micro-batch [strategy]."""
    head = local.vocabulary * local.task.model.hidden / local.weight_split
    moved = SUM_BYTES * loss_pieces(local) * head
    return kernel_times.streaming_seconds(moved, local.task.cluster.accelerator)
