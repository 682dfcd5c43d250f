"""Which chip a GPU's name names, and whether rows were measured on that of a base profile."""

from __future__ import annotations

import re

from ...base.errors import CalibrationError
from ...hardware.cluster import Cluster
from ...hardware.profile_file import profile_names

_CHIP = re.compile(r"\b(RTX(?: PRO)?(?: A)?|GB|GH|MI|[ABHLTV]) ?(\d+[A-Z]?)\b")

RELATED = (
    {"A100", "A800"},
    {"H100", "H200", "H800", "H20", "GH200"},
    {"B200", "GB200", "B300", "GB300"},
    {"MI300X", "MI325X"},
    {"MI350X", "MI355X"},
)
"""Chips of one die, with other memory or links: rows of one may be fitted onto another."""


def chip(name: str) -> str:
    """'H100' of 'NVIDIA H100 80GB HBM3' and of 'H100-80GB-SXM5'; '' of a name that has none."""
    found = _CHIP.search(re.sub(r"[\s_-]+", " ", name.upper()))
    return "".join(found.groups()).replace(" ", "") if found else ""


def check(gpus: tuple[str, ...], base: str, machine: Cluster) -> None:
    """CalibrationError where rows name a GPU that has a profile of its own, and the base is of an
    unrelated one; a GPU that no profile is of may have any base."""
    own = chip(machine.accelerator.name)
    for gpu in gpus:
        measured = chip(gpu)
        alike = any({measured, own} <= chips for chips in RELATED)
        if not measured or not own or measured == own or alike:
            continue
        of = [
            name
            for name in profile_names()
            if chip(Cluster.profile(name, nodes=1).accelerator.name) == measured
        ]
        if of:
            raise CalibrationError(
                f"the rows were measured on {gpu}, and --base {base} is of {own}: give --base "
                f"{' or '.join(of)}"
            )
