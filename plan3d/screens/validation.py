"""Tables of `validate`: errors of predicted steps and peaks by source, held out, and few-shot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from plan3d.simulator.base.text_tables import Table, select_columns

from .output import Screen

Scores: TypeAlias = Mapping[str, Any]
"""Errors of some runs, as JSON holds them."""
ScoresByName: TypeAlias = Mapping[str, Scores]
STEP_ERRORS = ("median_abs", "mean_abs", "p90_abs", "bias")
TIME_HEADERS = (
    "source",
    "rows",
    "supported",
    "median %",
    "mean %",
    "p90 %",
    "bias %",
    "in interval %",
    "groups",
    "tau",
    "regret %",
    "p95 %",
    "of 3 %",
)
BRIEF_HEADERS = ("source", "rows", "median %", "mean %", "p90 %", "bias %", "in interval %")
"""Columns of the first screen."""
MEMORY_NOTE = (
    "peaks in 80 %: measured inside that interval; said to fit: with a probability of 0.95; ran "
    "out, ran: rows of sources that state what ran out of memory; ran, said not: of all rows that "
    "ran, those not said to fit"
)
NOTES = (
    "median, mean, p90: |predicted / measured - 1| of a step; bias: the signed median; in "
    "interval: measured inside the 80 % interval",
    "regret: how much slower than the best measured layout is the one predicted best, in groups "
    "that differ in layout only; of 3: the best of the first three; tau: Kendall's",
    MEMORY_NOTE,
    "overall averages over sources; software profiles were fitted on some of these sources, and "
    "vtrain24_single is predicted with a table of layers made from it, so these are not held-out "
    "errors (--cross-validate has those)",
)
HELD_OUT_HEADERS = (
    *("rows", "shipped %", "unfitted %", "median %", "mean %", "p90 %", "bias %"),
    *("other models: median %", "mean %", "tau", "regret %"),
)
CROSS_NOTES = (
    "median, mean, p90, bias, tau, regret: rows predicted by fits to the other ranking groups "
    "(five folds); other models: by fits to the other models; by layers: with a table of layers "
    "made from the rows that the fit sees",
    "shipped: median error of the shipped profile; unfitted: of a profile that owes nothing to "
    "any source (the default stack's scalars)",
    "interval: measured over predicted, 80 % of dense 16-bit rows at MFU >= 5 %, sources weighing "
    "alike; elsewhere: coverage of sources that did not serve to set it",
)
UNSEEN_NOTES = (
    "nothing that published runs taught is used, but a prior of constants learned from the runs "
    "of all other origins; a unit, one source on one accelerator, precision and kind, counts once",
    "median, mean: |predicted / measured - 1| of a step; bias: the signed median, over units the "
    "mean of its size; in 80 %: measured inside that interval; width: half of it, in log",
    "classes: PCIe are cards without NVLink, or with pairs; of a class of fewer than three origins "
    "nothing is claimed",
    MEMORY_NOTE,
    "regret: how much slower than the best measured layout is the one predicted best of those said "
    "to fit; after n steps: n random rows of a unit are known, its others are scored",
    "suggested plans are timed one after another, nothing else of the unit is known; runs to 1 %: "
    "until a plan within 1 % of the best is timed, mean (90th percentile), in groups of 8 and more",
)
UNIT_HEADERS = ("median %", "mean %", "bias %", "in 50 %", "in 80 %", "in 95 %", "width")


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent, a dash where there is none."""
    return "-" if share is None else f"{100 * share:.{digits}f}"


def print_scores(screen: Screen, record: Scores) -> None:
    """Print errors of steps by source; in detail also choices by them, and memory."""
    sources = {**record["sources"], "overall": record["overall"]}
    if not screen.details:
        _print_brief(screen, record["overall"], _time_table("step time by source", sources))
        return
    screen.table(_time_table("step time, and choosing by it", sources))
    subsets = {name: part["pooled"] for name, part in record["subsets"].items()}
    screen.table(_time_table("the same for parts of the rows, pooled", subsets))
    peaks = {name: r["memory"] for name, r in {**sources, **subsets}.items() if r["supported"]}
    screen.table(_peaks_table(peaks))
    curves = _curve_table(record["sources"])
    if curves.rows:
        screen.table(curves)
        screen.table(_fit_probabilities_table(record["calibration"]))
        _print_refused(screen, record)
    covered = record["timed_transformers"]
    if covered["rows"]:
        share = 100 * covered["supported"] / covered["rows"]
        screen.lines(
            [
                f"{covered['supported']} of {covered['rows']} timed rows of transformers "
                f"are supported ({share:.1f} %)"
            ]
        )
        print()
    screen.section(
        "Not supported",
        [f"{part['rows']} rows: {part['reason']}" for part in record["unsupported"]],
    )
    screen.section("Notes", list(NOTES))


def _print_brief(screen: Screen, overall: Scores, table: Table) -> None:
    """The errors of all sources in a sentence, then of each."""
    step, covered = overall["step"], overall["interval80_coverage"]
    screen.lines(
        [
            f"predicted steps of {overall['supported']:,} published runs are off by "
            f"{percent(step['median_abs'])} % in the median, {percent(step['mean_abs'])} % in the "
            f"mean; {percent(covered, 0)} % lie in their 80 % interval"
        ]
    )
    print()
    screen.table(select_columns(table, BRIEF_HEADERS))
    screen.section("Notes", [NOTES[0], NOTES[-1], "-v: regret, memory, and what is not supported"])


def _time_table(title: str, scores: ScoresByName) -> Table:
    rows = []
    for name, r in scores.items():
        step, choice = r["step"], r["regret"]
        tau = choice["kendall_tau"]
        rows.append(
            (
                name,
                str(r["rows"]),
                str(r["supported"]),
                *(percent(step[key]) for key in STEP_ERRORS),
                percent(r["interval80_coverage"], 0),
                str(choice["groups"]),
                "-" if tau is None else f"{tau:.2f}",
                *(percent(choice[key]) for key in ("top1_mean", "top1_p95", "top3_mean")),
            )
        )
    return Table(title=title, headers=TIME_HEADERS, rows=tuple(rows))


def _curve_table(sources: ScoresByName) -> Table:
    """Wrong verdicts by the share of the memory up to which a run is said to fit."""
    rows = [
        (
            name,
            f"{100 * point['limit']:.0f}",
            percent(point["false_fits"]),
            percent(point["false_ooms"]),
        )
        for name, r in sources.items()
        for point in r["memory"]["curve"]
    ]
    headers = ("source", "said to fit up to %", "false fits %", "false OOM %")
    return Table(title="out-of-memory labels", headers=headers, rows=tuple(rows))


def _peaks_table(scores: ScoresByName) -> Table:
    """Errors of peaks, labels by what is said of them, and all rows that ran."""
    rows = [
        (
            name,
            str(r["rows"]),
            *(percent(r[key]) for key in ("median_abs", "mean_abs")),
            percent(r["coverage80"], 0),
            str(r["ran_out"]),
            str(r["ran_out_said_to_fit"]),
            str(r["ran"]),
            str(r["ran_not_said_to_fit"]),
            percent(r["ran_but_said_not"]),
        )
        for name, r in scores.items()
    ]
    labels = ("ran out", "said to fit", "ran", "said not", "ran, said not %")
    headers = ("source", "peaks", "median %", "mean %", "in 80 %", *labels)
    return Table(title="peak memory, and whether a run fits", headers=headers, rows=tuple(rows))


def _fit_probabilities_table(bins: Sequence[Scores]) -> Table:
    """Of labelled rows, how often those of a probability fitted."""
    rows = tuple(
        (
            f"{one['from']:g} to {one['to']:g}",
            str(one["rows"]),
            percent(one["said"]),
            percent(one["happened"]),
        )
        for one in bins
        if one["rows"]
    )
    headers = ("probability that it fits", "labelled", "said %", "ran %")
    return Table(title="are the probabilities right?", headers=headers, rows=rows)


def _print_refused(screen: Screen, record: Scores) -> None:
    """Print how many runs that ran out of memory cannot be predicted."""
    refused = record["ran_out_but_refused"]
    screen.lines(
        [f"{refused} more runs that ran out of memory are not supported: none is said to fit"]
    )
    print()


def print_held_out(screen: Screen, record: Scores) -> None:
    """Print errors of cross-validation, and what it fitted."""
    parts = record["parts"]
    screen.table(_held_out_table(parts, record["pooled"]))
    if any(part["scalars"] for part in parts.values()):
        screen.table(_scalar_table(parts))
    screen.table(_interval_table(record["intervals"]))
    screen.section("Notes", list(CROSS_NOTES))


def _held_out_table(parts: ScoresByName, pooled: ScoresByName) -> Table:
    rows = []
    for name, r in {**parts, **pooled}.items():
        nothing = dict.fromkeys(("median_abs", "mean_abs"))
        models, choice = r.get("leave_one_model_out", nothing), r["regret"]
        tau = choice["kendall_tau"]
        rows.append(
            (
                name,
                str(r["rows"]),
                *(percent(r.get(key, nothing)["median_abs"]) for key in ("shipped", "unfitted")),
                *(percent(r["step"][key]) for key in STEP_ERRORS),
                *(percent(models[key]) for key in ("median_abs", "mean_abs")),
                "-" if tau is None else f"{tau:.2f}",
                percent(choice["top1_mean"]),
            )
        )
    headers = ("held out", *HELD_OUT_HEADERS)
    return Table(title="runs that the fits did not see", headers=headers, rows=tuple(rows))


def _scalar_table(parts: ScoresByName) -> Table:
    rows = [
        (
            name,
            field,
            *(f"{value:.3g}" for value in (s["shipped"], s["fitted"], *s["folds"])),
            ", ".join(s["flags"]),
        )
        for name, r in parts.items()
        for field, s in r["scalars"].items()
    ]
    headers = ("source", "scalar", "shipped", "fitted", "folds from", "to", "warning")
    words = frozenset({0, 1, 6})
    return Table(title="what was fitted", headers=headers, rows=tuple(rows), words=words)


def _interval_table(intervals: ScoresByName) -> Table:
    rows = [
        (
            name,
            *(str(r[key]) for key in ("rows", "sources")),
            *("-" if r[key] is None else f"{r[key]:.3f}" for key in ("low", "high")),
            *(percent(r[key], 0) for key in ("coverage", "elsewhere")),
        )
        for name, r in intervals.items()
    ]
    headers = ("80 % interval", "rows", "sources", "low", "high", "inside %", "elsewhere %")
    return Table(title="measured over predicted", headers=headers, rows=tuple(rows))


def print_unseen(screen: Screen, record: Scores) -> None:
    """Print errors of runs whose origin was left out, by known steps, class and unit."""
    screen.table(_few_shot_table(record["few_shot"]))
    if record["outer_fold"]["origins"]:
        screen.table(_outer_fold_table(record["outer_fold"]))
    if record["suggested_steps"]:
        screen.table(_suggested_table(record["suggested_steps"]))
    if record["choices"]:
        screen.table(_choices_table(record["choices"]))
        screen.table(_fastest_probabilities_table(record["choices"]["probabilities"]))
    screen.table(_classes_table(record["classes"]))
    screen.table(_units_table(record["units"]))
    machines = {f"on {name}": scores for name, scores in record["memory_machines"].items()}
    together = {**record["memory_training"], **machines, "together": record["memory"]}
    screen.table(_peaks_table({**record["memory_sources"], **together}))
    if record["memory"]["labelled"]:
        screen.table(_fit_probabilities_table(record["memory"]["calibration"]))
        _print_refused(screen, record)
    reasons = [f"{part['rows']} rows: {part['reason']}" for part in record["unsupported"]]
    screen.section("Not supported", reasons)
    screen.section("Notes", list(UNSEEN_NOTES))


def _error_cells(r: Scores, bias: str = "mean_abs_bias") -> tuple[str, ...]:
    width = r["half_width80"]
    return (
        *(percent(r[name]) for name in ("median_abs", "mean_abs", bias)),
        *(percent(r[name], 0) for name in ("coverage50", "coverage80", "coverage95")),
        "-" if width is None else f"{width:.2f}",
    )


def _few_shot_table(scores: ScoresByName) -> Table:
    rows = [
        (
            f"after {n}",
            str(r["units"]),
            *_error_cells(r),
            percent(r["regret_fitting"]),
        )
        for n, r in scores.items()
    ]
    headers = ("known steps", "units", *UNIT_HEADERS, "regret %")
    return Table(
        title="stack not calibrated (prior from published runs)", headers=headers, rows=tuple(rows)
    )


def _outer_fold_table(fold: Scores) -> Table:
    rows = [(f"after {n}", str(r["units"]), *_error_cells(r)) for n, r in fold["few_shot"].items()]
    headers = ("known steps", "units", *UNIT_HEADERS)
    title = f"origins held back from development: {', '.join(fold['origins'])}"
    return Table(title=title, headers=headers, rows=tuple(rows))


def _suggested_table(scores: Mapping[str, ScoresByName]) -> Table:
    rows = [
        (f"after {n} {how.replace('_', ' ')}", str(r["units"]), *_error_cells(r))
        for n, by in scores.items()
        for how, r in by.items()
    ]
    headers = ("known steps", "units", *UNIT_HEADERS)
    title = "half of a unit's rows, after steps of the other half"
    return Table(title=title, headers=headers, rows=tuple(rows))


def _choices_table(r: Scores) -> Table:
    """What choosing among measured layouts costs, and how many runs a good one takes: by unit,
    the worst first, then together."""

    def runs(of: Scores) -> str:
        return "-" if of["mean"] is None else f"{of['mean']:.1f} ({of['p90']:.0f})"

    worst = sorted(r["units"].items(), key=lambda item: -item[1]["regret_after"]["0"])
    rows = tuple(
        (
            name,
            str(one["groups"]),
            percent(one["expected_regret"]),
            *(percent(value) for value in one["regret_after"].values()),
            runs(one["runs_to_good"]),
            runs(one["runs_to_good_in_order"]),
        )
        for name, one in (*worst, ("together", r))
    )
    after = (f"after {k} %" for k in r["regret_after"])
    headers = ("unit", "groups", "expected regret %", *after, "runs to 1 %", "in order")
    return Table(title="regret after timing suggested plans", headers=headers, rows=rows)


def _fastest_probabilities_table(classes: Sequence[Scores]) -> Table:
    rows = tuple(
        (
            f"{c['from']:g} to {c['to']:g}",
            str(c["plans"]),
            *(percent(c[name], 0) for name in ("said", "were")),
        )
        for c in classes
    )
    headers = ("probability", "plans", "said %", "were %")
    return Table(title="said to be the fastest", headers=headers, rows=rows)


def _classes_table(scores: ScoresByName) -> Table:
    rows = [
        (name, str(r["units"]), str(r["origins"]), str(r["rows"]), *_error_cells(r))
        for name, r in scores.items()
    ]
    headers = ("class", "units", "origins", "rows", *UNIT_HEADERS)
    return Table(title="the same by class of training", headers=headers, rows=tuple(rows))


def _units_table(scores: ScoresByName) -> Table:
    rows = [
        (name, r["origin"], str(r["rows"]), *_error_cells(r["step"], "bias"))
        for name, r in scores.items()
    ]
    headers = ("unit, worst first", "origin", "rows", *UNIT_HEADERS)
    words = frozenset({0, 1})
    return Table(title="and by unit", headers=headers, rows=tuple(rows), words=words)
