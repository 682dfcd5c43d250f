"""Input files: every file that plan3d reads is read here.

Regular files of bounded size; gzip is unpacked, to a bounded size; text is UTF-8, with or without
a byte order mark. Anything else is an InputError that names the file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

LARGEST = 64_000_000
"""Bytes of the largest file, and of what one unpacks to."""
_GZIP = b"\x1f\x8b"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def read_bytes(place: Path | Traversable, where: str = "", most: int = LARGEST) -> bytes:
    """The content of a regular file of at most `most` bytes, unpacked where it is gzip.

    `where` names it in errors, where that is not its path.
    """
    where = where or str(place)
    try:
        content = _read_regular(place, where, most)
        return _gunzip(content, where, most) if content.startswith(_GZIP) else content
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{where}: cannot be read ({why})") from None


def read_text(
    place: Path | Traversable, where: str = "", most: int = LARGEST, errors: str = "strict"
) -> str:
    """The text of a file; `errors` as in bytes.decode: 'replace' for logs, which may hold any
    bytes."""
    content, where = read_bytes(place, where, most), where or str(place)
    try:
        return content.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        wide = content.startswith(_UTF_16)
        kind = "it is UTF-16" if wide else f"byte {error.start + 1} is not UTF-8"
        raise InputError(f"{where}: cannot be read as text ({kind}; save it as UTF-8)") from None


def _read_regular(place: Path | Traversable, where: str, most: int) -> bytes:
    if not isinstance(place, Path):
        return place.read_bytes()
    # Without O_NONBLOCK, open() would wait for the other end of a pipe.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(place, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise InputError(f"{where}: cannot be read (it is {what})")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return _check_size(file.read(most + 1), where, most)
    finally:
        os.close(descriptor)


def _gunzip(content: bytes, where: str, most: int) -> bytes:
    import gzip
    import io
    import zlib

    try:
        with gzip.open(io.BytesIO(content)) as file:
            return _check_size(file.read(most + 1), where, most)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{where}: cannot be unpacked ({error})") from None


def _check_size(content: bytes, where: str, most: int) -> bytes:
    if len(content) > most:
        raise InputError(f"{where}: is larger than {most / 1e6:g} MB, the most that is read here")
    return content
