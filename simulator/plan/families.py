"""Families of plans: those that split the model over GPUs in the same ways.

How many GPUs each way gets, context parallelism and everything else vary inside a family.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Column, Index
from .plan import Plan

SPLITS = {"TP": "tp", "PP": "pp", "EP": "ep"}
"""Ways to split a model, and the degree of each."""
SHARDED = "ZeRO-3"
"""Parameters sharded over data-parallel ranks."""
NONE = "DP"
"""Every GPU has the whole model."""
COUNT = 2 ** (len(SPLITS) + 1)


def families(plans: Plan) -> Index:
    """The family of each plan [row], a number below COUNT: a bit a split."""
    out: Index = (np.asarray(plans.zero) == 3).astype(np.intp) << len(SPLITS)
    for bit, degree in enumerate(SPLITS.values()):
        out |= (np.asarray(getattr(plans, degree)) > 1).astype(np.intp) << bit
    return out


def splits(plans: Plan) -> Column:
    """In how many ways each plan splits the model [row]."""
    bits = families(plans)[:, None] >> np.arange(len(SPLITS) + 1) & 1
    return np.asarray(bits.sum(axis=1), np.int64)


def spelled(family: int) -> str:
    """The name of a family: 'TP+PP'."""
    names = [name for bit, name in enumerate((*SPLITS, SHARDED)) if family >> bit & 1]
    return "+".join(names) or NONE
