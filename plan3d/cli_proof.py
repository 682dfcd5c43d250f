"""What does an exact search over plans that are not uniform prove, and what do they gain?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .search.backend import Certificate, SearchResult


def _best_step(result: SearchResult) -> float | None:
    return float(result.costs.step[0]) if result.costs is not None else None


def _compared(proof: Certificate) -> dict[str, float]:
    """Steps of the best uniform plans by the prefix of their JSON keys."""
    return {
        "uniform": proof.uniform,
        "uniform_same_pp": proof.uniform_same_pp,
        "uniform_interleaved": proof.uniform_interleaved,
    }


def record(result: SearchResult) -> dict[str, Any]:
    """The JSON keys of a certificate; null where no uniform plan fits."""
    proof, step = result.certificate, _best_step(result)
    if proof is None or step is None:
        return {}
    out: dict[str, Any] = {"lower_bound_seconds": proof.bound, "gap": proof.gap(step)}
    for name, other in _compared(proof).items():
        known = math.isfinite(other)
        out[f"{name}_step_seconds"] = other if known else None
        out[name.replace("uniform", "gain")] = other / step - 1 if known else None
    return out


def lines(result: SearchResult) -> list[str]:
    """The same in sentences."""
    proof, step = result.certificate, _best_step(result)
    if proof is None or step is None or result.costs is None:
        return []
    gap = proof.gap(step)
    proved = "no plan" if result.complete else f"perhaps a plan by {100 * gap:.2g} %, none by more,"
    said = (
        f"{proved} whose stages each have their own layers, tp, dp, ZeRO and recompute is faster: "
        f"lower bound {proof.bound:.4g} s; the plans after the first are those met on the way"
    )
    pp = int(result.costs.plans.pp[0])
    names = (
        "uniform plan without virtual stages",
        f"one with pp={pp}",
        "one with virtual stages where they help",
    )
    gains = [
        f"{100 * (other / step - 1):+.2f} % over the best {name} ({other:.4g} s)"
        for name, other in zip(names, _compared(proof).values(), strict=True)
        if math.isfinite(other)
    ]
    return [said, f"gain of plan 1: {', '.join(gains)}"] if gains else [said]
