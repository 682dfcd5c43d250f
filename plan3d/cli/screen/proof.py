"""What a search proves, and what plans that are not uniform gain."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plan3d.search.result.search_result import SearchResult, UniformSteps


def _best_step(result: SearchResult) -> float | None:
    return float(result.costs.step[0]) if result.costs is not None else None


def _compared(steps: UniformSteps) -> dict[str, float]:
    """Steps of the best uniform plans by the prefix of their JSON keys."""
    return {
        "uniform": steps.whole,
        "uniform_same_pp": steps.same_pp,
        "uniform_interleaved": steps.every,
    }


def record(result: SearchResult) -> dict[str, Any]:
    """The JSON keys of a proof and a comparison; null where no uniform plan fits."""
    out: dict[str, Any] = {}
    if result.bound is not None:
        out = {"bound": result.bound, "gap": result.gap}
    step = _best_step(result)
    if result.compared is not None and result.trace is None:
        out["uncovered"] = list(result.uncovered)
    if result.compared is None or step is None:
        return out
    for name, other in _compared(result.compared).items():
        known = math.isfinite(other)
        out[f"{name}_step_seconds"] = other if known else None
        out[name.replace("uniform", "gain")] = other / step - 1 if known else None
    return out


def lines(result: SearchResult) -> list[str]:
    """The same in sentences."""
    return [*_proof(result), *left_out(result), *_gains(result)]


def left_out(result: SearchResult) -> list[str]:
    """What the proof says nothing of."""
    return [f"not covered: {'; '.join(result.uncovered)}"] if result.uncovered else []


def _proof(result: SearchResult) -> list[str]:
    if result.gap is None or result.bound is None:
        return []
    share = f"more than {100 * result.gap:.2g} % better" if result.gap else "better"
    same = result.compared is not None and result.objective == "step-time"
    what = " whose stages have their own layers and strategies" if same else ", of those searched,"
    return [f"proven: no plan that fits{what} is {share}; lower bound {result.bound:.4g}"]


def _gains(result: SearchResult) -> list[str]:
    steps, step = result.compared, _best_step(result)
    if steps is None or step is None or result.costs is None:
        return []
    pp = int(result.costs.plans.pp[0])
    names = (
        "uniform plan without virtual stages",
        f"one with pp={pp}",
        "one with virtual stages where they help",
    )
    gains = [
        f"{100 * (other / step - 1):+.2f} % over the best {name} ({other:.4g} s)"
        for name, other in zip(names, _compared(steps).values(), strict=True)
        if math.isfinite(other)
    ]
    return [f"gain of plan 1: {', '.join(gains)}"] if gains else []
