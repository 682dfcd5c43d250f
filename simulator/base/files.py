"""Input files: every file that plan3d reads is read here.

Regular files of bounded size; gzip is unpacked, to a bounded size; text is UTF-8, with or without
a byte order mark. Anything else is an InputError that names the file.

A question that comes over a network carries its files (`attached`): then there are these, and
those of the package.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    import sqlite3
    from importlib.resources.abc import Traversable

LARGEST = 64_000_000
"""Bytes of the largest file, and of what one unpacks to."""
LARGEST_STREAM = 4_000_000_000
"""Bytes of the largest file that is read piece by piece, unpacked."""
_PIECE = 4_000_000
"""Bytes of a piece."""
_GZIP = b"\x1f\x8b"
_SQLITE = b"SQLite format 3\0"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_SIMULATOR = Path(__file__).parents[1]
SHIPPED = tuple(str(_SIMULATOR.parent / name) for name in (_SIMULATOR.name, "hardware_profiles"))
"""Folders of the package that hold data."""
_ATTACHED: ContextVar[Mapping[str, bytes] | None] = ContextVar("attached", default=None)
_READ: ContextVar[set[str]] = ContextVar("read")
"""Paths of attached files that were read."""


@contextmanager
def attached(texts: Mapping[str, str]) -> Iterator[list[str]]:
    """Within, these texts by file name stand in place of the disk: no other file is read, or is
    said to be there, but the package's own. Gives the names that are not read, at its end."""
    names = {os.path.abspath(name): name for name in texts}
    token = _ATTACHED.set({path: texts[name].encode() for path, name in names.items()})
    read, unread = set[str](), list[str]()
    _READ.set(read)
    try:
        yield unread
        unread += (name for path, name in names.items() if path not in read)
    finally:
        _ATTACHED.reset(token)


def is_local() -> bool:
    """Whether the question is asked on this machine: files are those of the disk, and it may start
    processes."""
    return _ATTACHED.get() is None


def is_file(name: str | Path) -> bool:
    """Whether there is a file of that name; a text may be too long for any name."""
    attached = _ATTACHED.get()
    if attached is not None:
        return os.path.abspath(name) in attached
    try:
        return Path(name).is_file()
    except OSError:
        return False


def exists(name: str | Path) -> bool:
    """The same of a file, a folder or anything else."""
    return os.path.exists(name) if _ATTACHED.get() is None else is_file(name)


def is_folder(name: str | Path) -> bool:
    """The same of a folder."""
    return _ATTACHED.get() is None and os.path.isdir(name)


def _from_disk(place: Path | Traversable, where: str) -> bool:
    """Whether a file is read from the disk; InputError where it may not be."""
    attached = _ATTACHED.get()
    if attached is None or not isinstance(place, Path):
        return True
    path = os.path.abspath(place)
    if path in attached:
        _READ.get().add(path)
        return False
    if any(path.startswith(folder + os.sep) for folder in SHIPPED):
        return True
    raise InputError(f"{where}: cannot be read (a question to a server carries its files)")


def read_bytes(place: Path | Traversable, where: str = "", most: int = LARGEST) -> bytes:
    """The content of a regular file of at most `most` bytes, unpacked where it is gzip.

    `where` names it in errors, where that is not its path.
    """
    where = where or str(place)
    try:
        if not isinstance(place, Path):
            content = place.read_bytes()
        elif _from_disk(place, where):
            with os.fdopen(_open_regular(place, where), "rb") as file:
                content = file.read(most + 1)
        else:
            content = (_ATTACHED.get() or {})[os.path.abspath(place)]
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{where}: cannot be read ({why})") from None
    if content.startswith(_GZIP) and len(content) <= most:
        content = _gunzip(content, where, most)
    if len(content) > most:
        raise InputError(f"{where}: is larger than {most / 1e6:g} MB, the most that is read here")
    return content


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


def read_pieces(place: Path, most: int = LARGEST_STREAM) -> Iterator[str]:
    """The text of a regular file of any size up to `most` bytes, piece by piece, unpacked where it
    is gzip. InputError, after the pieces that could be read, where it breaks off."""
    import gzip
    import zlib

    if not _from_disk(place, str(place)):
        yield read_text(place, errors="replace")
        return
    decoder, read = codecs.getincrementaldecoder("utf-8-sig")("replace"), 0
    try:
        descriptor = _open_regular(place, str(place))
        with os.fdopen(descriptor, "rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if packed else file
            # read1 hands out what comes before a place where packed bytes break off.
            while piece := stream.read1(_PIECE):
                read += len(piece)
                if read > most:
                    raise InputError(
                        f"{place}: is larger than {most / 1e9:g} GB, the most that is read here"
                    )
                yield decoder.decode(piece)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{place}: cannot be read ({why})") from None


def read_database(place: Path, most: int = LARGEST_STREAM) -> sqlite3.Connection:
    """A connection that only reads an SQLite file of up to `most` bytes; InputError for another
    file."""
    import sqlite3

    if not _from_disk(place, str(place)):
        raise InputError(f"{place}: cannot be read (a question to a server carries text alone)")
    try:
        with os.fdopen(_open_regular(place, str(place)), "rb") as file:
            begin, size = file.read(len(_SQLITE)), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise InputError(f"{place}: cannot be read ({error.strerror or error})") from None
    if begin != _SQLITE:
        raise InputError(f"{place}: {'is no SQLite file' if size else 'is empty'}")
    if size > most:
        raise InputError(f"{place}: is larger than {most / 1e9:g} GB, the most that is read here")
    database = sqlite3.connect(f"{place.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    # Functions and views that a file brings along are not run.
    database.execute("PRAGMA trusted_schema = OFF")
    return database


def _open_regular(place: Path, where: str) -> int:
    """The descriptor of a regular file."""
    # Without O_NONBLOCK, open() would wait for the other end of a pipe.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(place, flags)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise InputError(f"{where}: cannot be read (it is {what})")
    return descriptor


def _gunzip(content: bytes, where: str, most: int) -> bytes:
    """What was packed, as far as one byte beyond `most`."""
    import gzip
    import io
    import zlib

    try:
        with gzip.open(io.BytesIO(content)) as file:
            return file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{where}: cannot be unpacked ({error})") from None
