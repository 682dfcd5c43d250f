"""Measured training steps: their predicted seconds and peak bytes, and the scale of one step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...base.arrays import Value
from ...base.errors import CalibrationError, InputError
from ...hardware.cluster import Cluster
from ...hardware.software import ENDS
from ...hardware.software_stack import Software
from ...plan.plan import Plan, resolve
from ...step.costs import Costs
from ...step.evaluate import evaluate, simulate
from ...task import Task
from ...validation.predict_runs import rank_memory
from ...workload.model import Model
from ..readers.measurements import Measurements
from .layer_times import gated_block
from .priors import SUSTAINED

STACKS = {"training": "torch", "model": "torchtitan"}
"""Software profile of what a suite of `measure` runs whole steps of."""
SIZES = ("hidden", "ffn", "heads", "kv_heads", "head_dim", "vocabulary", "layers")
BATCH = ("batch", "sequence", "micro_batches")
RECOMPUTE = {0: "none", 1: "full"}


def predicted_steps(rows: Measurements, cluster: Cluster, software: Software) -> dict[str, Value]:
    """Seconds, peak bytes of tensors and peak bytes that the allocator reserves, by the columns of
    training rows that hold what was measured [row].

    CalibrationError for a row that does not say what was trained.
    """
    # What torch counts as reserved is without the CUDA context.
    counted = replace(software, context_bytes=0.0)
    costs = []
    for row, sizes in zip(rows.rows, step_sizes(rows), strict=True):
        try:
            costs.append(step_costs(sizes, cluster, counted))
        except InputError as error:
            raise CalibrationError(f"training: {row.get('line', 'a row')}: {error}") from None
    memory = [rank_memory(one, "max") for one in costs]
    return {
        "seconds": np.array([one.step_seconds for one in costs]),
        "memory_bytes": np.array([one["allocated"][0] for one in memory]),
        "reserved_bytes": np.array([one["reserved"][0] for one in memory]),
    }


def step_sizes(rows: Measurements) -> list[dict[str, int]]:
    """What each row trained; every size positive, recompute 0 or 1."""
    names = (*SIZES, *BATCH, "recompute")
    columns = np.stack([rows.number(name) for name in names], axis=1).tolist()
    for row, numbers in zip(rows.rows, columns, strict=True):
        for name, number in zip(names, numbers, strict=True):
            known = number in RECOMPUTE if name == "recompute" else number >= 1
            if not known or number % 1:
                what = "0 or 1" if name == "recompute" else "a whole number of at least 1"
                told = row.get(name, "") or "nothing"
                where = row.get("line", "a row")
                raise CalibrationError(f"training: {where}: {name} must be {what}, not {told}")
    return [dict(zip(names, map(int, numbers), strict=True)) for numbers in columns]


def step_of(sizes: Mapping[str, int], cluster: Cluster, software: Software) -> tuple[Task, Plan]:
    """Question and plan on one GPU of a step of these sizes, named as in columns.py: of a loop that
    loads nothing and logs nothing."""
    block = gated_block(*(sizes[name] for name in ("ffn", "heads", "kv_heads", "head_dim")))
    model = Model(
        name="training",
        hidden=sizes["hidden"],
        vocabulary=sizes["vocabulary"],
        kinds=(block,),
        order=(0,) * sizes["layers"],
    )
    task = Task(
        model,
        cluster,
        sequence=sizes["sequence"],
        global_batch=sizes["batch"] * sizes["micro_batches"],
        software=replace(software, lone_step_seconds=0.0),
    )
    return task, Plan(micro_batch=sizes["batch"], recompute=RECOMPUTE[sizes["recompute"]])


def step_costs(sizes: Mapping[str, int], cluster: Cluster, software: Software) -> Costs:
    """Costs on one GPU of a step of these sizes; of FSDP as of one rank of several, though a plan
    has nothing to shard there, with all but layers in the root unit (measure/cases_model.py)."""
    root = replace(software, gathered_ends=ENDS) if software.casts_shards else software
    task, plan = step_of(sizes, cluster, root)
    if not software.casts_shards:
        return evaluate(task, plan)
    return simulate(task, resolve(replace(plan, zero=3), task.gpus), scalar=True)


LOWEST_SCALE, HIGHEST_SCALE = 0.3, 2.0
"""Scales beyond which something else than the clock explains the step."""
HALVINGS = 40


def step_seconds(table: Measurements) -> tuple[float, int]:
    """Median seconds of the measured steps of a table, and how many rows there are."""
    rows = table.matching(suite="step")
    seconds = rows.number("seconds")
    seconds = seconds[np.isfinite(seconds) & (seconds > 0)]
    if not seconds.size:
        raise CalibrationError(
            "no step has seconds: the log gives rates only, so import it with --sequence, "
            "--global-batch and --gpus"
        )
    return float(np.median(seconds)), int(seconds.size)


def sustained_scale(task: Task, plan: Plan, measured: float) -> float:
    """The factor on every arithmetic rate that makes the predicted step last `measured` seconds.

    Found by bisection: a step never becomes faster when the rate falls.
    """

    def predicted(scale: float) -> float:
        software = replace(task.software, sustained=task.software.sustained * scale)
        return float(evaluate(replace(task, software=software), plan).step_seconds)

    slow, fast = predicted(LOWEST_SCALE), predicted(HIGHEST_SCALE)
    if not fast <= measured <= slow:
        raise CalibrationError(
            f"the step took {measured:.4g} s; with {LOWEST_SCALE:g} to {HIGHEST_SCALE:g} times the "
            f"kernels' rate it is predicted to take {slow:.4g} to {fast:.4g} s: did another plan "
            "run?"
        )
    low, high = LOWEST_SCALE, HIGHEST_SCALE
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if predicted(middle) > measured else (low, middle)
    return math.sqrt(low * high)


def scale_remark(scale: float) -> str:
    """Whether the scale is one that published steps show."""
    low, high = SUSTAINED
    if low <= scale <= high:
        return ""
    return f"the sustained share {scale:.3g} is outside the {low:g} to {high:g} of published steps"
