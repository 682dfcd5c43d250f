"""Families of plans: the ways in which they split the model, and how many."""

from __future__ import annotations

from plan3d.simulator.plan.plan import (
    FAMILY_COUNT,
    Plan,
    concat,
    families,
    family_name,
    resolve,
    split_count,
)


def test_families_by_hand() -> None:
    plans = [
        Plan(dp=16, zero=2),
        Plan(tp=2, zero=1),
        Plan(tp=2, pp=4),
        Plan(zero=3),
        Plan(tp=4, zero=3),
        Plan(cp=2, pp=2),
    ]
    table = concat([resolve(plan, 16).table() for plan in plans])
    named = [family_name(of) for of in families(table)]
    assert named == ["DP", "TP", "TP+PP", "ZeRO-3", "TP+ZeRO-3", "PP"]
    assert split_count(table).tolist() == [0, 1, 2, 1, 2, 1]
    assert FAMILY_COUNT == 16
    assert family_name(FAMILY_COUNT - 1) == "TP+PP+EP+ZeRO-3"
