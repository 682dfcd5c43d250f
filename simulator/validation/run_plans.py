"""Which plan did a published run use? Its layout, schedule and overlaps, from its cells."""

from __future__ import annotations

import re
from typing import Any

from ..base.errors import InputError
from ..pipeline import schedules
from ..plan.fields import CHOICES, POLICY
from ..plan.plan import Plan
from .published_runs import PublishedRun
from .synchronisation_runs import FRAMEWORKS


def plan_of(run: PublishedRun) -> Plan:
    """The layout of a row; AUTO where neither the row nor its convention says anything."""
    rule, tp, cp = run.convention, run["tp"], run.given("cp", 1)
    ranks, virtual = run["dp"] * cp, _virtual_stages(run)
    experts = run.given("experts", 0) > 0
    zero = (3 if run["fsdp"] else rule.zero) if run["zero_stage"] is None else run["zero_stage"]
    zero *= ranks > 1
    split = run.given("sequence_parallel", False) and tp > 1
    return Plan(
        tp=tp,
        pp=run["pp"],
        dp=run["dp"],
        cp=cp,
        ep=run.given("ep", 1) if experts else 1,
        # Megatron's default: experts are split like the rest of the layer.
        etp=tp if experts else 1,
        virtual_stages=virtual,
        micro_batch=run.given("micro_batch", rule.micro_batch),
        schedule=_schedule(run, virtual),
        sequence_parallel=int(split),
        zero=zero,
        recompute=run.given("recompute", rule.recompute),
        precision=run.dtype,
        layers_per_stage=_ends(run, virtual),
        **_overlap(run, ranks, zero, virtual, split),
        **_policy(run),
    )


def _policy(run: PublishedRun) -> dict[str, Any]:
    """How the replicas of a row's framework are kept together, where it is not by all-reduce."""
    policy = FRAMEWORKS.get(run.given("framework", ""))
    return dict(zip(POLICY, policy, strict=True)) if policy else {}


def _overlap(run: PublishedRun, ranks: int, zero: int, virtual: int, split: bool) -> dict[str, Any]:
    """The overlaps that the convention and the notes state, where the layout allows them."""
    allowed = {
        "overlap_grad_reduce": ranks > 1,
        "overlap_param_gather": ranks > 1 and zero > 0,
        "overlap_p2p": virtual > 1,
        "overlap_tp": split,
    }
    stated = {name: on for name, on in run.convention.overlap.items() if allowed[name]}
    if run.noted("DDP=torch") and ranks > 1:
        stated["overlap_grad_reduce"] = 1
    return stated


def _virtual_stages(run: PublishedRun) -> int:
    if run["pp"] == 1:
        return 1
    stated = run["virtual_stages"]
    if stated is None and run.convention.deepest:
        return int(max(run["layers"] // run["pp"], 1))
    if (stated or 1) == 1 and run.given("schedule", "").startswith("interleaved"):
        raise InputError("virtual stages of an interleaved schedule are not stated")
    return int(stated or 1)


def _schedule(run: PublishedRun, virtual: int) -> int:
    """The code of a row's schedule; 'zb (ZB-1p)' is the one whose name has these letters."""
    text = run.given("schedule", "1f1b").lower()
    if run["pp"] == 1:
        return schedules.code("1f1b")
    if virtual > 1 and text in ("1f1b", "interleaved", "interleaved 1f1b"):
        return schedules.code("interleaved")
    inside = re.fullmatch(r"zb \((.*)\)", text)
    wanted = _letters(inside[1] if inside else text.removesuffix(" (deepspeed)"))
    if wanted == "zb2p" and run.noted("synchronous all-reduce optimizer step"):
        wanted = "zbh2sync"
    for name, number in CHOICES["schedule"].names.items():
        if _letters(name) == wanted:
            return number
    raise InputError(f"schedule {text!r} is not modelled")


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text)


def _ends(run: PublishedRun, virtual: int) -> tuple[int, ...]:
    """Layers of every chunk where embedding and head count as layers: the first and the last
    have one fewer. Rows say so, or only so do their layers fill the chunks.
    """
    chunks = run["pp"] * virtual
    stated = run.noted(
        "First and last stage have one layer fewer|from first and last stage|"
        "embeddings counted as layers"
    )
    if chunks == 1:
        return ()
    each, rest = divmod(run["layers"] + 2, chunks)
    if rest or not (stated or (virtual > 1 and run["layers"] % chunks)):
        return ()
    return (each - 1, *[each] * (chunks - 2), each - 1)
