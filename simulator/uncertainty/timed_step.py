"""One run of a plan on a user's own machine: its step, its peak, or that it ran out of memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from ..base.errors import InputError, check_type
from ..plan.plan import Plan, as_plan, resolve
from ..rules.validity import check
from ..step.evaluate import evaluate
from ..task import Task, check_task


@dataclass(frozen=True)
class TimedStep:
    """One run: its measured step, its peak of memory, or that it ran out of it.

    InputError for a plan that the task cannot have, and for what is no time or size.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> TimedStep(task, Plan(tp=2), 1.9, "run 1")
    TimedStep(Plan('tp=2 dp=4'), 1.9 s, 'run 1')
    """

    task: Task
    plan: Plan
    """Resolved where it is not; its text, or a dict of its fields, is read."""
    seconds: float | None
    """None of a run that ran out of memory."""
    source: str
    """Where it was read, for messages."""
    peak: float | None = None
    """Bytes that the fullest GPU held; None where nobody looked."""

    def __post_init__(self) -> None:
        check_type("source", self.source, str, "what names the run in messages: 'run 1'")
        check_task(self.task)
        try:
            object.__setattr__(self, "plan", _resolved_plan(self.plan, self.task))
        except InputError as error:
            raise InputError(f"{self.source}: {error}") from None
        for name, value in (("seconds", self.seconds), ("peak", self.peak)):
            if value is not None and not _is_size(value):
                said = f"{name} must be a number above 0, not {repr(value)[:60]}"
                raise InputError(f"{self.source}: {said}; None where {_NONE_MEANS[name]}")
        if self.seconds is None and self.peak is not None:
            raise InputError(f"{self.source}: a run that ran out of memory has no peak")

    @property
    def ran_out(self) -> bool:
        """Whether it ran out of memory."""
        return self.seconds is None

    def __repr__(self) -> str:
        said = "out of memory" if self.seconds is None else f"{self.seconds:.4g} s"
        return f"TimedStep({self.plan!r}, {said}, {self.source!r})"


_NONE_MEANS = {"seconds": "it ran out of memory", "peak": "nobody looked"}
"""What None says."""


def _resolved_plan(plan: object, task: Task) -> Plan:
    """The plan that ran, resolved."""
    given = as_plan(plan)  # type: ignore[arg-type]
    if not given.is_scalar and given.rows != 1:
        raise InputError(f"a measured step ran one plan, not a table of {given.rows}")
    found = resolve(given if given.is_scalar else given.take(0), task.gpus)
    check(found, task)
    return found


def _is_size(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return 0 < float(value) < math.inf


def device_peak(task: Task, plan: Plan, reserved: float) -> float:
    """Bytes that a GPU holds whose allocator reserved so many: with what that does not see, the
    CUDA context and the buffers of communicators."""
    costs = evaluate(task, plan).row()
    reserve = costs.memory["reserve"]
    slack = task.software.allocator_slack * (costs.memory_bytes - reserve)
    return float(reserved + reserve - slack)
