"""Files of results that survive an interruption, and the origin of their rows."""

from __future__ import annotations

import csv
import datetime
import io
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from .columns import COLUMNS, IDENTITY
from .timing import smi

Row = Mapping[str, object]


class RowFile:
    """A CSV that grows by whole rows and knows which cases it holds; ValueError where the file
    there has other columns."""

    def __init__(self, path: Path, columns: tuple[str, ...] = COLUMNS) -> None:
        self.path, self.columns = path, columns
        self.done: set[tuple[str, ...]] = set()
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]  # an interruption may have cut the last line short
        if whole:
            self.done.update(map(identity, _rows(path, whole, columns)))
        else:
            whole = ",".join(columns).encode() + b"\n"
        if whole != text:
            path.write_bytes(whole)

    def __contains__(self, row: Row) -> bool:
        return identity(row) in self.done

    def append(self, row: Row) -> None:
        """Write one row in one piece and remember it."""
        line = io.StringIO()
        values = [row.get(name, "") for name in self.columns]
        csv.writer(line, lineterminator="\n").writerow(values)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line.getvalue())
        self.done.add(identity(row))


def identity(row: Row) -> tuple[str, ...]:
    """What makes two rows the same measurement."""
    return tuple(str(row.get(name, "")) for name in IDENTITY)


def _rows(path: Path, text: bytes, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of a text with such columns."""
    try:
        table = csv.DictReader(text.decode("utf-8").split("\n"), restval="")
        if tuple(table.fieldnames or ()) == columns:
            return list(table)
    except (csv.Error, UnicodeDecodeError):
        raise ValueError(f"{path} is not a CSV file: choose another folder") from None
    raise ValueError(f"{path} has other columns: choose another folder")


def open_files(out: Path) -> tuple[RowFile, RowFile]:
    """The measurements in a folder, which is made, and the notes on what did not run."""
    out.mkdir(parents=True, exist_ok=True)
    notes = out / "skipped.csv"
    return RowFile(out / "measurements.csv", COLUMNS), RowFile(notes, (*IDENTITY, "note"))


def six_digits(result: Mapping[str, float | str]) -> dict[str, str]:
    """Results with six digits."""
    return {
        name: value if isinstance(value, str) else f"{value:.6g}" for name, value in result.items()
    }


COMMUNICATION_VARIABLES = ("NCCL_", "RCCL_", "FI_", "UCX_", "CUDA_DEVICE_MAX_CONNECTIONS")
"""How variables begin that change what a collective does."""


def communication_of(device: str) -> dict[str, str]:
    """Version of NCCL, and the settings that it was given."""
    import torch

    version = torch.cuda.nccl.version() if device == "cuda" else ()
    given = [
        f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(COMMUNICATION_VARIABLES)
    ]
    return {"nccl": ".".join(map(str, version)), "environment": " ".join(given)}


def origin_of(device: str) -> dict[str, str]:
    """GPU, driver, torch and date of a row."""
    import torch

    gpu, driver = f"cpu {platform.machine()}", ""
    if device == "cuda":
        gpu = torch.cuda.get_device_name()
        try:
            driver = smi("driver_version")[0]
        except (OSError, ValueError, IndexError):
            driver = ""
    return {
        "gpu": gpu,
        "driver": driver,
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "source": "plan3d calibrate measure",
    }
