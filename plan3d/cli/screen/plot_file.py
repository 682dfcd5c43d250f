"""Files of pictures and pages: their formats, and whether they can be written."""

from __future__ import annotations

from plan3d.simulator.base.errors import InputError

from .output import check_writable

PICTURES = ("png", "svg", "pdf")


def check_file(name: str | None, option: str) -> None:
    """Raise InputError unless a file that is asked for can be written."""
    if name is not None:
        check_writable(name, option)


def form_of(name: str | None, option: str = "--plot") -> str:
    """The format that a file's name asks for, '' for none; InputError unless it can be written."""
    if name is None:
        return ""
    form = name.rpartition(".")[2].lower()
    if form not in PICTURES:
        raise InputError(f"{option} {name}: must end in .{', .'.join(PICTURES)}")
    check_writable(name, option)
    return form
