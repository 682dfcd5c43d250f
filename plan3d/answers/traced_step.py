"""Profiler traces of the plan that is explained: its parts as predicted and as measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from plan3d.search.whatif.single_field_changes import Edits, fitting
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.units import format_bytes, format_flops
from plan3d.simulator.calibration.traces.comparison import (
    Comparison,
    Row,
    class_name,
    compare,
    product_flops,
    sizes_of,
)
from plan3d.simulator.calibration.traces.evidence import TraceEvidence, learn_parts
from plan3d.simulator.calibration.traces.job import traced_job
from plan3d.simulator.calibration.traces.kernels import short_name
from plan3d.simulator.calibration.traces.reader import read_traces
from plan3d.simulator.hardware.accelerator import chip_of
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.constants import CONSTANTS

from .measured_step import CAUSES, CONSTANTS_NAMED, DISAGREES, WORTH_SAYING

if TYPE_CHECKING:
    from plan3d.search.whatif.explanation import Explanation

EDITS = 3
"""Edits that are named."""
WORTH = 0.005
"""Share of the measured step that an edit must save to be named."""
OBSERVED = 0.2
"""Share of a constant's variance that a trace must take away for it to be named."""
CHECKS = {
    "matmul": CAUSES["gemm"],
    "kernels": CAUSES["gemm"],
    "attention": CAUSES["attention"],
    "memory_bound": CAUSES["memory_bound"],
    "recompute": "what is run again, and how much of it",
    "launch": CAUSES["floor"],
    "optimizer": CAUSES["step"],
    "tensor_comm": CAUSES["fast_bandwidth"],
    "context_comm": CAUSES["fast_bandwidth"],
    "expert_comm": CAUSES["experts"],
    "data_comm": CAUSES["network_bandwidth"],
    "pipeline": "layers of each stage, and stages that wait for a slow rank",
    "host_comm": "pinned memory, and GPUs that share a link to the host",
    "waits": "the slow rank: its clocks, its host, its share of the tokens",
    "data loading": "workers of the data loader, and prefetching",
}
"""What to check where a part takes longer than predicted."""


@dataclass(frozen=True, eq=False)
class TracedStep:
    """What traces of a plan's run say beside its prediction."""

    comparison: Comparison
    gpu: str
    """Name of the GPU that was traced."""

    @classmethod
    def of(cls, costs: Costs, files: Sequence[str]) -> TracedStep:
        """InputError for files that are no traces, and for those of another job."""
        traces = read_traces(files)
        traced = cls(compare(costs, traced_job(traces, sizes_of(costs))), traces[0].gpu)
        wall = traced.comparison.job.wall
        of_peak = float(costs.mfu * costs.step_seconds / wall)
        if traced.is_step and of_peak > 1:
            raise InputError(
                f"{traces[0].source}: a step of {wall:.4g} s, {100 * of_peak:.0f} % of the peak of "
                "its GPUs: the trace is of another model, batch, sequence or plan"
            )
        return traced

    @cached_property
    def evidence(self) -> TraceEvidence | None:
        """What the parts say of the constants; None where less than a step was traced or read."""
        return learn_parts(self.comparison) if self.is_step else None

    @property
    def task(self) -> Task:
        """The task with constants as the parts make them likely."""
        return self.evidence.task if self.evidence else self.comparison.costs.task

    @property
    def learned(self) -> str:
        """Constants that the parts move, the largest first."""
        if self.evidence is None:
            return ""
        known = self.evidence.explained
        texts = [
            f"{CONSTANTS[name].acts_on} {100 * change:+.0f} %"
            for name, change in self.evidence.changes.items()
            if abs(change) >= WORTH_SAYING and known[name] >= OBSERVED
        ]
        return ", ".join(texts[:CONSTANTS_NAMED])

    def gains_afterwards(self, explanation: Explanation) -> str:
        """The step as predicted after this trace, and what the best edits then gain."""
        if self.evidence is None:
            return ""
        step, wall = explanation.costs.step_seconds, self.comparison.job.wall
        edits = [
            f"{one['edit']} gains {-100 * one['step_change']:.1f} % ({one['step_seconds']:.4g} s)"
            for one in self.best_edits(explanation)
        ]
        text = f"step {step:.4g} s, {100 * (wall / step - 1):+.1f} % left to this run alone"
        return "; ".join([text, ", ".join(edits) or "no single edit that fits gains"])

    @property
    def headline(self) -> str:
        """The measured step beside the predicted one."""
        job, predicted = self.comparison.job, self.comparison.costs.step_seconds
        ranks = f"{len(job.ranks)} of {job.sizes.ranks:,} ranks"
        steps = f"{job.steps} step{'s' * (job.steps > 1)}"
        return (
            f"measured {job.wall:.4g} s a step ({steps}, {ranks}), predicted {predicted:.4g} s: "
            f"{job.wall / predicted:.3g} times"
        )

    @property
    def is_part_of_a_step(self) -> bool:
        """Whether no optimizer runs in what was traced."""
        updates = (row.measured for row in self.comparison.rows if row.name == "optimizer")
        return self.comparison.job.seconds["optimizer"] == 0 and any(s == 0 for s in updates)

    @property
    def is_step(self) -> bool:
        """Whether whole steps were traced and read whole."""
        return self.comparison.job.is_whole and not self.is_part_of_a_step

    @property
    def notes(self) -> list[str]:
        """What limits the comparison."""
        job, accelerator = self.comparison.job, self.comparison.costs.task.cluster.accelerator
        out = job.left_out
        if not job.is_whole:
            out.append("parts are what was read, nothing learned")
        if self.is_part_of_a_step:
            out.append("no optimizer runs in the trace: it is less than the step that is predicted")
        if not job.ranks[0].window.marked:
            out.append("no step is marked: the whole trace is taken as one step")
        if job.is_lone_rank:
            out.append("one rank: communication is an upper bound (it waits), nothing learned")
        traced, predicted = chip_of(self.gpu), chip_of(accelerator.name)
        if traced and predicted and traced != predicted:
            out.append(f"the trace is of {self.gpu}, the prediction of {accelerator.name}")
        return out

    @property
    def hidden(self) -> list[str]:
        """Seconds in which collectives run, and how much of them nothing hides."""
        out = []
        for use in self.comparison.job.collectives:
            share = 100 * use.exposed / max(use.seconds, 1e-300)
            axis = use.axis.removesuffix("_comm")
            out.append(
                f"{axis} {use.operation.replace('_', '-')} {1e3 * use.seconds:.4g} ms, "
                f"{share:.0f} % exposed"
            )
        return out

    @property
    def gaps(self) -> str:
        """Seconds of gaps by cause."""
        job = self.comparison.job
        rows = sorted(job.gaps.items(), key=lambda item: -item[1])
        named = [f"{name} {1e3 * s:.3g} ms" for name, s in rows if s > 1e-3 * job.wall]
        return ", ".join(named)

    @property
    def waiting(self) -> str:
        """How much ranks wait for each other, and for whom."""
        job, out = self.comparison.job, []
        if job.waits is not None:
            waits = {name: s for name, s in job.waits.items() if s > 1e-3 * job.wall}
            ordered = sorted(waits.items(), key=lambda item: -item[1])
            out += [f"{name.removesuffix('_comm')} {1e3 * s:.3g} ms" for name, s in ordered]
        if job.bubble is not None:
            out.append(f"bubble {1e3 * job.bubble:.3g} ms")
        text = f"exposed waits: {', '.join(out)}" if out else ""
        if job.straggler is not None and job.is_whole:
            one = job.straggler
            of = f" of stage {one.stage}" if job.sizes.pp > 1 and one.stage is not None else ""
            slow = (
                f"rank {one.rank}{of} works {100 * one.share:.1f} % ({1e3 * one.seconds:.3g} ms) "
                f"longer than its peers, most in {one.cause}"
            )
            text = f"{text}; {slow}" if text else slow
        return text

    @property
    def memory(self) -> str:
        """The peaks of PyTorch's allocator beside the predicted one; '' where none was profiled."""
        traces = [one.trace for one in self.comparison.job.ranks]
        allocated, reserved = (
            max(getattr(t, n) for t in traces) for n in ("allocated", "reserved")
        )
        if not allocated:
            return ""
        return (
            f"peak {format_bytes(allocated)} allocated, {format_bytes(reserved)} reserved; "
            f"predicted {format_bytes(self.comparison.costs.memory_bytes)} with the context"
        )

    @property
    def main_cause(self) -> list[str]:
        """The part that explains most of the difference: its kernel, what would have to be true of
        the machine, and what to check."""
        if not self.is_step:
            return []
        row = self.comparison.largest_difference
        sign = "longer" if row.difference > 0 else "shorter"
        text = f"{row.title}: {1e3 * abs(row.difference):.4g} ms {sign} than predicted"
        out = [text + self._kernel(row)]
        if row.ratio is not None and row.measured > 0 and not row.bound:
            rate = 100 / row.ratio
            out.append(f"as if this machine did it at {rate:.0f} % of the rate predicted of it")
        if abs(row.difference) >= DISAGREES * self.comparison.job.wall and row.difference > 0:
            more = "; trace several ranks to tell waits apart" if row.bound else ""
            out.append(f"check {CHECKS.get(row.name, 'which kernels these are')}{more}")
        return out

    def _kernel(self, row: Row) -> str:
        """The longest kernel of a row, with its shape and rate."""
        uses = self.comparison.kernels(row)
        if not uses:
            return ""
        use, total = uses[0], sum(one.seconds for one in uses)
        text = f"; most in {short_name(use.kernel.name)}"
        if use.kernel.shapes and class_name(use) == "gemm":
            text += f" {use.kernel.shapes.replace(', []', '')[:48]}"
        text += f" ({100 * use.seconds / total:.0f} % of it, {use.launches:.4g} a step)"
        flops = product_flops(use)
        if flops:
            rate = flops * use.launches / use.seconds
            peak = self.comparison.costs.peak_flops
            text += f" at {format_flops(rate)}, {100 * rate / peak:.0f} % of peak"
        return text

    def best_edits(self, explanation: Explanation) -> list[dict[str, Any]]:
        """Edits that help most given what was measured, by an explanation with the constants that
        the parts make likely. What those leave of the measured step stays as it is: seconds that
        no part explains, or a share where it is shorter."""
        edits: Edits = explanation.edits
        if edits.costs is None or not self.is_step:
            return []
        rows, wall = fitting(edits), self.comparison.job.wall
        left = wall - explanation.costs.step_seconds
        steps = np.atleast_1d(edits.costs.step)[rows]
        steps = steps + left if left > 0 else steps * (wall / explanation.costs.step_seconds)
        order = np.argsort(steps, kind="stable")
        return [
            {
                "edit": edits.text(int(rows[i])),
                "step_seconds": float(steps[i]),
                "step_change": float(steps[i] / wall - 1),
            }
            for i in order[:EDITS].tolist()
            if steps[i] < (1 - WORTH) * wall
        ]

    @cached_property
    def record(self) -> dict[str, Any]:
        """The JSON object, without edits."""
        job = self.comparison.job
        straggler = job.straggler
        return {
            "step_seconds": job.wall,
            "predicted_seconds": self.comparison.costs.step_seconds,
            "learned_from": list(self.evidence.parts) if self.evidence else [],
            "changes": dict(self.evidence.changes) if self.evidence else {},
            "explained_variance": dict(self.evidence.explained) if self.evidence else {},
            "steps": job.steps,
            "marked": job.ranks[0].window.marked,
            "gpu": self.gpu,
            "ranks": [one.trace.rank for one in job.ranks],
            "stages": job.stages,
            "classified_share": job.classified,
            "parts": [row.to_dict() for row in self.comparison.rows],
            "gaps": job.gaps,
            "collectives": [
                {
                    "axis": use.axis,
                    "operation": use.operation,
                    "launches": use.launches,
                    "seconds": use.seconds,
                    "exposed_seconds": use.exposed,
                }
                for use in job.collectives
            ],
            "exposed_wait_seconds": job.waits,
            "bubble_seconds": job.bubble,
            "straggler": None
            if straggler is None
            else {
                "rank": straggler.rank,
                "stage": straggler.stage,
                "share": straggler.share,
                "seconds": straggler.seconds,
                "cause": straggler.cause,
            },
            "allocated_bytes": max(one.trace.allocated for one in job.ranks),
            "reserved_bytes": max(one.trace.reserved for one in job.ranks),
            "most": self.main_cause,
            "notes": self.notes,
        }
