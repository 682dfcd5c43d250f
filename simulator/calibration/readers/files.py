"""Any known tool's output as rows of measurements; the tool is told by what the file holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...base.documents import parse_json
from ...base.errors import InputError
from ...base.files import read_text
from . import histories, nccl_tests, training_logs
from .measurements import Measurements, as_rows, join, read_csv
from .rank_lines import without_prefixes
from .trainers import NAMES
from .training_logs import RunSizes

FORMATS = f"CSV of plan3d calibrate measure; nccl-tests text or JSON (-J); logs of {NAMES}"
OPERATIONS = tuple(nccl_tests.OPERATIONS.values())


@dataclass(frozen=True)
class Hints:
    """What a file does not say."""

    op: str | None = None
    """Collective of nccl-tests output."""
    gpu: str | None = None
    sizes: RunSizes = field(default_factory=RunSizes)
    nodes: int | None = None

    @property
    def of_nccl(self) -> nccl_tests.NcclHints:
        return nccl_tests.NcclHints(self.op, self.sizes.gpus, self.nodes)


def split_runs(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files of measurements, and those of whole runs in the columns of published ones."""
    runs = [path for path in paths if {"step_seconds", "tp"} <= set(_header(path))]
    return [path for path in paths if path not in runs], runs


def _header(name: str) -> list[str]:
    lines = _text(Path(name)).splitlines()
    return next((line.split(",") for line in lines if line.strip()[:1] not in ("", "#")), [])


def read_all(paths: Sequence[str], hints: Hints | None = None) -> Measurements:
    """Measurements of several files."""
    return join([read(path, hints or Hints()) for path in paths])


def read(name: str, hints: Hints) -> Measurements:
    """Measurements of one file, whatever wrote it."""
    if hints.op is not None and hints.op not in OPERATIONS:
        raise InputError(f"--op {hints.op!r} is not one of {', '.join(OPERATIONS)}")
    path = Path(name)
    text = _text(path)
    first = next((line for line in text.splitlines() if line.strip()[:1] not in ("", "#")), "")
    if "seconds" in first.split(",") and "suite" in first.split(","):
        return read_csv(path, text)
    rows = _rows(path, text, hints)
    if not rows:
        raise InputError(f"{name}: no measured row in it")
    extra = {"source": path.name} | ({"gpu": hints.gpu} if hints.gpu else {})
    return as_rows([{**row, **extra} for row in rows], path.name)


def _rows(path: Path, text: str, hints: Hints) -> list[dict[str, object]]:
    if text.lstrip().startswith("{") and not _is_of_records(text):
        return _json_rows(path, text, hints)
    if histories.is_history(text):
        text = histories.log_of_history(text, path.name)
    plain = without_prefixes(text)
    if nccl_tests.is_text(plain):
        return nccl_tests.read_text(plain, hints.of_nccl, path.name)
    if training_logs.is_log(text):
        return training_logs.read_log(text, hints.sizes, path.name)
    raise InputError(f"{path}: unknown format; read are: {FORMATS}")


def _is_of_records(text: str) -> bool:
    """Whether each line is a record of a trainer, in JSON or as Python prints a dict."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    several = len(lines) > 1 and lines[0].endswith("}")
    return (several or lines[0].startswith("{'")) and training_logs.is_log(text)


def _json_rows(path: Path, text: str, hints: Hints) -> list[dict[str, object]]:
    content = _json(path, text)
    if isinstance(content.get("traceEvents"), list):
        raise InputError(
            f"{path}: is a trace of a profiler, whose kernels no constant can be fitted to: "
            "'plan3d explain ... --trace FILE' compares it, timed steps calibrate"
        )
    try:
        if nccl_tests.is_json(content):
            return nccl_tests.read_json(content, hints.of_nccl, path.name)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{path}: malformed ({type(error).__name__}: {error})") from None
    if training_logs.is_log(text):
        return training_logs.read_log(text, hints.sizes, path.name)
    raise InputError(f"{path}: unknown format; read are: {FORMATS}")


def _json(path: Path, text: str) -> dict[str, object]:
    content = parse_json(text, str(path))
    return content if isinstance(content, dict) else {}


def _text(path: Path) -> str:
    """The text of a file, whatever else programs wrote into it."""
    return read_text(path, errors="replace")
