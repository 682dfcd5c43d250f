"""The wall of known runs: writes docs/known_runs.md.

    python tests/benchmarks/known_runs.py            writes the page
    python tests/benchmarks/known_runs.py --check    prints lines that are out of date; 1 if any

Every run of KNOWN and of data/quoted_runs.csv is predicted with its published layout, and searched
with its own model, machine, batch, precision and stack. Quoted steps are never fitted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plan3d import find_plans
from plan3d.simulator.analysis.plan_difference import time_differences
from plan3d.simulator.reporting.report import step_bounds
from plan3d.simulator.runs.published_runs import PublishedRun, read_runs, titles
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.costs_tables import plan_fields
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.uncertainty.memory import verdict

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "known_runs.md"
QUOTED = Path(__file__).parent / "data" / "quoted_runs.csv"
KNOWN = """
    megatron_sc21-0003 megatron_sc21-0004 megatron_sc21-0005 megatron_sc21-0006 megatron_sc21-0007
    megatron_sc21-0008 megatron_sc21-0009 megatron_sc21-0017 bloom_prequel22-0131 glm130b-0000
    pythia23-0007 lumi_mi250x-0003 internevo24-0045 tinyllama-0000 zerobubble24-0044
    megascale24-0003 megascale24-0007 megascale24-0011 megascale24-0015
    llmfoundry-0077 llmfoundry-0000 fms_fsdp-0006 torchtitan-0007 hf_ultrascale-1665
    dgxc-0148 dgxc-0205 dgxc-0023 dgxc-0262 dgxc-0170 dgxc-0175 dgxc-0184 dgxc-0245
    megatron_moe_readme-0001 dgxc-0112 dgxc-0275 dgxc-0270 dgxc_samples-0000 dgxc_samples-0002
    nemo_automodel_more-0003 nemo_automodel_more-0013 bridge_skills-0018 megatron_bridge-0162
    megatron_bridge-0067 megatron_bridge-0083
""".split()  # noqa: SIM905
"""Shipped runs, of the population that is fitted and scored."""
WORTH_A_REASON = 0.05
"""Gain by sizes alone above which the page says where a gain comes from."""
LARGE = 0.15
"""Gain that the sentence above the tables counts."""
TOLD, WORTH_A_WORD = 3, 0.02
"""Terms told of a gain, and the least share of the published step of each but the first."""
END_STAGES = ("first_stage_layers", "last_stage_layers")
"""Columns of a row that are told wherever they are assumed: chosen so that its layout fits."""
SHOWN = {
    **dict.fromkeys(("tp", "cp", "pp", "ep", "virtual_stages", "micro_batch"), (1,)),
    **{"zero": (0,), "recompute": ("none",), "schedule": ("1f1b", "interleaved")},
    **dict.fromkeys(END_STAGES, (0,)),
}
"""Fields of a layout, and the values that are not worth a word."""
DECIDES_MEMORY = ("virtual_stages", "micro_batch", "zero_stage", "recompute", "grad_dtype")
"""Columns of a row that decide what it needs."""
HELD = ("recompute", "zero", "schedule", "expert_dispatch")
SWITCHES = (
    *("sequence_parallel", "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p"),
    *("overlap_tp", "overlap_ep"),
)
"""Fields other than sizes, and those of them that a layout may also have to leave off."""
HEADER = """# Known runs

Trainings of 2021 to 2026, predicted with their published layout and searched. Written by
`python tests/benchmarks/known_runs.py`; `--check` compares.

* *quoted*: a step from a paper (`tests/benchmarks/data/quoted_runs.csv`), never fitted. The others
  are shipped ([published runs](published_runs.md)), and software profiles have seen many of them:
  [accuracy](accuracy.md) has the errors of stacks that are not calibrated.
* *layout*: 1F1B, interleaved with virtual stages, unless a schedule is named.
* *predicted*: with the 80 % interval; *error*: predicted over measured.
* *memory*: share of a GPU that the layout is predicted to need. All of these runs did fit; end
  stages and, where it is predicted not to fit, other settings that the source does not state are
  named.
* *gain*: how much faster the first plan of `find_plans` for the same model, GPUs, batch, format
  and stack is predicted to be. *Sizes alone*: with the published recompute, ZeRO, schedule,
  dispatch, sequence parallelism and overlaps.
"""


class Known(NamedTuple):
    """One run: as published, and what a search recommends."""

    run: PublishedRun
    costs: Costs
    best: Costs | None
    rearranged: Costs | None
    """The best with what a layout says other than sizes left as published."""

    @property
    def laid_out(self) -> bool:
        """Whether its layout was published."""
        return not {"tp", "micro_batch", "recompute"} <= set(self.run.assumed_columns)

    @property
    def measured(self) -> float:
        return float(self.run["step_seconds"])

    @property
    def error(self) -> float:
        """Predicted over measured, less 1; NaN without a layout."""
        return self.costs.step_seconds / self.measured - 1 if self.laid_out else np.nan

    @property
    def left_open(self) -> str:
        """What its source does not state of what decides memory: end stages, and the rest where
        it is said not to fit."""
        telling = END_STAGES if self.costs.fits else (*DECIDES_MEMORY, *END_STAGES)
        guessed = [name for name in telling if name in self.run.assumed_columns]
        return f" (assumed: {', '.join(guessed)})" if guessed else ""

    def gain(self, other: Costs | None) -> float:
        """Of another plan over the published layout; NaN where there is none."""
        before = self.costs.step_seconds if self.laid_out else self.measured
        return before / other.step_seconds - 1 if other else np.nan

    @property
    def gain_by_sizes(self) -> float:
        """Of a plan with all but the sizes as published; NaN without a layout."""
        return self.gain(self.rearranged) if self.laid_out else np.nan


def asked(names: Sequence[str] = ()) -> list[Question]:
    """The runs of the page, or those of these names, as questions; the shipped ones first."""
    shipped = {run["run"]: run for run in read_runs() if run["run"] in KNOWN}
    runs = [*(shipped[name] for name in KNOWN), *read_runs(QUOTED)]
    found = questions(run for run in runs if not names or run["run"] in names)
    for q in found:
        if isinstance(q, str):
            raise SystemExit(f"a known run cannot be predicted: {q}")
    return [q for q in found if isinstance(q, Question)]


def known(q: Question) -> Known:
    """A run, predicted and searched with its own precision and optimizer."""
    costs = evaluate(q.task, q.plan)
    fields = costs.plans.to_dict()
    kept = {name: [fields[name]] for name in ("precision", "optimizer")}
    held = {name: [fields[name]] for name in HELD}
    held |= {name: sorted({0, int(fields[name])}) for name in SWITCHES}
    best = find_plans(q.task, choose=kept, top=1).best
    return Known(q.run, costs, best, find_plans(q.task, choose=kept | held, top=1).best)


def layout(costs: Costs) -> str:
    """The fields of a plan that are worth a word."""
    fields = plan_fields(costs.row(), 0)
    return " ".join(f"{n}={fields[n]}" for n, plain in SHOWN.items() if fields[n] not in plain)


def reason(published: Costs, best: Costs) -> str:
    """Where a gain comes from: terms that shrink."""
    step = published.step_seconds
    terms = sorted(time_differences(published, best), key=lambda term: term.change)[:TOLD]
    return ", ".join(
        f"{term.label} {100 * term.change / step:+.0f}"
        for rank, term in enumerate(terms)
        if term.change < (-WORTH_A_WORD * step if rank else 0)
    )


def name_of(run: PublishedRun) -> str:
    """The model, and where its run was published."""
    known = titles()
    if run.source in known:
        return f"{run['model']} ({known[run.source]} {run['year']})"
    return f"{run['model']} ([{run['table']}]({run['url']}) {run['year']}, quoted)"


def first_line(k: Known) -> str:
    """A row of the table of published layouts."""
    run, costs, task = k.run, k.costs, k.costs.task
    predicted, memory = "", ""
    low, high = step_bounds(costs)
    if k.laid_out:
        predicted = f"{costs.step_seconds:.4g} ({low:.3g}-{high:.3g})"
        memory = f"{100 * costs.memory_bytes / costs.capacity:.0f} {verdict(costs)}{k.left_open}"
    cells = (
        name_of(run),
        f"{task.gpus:,} {run['accelerator']}, {run['dtype']}",
        f"{task.global_batch:,} x {task.sequence:,}",
        layout(costs) if k.laid_out else "not published",
        f"{k.measured:.4g}",
        predicted,
        f"{100 * k.error:+.0f}" if k.laid_out else "",
        memory,
        f"{100 * k.gain(k.best):+.0f}" if k.best else "none fits",
    )
    return f"| {' | '.join(map(str, cells))} |"


def second_line(k: Known) -> str:
    """A row of the table of gains that do not need another software."""
    assert k.best is not None
    run = k.run
    start = f"| {run['model']} on {k.costs.task.gpus:,}, {run['dtype']}, {run['year']}"
    gain, sizes = (f"{100 * share:+.0f}" for share in (k.gain(k.best), k.gain_by_sizes))
    return f"{start} | {layout(k.best)} | {gain} | {sizes} | {reason(k.costs, k.best)} |"


def summary(rows: Sequence[Known]) -> str:
    """The sentence above the tables."""
    laid = [k for k in rows if k.laid_out]
    errors = np.abs([k.error for k in laid])
    inside = sum(low <= k.measured <= high for k in laid for low, high in [step_bounds(k.costs)])
    fit = sum(bool(k.costs.fits) for k in laid)
    large = sum(k.gain(k.best) > LARGE for k in laid)
    sizes = sum(k.gain_by_sizes > LARGE for k in laid)
    return (
        f"{len(rows)} runs, {len(laid)} with a published layout: median error "
        f"{100 * np.median(errors):.1f} %, {inside} inside the 80 % interval, {fit} said to fit, "
        f"{large} with a gain above 15 %, {sizes} of them by sizes alone."
    )


def page(rows: Sequence[Known]) -> str:
    """The whole page."""
    first = (
        *("run", "GPUs", "batch", "published layout", "measured s"),
        *("predicted s", "error %", "memory %", "gain %"),
    )
    second = ("run", "recommended", "gain %", "sizes alone %", "what shrinks, % of the step")
    explained = [k for k in rows if k.gain_by_sizes > WORTH_A_REASON]
    return "\n".join(
        [
            HEADER,
            summary(rows),
            *table("Published layouts", first, map(first_line, rows)),
            *table("Gains by sizes alone above 5 %", second, map(second_line, explained)),
            "",
        ]
    )


def table(title: str, headers: Sequence[str], lines: Iterable[str]) -> Iterator[str]:
    yield from ("", f"## {title}", "", f"| {' | '.join(headers)} |", "|---" * len(headers) + "|")
    yield from lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = page([known(q) for q in asked()])
    if not check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    old = PAGE.read_text(encoding="utf-8").splitlines()
    new = [line for line in text.splitlines() if line not in old]
    print("\n".join(new))
    return int(bool(new) or len(old) != len(text.splitlines()))


if __name__ == "__main__":
    sys.exit(main())
