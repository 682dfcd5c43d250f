"""Measure this GPU: microbenchmarks to CSV. Needs torch and numpy; plan3d need not be installed.

    python simulator/calibration/measure/measure.py --out DIR
    torchrun --nproc-per-node 8 simulator/calibration/measure/measure.py --suite collective ...

Rows go to DIR/measurements.csv one by one; what is there is not measured again. Cases that do not
fit or do not run are noted in DIR/skipped.csv and tried again next time.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cases import Case, Suite
    from .recording import RowFile
    from .timing import Bench

FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, AssertionError, MemoryError)
"""What torch raises where memory, hardware or an operator is missing."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
RANK_SUITES = ("collective", "contention")
"""Suites that need several processes (torchrun)."""
Progress = Callable[[str], None]


def measure(
    out: Path,
    *,
    suites: Sequence[str] = (),
    device: str = "auto",
    quick: bool = False,
    cold: bool = False,
    limit_seconds: float | None = None,
    say: Progress = lambda text: None,
) -> dict[str, int]:
    """Measure what is not in `out` yet; returns how many cases were measured, skipped, left.

    ValueError for a suite or device there is not. Under torchrun only rank 0 has counts.
    """
    from .measure_ranks import measure_ranks, under_torchrun
    from .timing import Bench

    known = (*suites_of_one_gpu(), *RANK_SUITES)
    unknown = [name for name in suites if name not in known]
    if unknown:
        raise ValueError(f"unknown suite {unknown[0]!r}; known: {', '.join(known)}")
    bench = Bench(_device(device), quick, cold)
    end = time.monotonic() + (limit_seconds or math.inf)
    if under_torchrun():
        alone = set(suites) - set(RANK_SUITES)
        if alone:
            raise ValueError(
                f"under torchrun --suite {' and '.join(RANK_SUITES)} are measured, not {min(alone)}"
            )
        return measure_ranks(out, suites or RANK_SUITES, bench, end, say)
    shared = set(suites) & set(RANK_SUITES)
    if shared:
        raise ValueError(f"--suite {min(shared)} needs several processes: start it with torchrun")
    return _measure_gpu(out, _cases(suites, quick), bench, end, say)


def suites_of_one_gpu() -> dict[str, Suite]:
    """Suites by name, in order of value."""
    from . import cases_layer, cases_matrix, cases_memory, cases_model, cases_training

    return {
        "gemm": cases_matrix.gemm,
        "layer": cases_layer.layer,
        "training": cases_training.training,
        "model": cases_model.model,
        "attention": cases_layer.attention,
        "memory": cases_memory.memory,
        "loss": cases_memory.loss,
        "optimizer": cases_memory.optimizer,
        "launch": cases_layer.launch,
        "fp8": cases_matrix.fp8,
        "grouped": cases_matrix.grouped,
        "copy": cases_memory.copy,
        "sustained": cases_matrix.sustained,
    }


def _cases(suites: Sequence[str], quick: bool) -> list[Case]:
    """Cases of the suites asked for, the most valuable first: a few of every suite, then those
    between them, so that a limit of time cuts detail and no suite."""
    from .cases import coarse_to_fine

    every = suites_of_one_gpu().items()
    chosen = [suite(quick) for name, suite in every if not suites or name in suites]
    # Both passes of a kernel stay together, as a fit compares them.
    series = [
        [[*alike] for _, alike in groupby(cases, lambda case: case.shape)] for cases in chosen
    ]
    return list(chain(*coarse_to_fine(series)))


def _measure_gpu(
    out: Path, cases: list[Case], bench: Bench, end: float, say: Progress
) -> dict[str, int]:
    """All cases on one GPU, one after the other."""
    from .recording import open_files, origin_of

    rows, skipped = open_files(out)
    origin = origin_of(bench.device)
    counts = {"measured": 0, "skipped": 0, "left": 0, "known": 0}
    for number, case in enumerate(cases, 1):
        what = {"suite": case.suite, "op": case.op, "dtype": case.dtype, **case.shape, **origin}
        what |= {"cold_cache": 1} if bench.cold else {}
        if what in rows:
            counts["known"] += 1
        elif time.monotonic() > end:
            counts["left"] += 1
        else:
            done = _measure_case(case, what, bench, rows, skipped)
            counts["measured" if done else "skipped"] += 1
            say(f"[{number}/{len(cases)}] {case.title}: {done or 'skipped'}")
    return counts


def _measure_case(
    case: Case, what: Mapping[str, object], bench: Bench, rows: RowFile, skipped: RowFile
) -> str:
    """Run one case and store it; what it took, '' where it did not run."""
    from .recording import six_digits
    from .timing import PowerLog

    try:
        with PowerLog(bench.device) as log:
            result = case.run(bench)
    except FAILURES as error:
        skipped.append({**what, "note": " ".join(str(error).split())[:200]})
        return ""
    finally:
        if bench.device == "cuda":
            import torch

            torch.cuda.empty_cache()
    rows.append({**what, **six_digits({**result, **log.columns()})})
    return f"{result['seconds'] * 1e6:.4g} us"


def _device(wanted: str) -> str:
    """'cuda' or 'cpu'; 'auto' takes a GPU where there is one."""
    import torch

    if wanted not in ("auto", "cuda", "cpu"):
        raise ValueError(f"unknown device {wanted!r}; known: auto, cuda, cpu")
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise ValueError("torch sees no GPU; --device cpu --quick shows that the code runs")
    return "cuda" if there and wanted != "cpu" else "cpu"


def add_options(parser: Any) -> None:
    """The options, shared with `plan3d calibrate measure`."""
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the CSV files")
    parser.add_argument(
        "--suite", action="append", default=[], metavar="S", help="only this suite; repeatable"
    )
    parser.add_argument("--device", default="auto", metavar="D", help="auto (default), cuda or cpu")
    parser.add_argument(
        "--limit-seconds",
        type=float,
        metavar="T",
        help="start no case after T seconds; the most valuable come first",
    )
    parser.add_argument(
        "--cold-cache", action="store_true", help="empty the caches before every call"
    )
    parser.add_argument("--quick", action="store_true", help="tiny shapes: a test of the code")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def progress_line(text: str) -> None:
    """Progress on stderr: one line that changes in a terminal, lines elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text[:110]}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command of its own."""
    parser = argparse.ArgumentParser(prog="measure.py", description="Measure this GPU.")
    add_options(parser)
    args = parser.parse_args(arguments)
    try:
        counts = measure(
            Path(args.out),
            suites=args.suite,
            device=args.device,
            quick=args.quick,
            cold=args.cold_cache,
            limit_seconds=args.limit_seconds,
            say=(lambda text: None) if args.quiet else progress_line,
        )
    except (ValueError, ModuleNotFoundError, OSError) as error:
        print(f"measure: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("measure: interrupted: the same call goes on from here", file=sys.stderr)
        return INTERRUPTED
    if counts:
        print(result_line(counts, args.out))
    return 0


def result_line(counts: Mapping[str, int], out: str) -> str:
    """What was done, in one line."""
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{told}; rows in {Path(out) / 'measurements.csv'}"


def _as_script() -> int:
    """Run this file from its folder as a package of its own, without plan3d."""
    here = Path(__file__).resolve().parent
    name = "plan3d_measure"
    spec = importlib.util.spec_from_file_location(
        name, here / "__init__.py", submodule_search_locations=[str(here)]
    )
    assert spec
    assert spec.loader
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    code: int = importlib.import_module(f"{name}.measure").main(sys.argv[1:])
    return code


if __name__ == "__main__":
    sys.exit(_as_script())
