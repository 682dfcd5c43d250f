"""Every part of time and memory of the plans of goldens/plans.toml is the one on record.

Where a change of them is wanted, `python tests/goldens/write.py` writes them and says what changed.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

FOLDER = Path(__file__).with_name("goldens")
SPEC = importlib.util.spec_from_file_location("term_records", FOLDER / "term_records.py")
assert SPEC is not None
assert SPEC.loader is not None
term_records = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(term_records)
RECORDS = term_records.read()
ROUNDING = 1e-12
"""Seconds, or bytes, below which a difference of two times is rounding."""


@pytest.mark.parametrize("plan", term_records.PLANS)
def test_terms_are_those_on_record(plan: str) -> None:
    records = {term: value for (term, of), value in RECORDS.items() if of == plan}
    assert records
    computed = {term: term_records.terms(plan).get(term, 0.0) for term in records}
    moved = [
        f"{term} of {plan}: recorded {record!r}, computed {computed[term]!r}"
        f" ({computed[term] / record - 1:+.3g})"
        for term, record in records.items()
        if not math.isclose(
            record, computed[term], rel_tol=term_records.TOLERANCE, abs_tol=ROUNDING
        )
    ]
    assert not moved, "\n".join(
        [*moved, "where that is wanted: python tests/goldens/write.py terms"]
    )


def test_every_term_is_on_record() -> None:
    missing = sorted(term_records.computed().keys() - RECORDS.keys())
    assert not missing, f"{len(missing)} terms have no record, the first {missing[0]}"


def test_records_hold_every_part_of_every_kind_of_plan() -> None:
    plans = {plan for _, plan in RECORDS}
    assert plans == set(term_records.PLANS)
    assert len(plans) >= 30
    lacks = {"parameter-server": "bytes/optimizer", "offload": "bytes/optimizer"}
    # Whose ranks are fullest in the update.
    lacks["dense-of-2021"] = "bytes/activations"
    # Shards of weights are those of the optimizer.
    lacks["hybrid-sharding"] = "bytes/weights"
    for plan in plans:
        assert {term for term, of in RECORDS if of == plan} >= {
            "seconds/matmul",
            "seconds/optimizer",
            "bytes/weights",
            "bytes/optimizer",
            "bytes/activations",
        } - {lacks.get(plan)}
    parts = {term for term, _ in RECORDS}
    assert parts >= {f"seconds/{part}" for part in ("bubble", "imbalance", "launch", "recompute")}
    assert parts >= {f"bytes/{part}" for part in ("gradients", "logits", "buffers", "host", "nvme")}


def test_gemm_times_are_in_the_records_of_matmul_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_times = term_records.kernel_times
    original = kernel_times.gemm_seconds
    monkeypatch.setattr(kernel_times, "gemm_seconds", lambda *given: 1.001 * original(*given))
    plan = "experts"
    terms = term_records.terms.__wrapped__(plan)
    changed = {
        term
        for (term, of), record in RECORDS.items()
        if of == plan and not term_records.holds(record, terms.get(term))
    }
    assert changed == {"seconds/matmul"}
