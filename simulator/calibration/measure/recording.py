"""Files of results, and what they say about their origin."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from .columns import COLUMNS, IDENTITY
from .rowfile import RowFile
from .timing import smi


def open_files(out: Path) -> tuple[RowFile, RowFile]:
    """The measurements in a folder, which is made, and the notes on what did not run."""
    out.mkdir(parents=True, exist_ok=True)
    notes = out / "skipped.csv"
    return RowFile(out / "measurements.csv", COLUMNS), RowFile(notes, (*IDENTITY, "note"))


def rounded(result: Mapping[str, float | str]) -> dict[str, str]:
    """Results with six digits."""
    return {
        name: value if isinstance(value, str) else f"{value:.6g}" for name, value in result.items()
    }


SETTINGS = ("NCCL_", "RCCL_", "FI_", "UCX_", "CUDA_DEVICE_MAX_CONNECTIONS")
"""How variables begin that change what a collective does."""


def communication_of(device: str) -> dict[str, str]:
    """Version of NCCL, and the settings that it was given."""
    import torch

    version = torch.cuda.nccl.version() if device == "cuda" else ()
    given = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(SETTINGS)]
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
