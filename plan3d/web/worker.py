"""A process that answers questions, one at a time: the command line without its disk.

It reads jobs and writes replies as lines of JSON. While a question is answered, its files are those
it carries (base.files.attached), and an audit hook refuses whatever else would touch the disk, the
network or another process. SIGINT ends a question; the process goes on.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import signal
import site
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from plan3d.simulator.base.documents import SCHEMA
from plan3d.simulator.base.files import attached

from ..cli.arguments.launch_file_arguments import launch_of
from ..cli.internal_error import INTERNAL
from ..cli.main import main as run_command
from ..screens.output import INTERRUPTED
from .presets import presets_record
from .questions import PRESETS
from .settings import NO_MEMORY

PROGRESS_SECONDS = 0.1
"""Between two messages about progress."""
WARM_UP = ("search", "llama-3.1-8b", "h100-sxm", "8", "--json")
"""A question that loads what most questions need."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DEVICES = frozenset((os.devnull, "/dev/urandom"))
OUT_OF_MEMORY = "the question needs more memory than this server gives one: narrow it"
FOLDERS = ("os.listdir", "os.scandir", "os.chdir", "os.walk", "glob.glob")
"""Audit events of reading folders."""
REFUSED = (
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"),
    *("os.chmod", "os.chown", "os.utime", "os.system", "os.exec", "os.fork", "os.forkpty"),
    *("os.posix_spawn", "os.spawn", "os.startfile", "os.kill", "os.putenv", "os.unsetenv"),
    *("subprocess.Popen", "pty.spawn", "socket.connect", "socket.bind", "socket.sendto"),
    *("socket.getaddrinfo", "socket.gethostbyname", "shutil.rmtree", "shutil.move"),
    *("shutil.copyfile", "tempfile.mkstemp", "tempfile.mkdtemp", "urllib.Request"),
)
"""Audit events of everything else that no question needs."""


class Guard:
    """Whether a question is being answered, and what is refused to it meanwhile."""

    def __init__(self) -> None:
        self.answering = False
        package = Path(__file__).parents[1]
        parts = (package.parent / n for n in ("simulator", "search", "hardware_profiles"))
        libraries = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "platlib")]
        libraries += [*site.getsitepackages(), site.getusersitepackages()]
        places = [*map(str, (package, *parts)), *libraries]
        self.readable = tuple(os.path.join(os.path.abspath(place), "") for place in places)

    def interrupt(self, number: int, frame: object) -> None:
        """SIGINT: ends the question, if there is one."""
        if self.answering:
            self.answering = False
            raise KeyboardInterrupt

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The hook of sys.addaudithook."""
        if not self.answering:
            return
        if event == "open":
            place, _, flags = arguments
            writes = isinstance(flags, int) and flags & WRITES
            if isinstance(place, int) or (not writes and self._is_readable(place)):
                return
        elif event in FOLDERS:
            if arguments and self._is_readable(arguments[0]):
                return
        elif event not in REFUSED:
            return
        raise PermissionError(f"a question may not {event}")

    def _is_readable(self, place: Any) -> bool:
        path = os.path.join(os.path.abspath(os.fsdecode(place)), "")
        return path.startswith(self.readable) or path.rstrip(os.sep) in DEVICES


def answer(
    words: Sequence[str], files: Mapping[str, str], progress: Callable[[int], None]
) -> tuple[int, str, list[str]]:
    """Exit code of a command, the JSON record that it prints, and the lines about it."""
    out, lines = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(lines)
    with attached(files) as unread, streams[0], streams[1]:
        code = run_command(words, progress=progress)
    launch_of.cache_clear()  # its key is the name of a file, which the next question may use too
    told = [line.removeprefix("plan3d: ") for line in lines.getvalue().splitlines()]
    record = out.getvalue()
    if record:
        told += [f"{name}: was not read, because the question does not name it" for name in unread]
    return code, record, told


def reply(job: Mapping[str, Any], guard: Guard, progress: Callable[[int], None]) -> dict[str, Any]:
    """The reply to one job."""
    words = [*job["words"]]
    if tuple(words) == PRESETS.words:
        return {"code": 0, "found": True, "body": json.dumps(presets_record()), "bytes": _memory()}
    at = words.index("--") if "--" in words else len(words)
    guard.answering = True
    try:
        code, record, lines = answer([*words[:at], "--json", *words[at:]], job["files"], progress)
        guard.answering = False
    except KeyboardInterrupt:
        code, record, lines = INTERRUPTED, "", ["interrupted"]
    finally:
        guard.answering = False
    if code == INTERNAL and "MemoryError" in lines[-1]:
        code, lines[-1] = NO_MEMORY, OUT_OF_MEMORY
    content = json.loads(record) if record else {"schema": SCHEMA, "error": (lines or [""]).pop()}
    content |= {"command": shlex.join(["plan3d", *words]), "warnings": lines}
    return {"code": code, "found": bool(record), "body": json.dumps(content), "bytes": _memory()}


def _memory() -> int:
    """Bytes of memory that the process has held at most; 0 where nothing tells."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _limit_memory(most: int) -> None:
    """Let allocations fail beyond so many bytes, where the system can."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def main(most_bytes: int, warm_up: bool) -> None:
    """Answer jobs until the other side closes."""
    jobs, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_memory(most_bytes)
    guard = Guard()
    signal.signal(signal.SIGINT, guard.interrupt)
    if warm_up:
        answer(WARM_UP, {}, lambda costed: None)
    os.chdir(os.sep)
    sys.addaudithook(guard.audit)
    _send(replies, {"ready": True})
    for line in jobs:
        latest = [0.0]

        def progress(costed: int, latest: list[float] = latest) -> None:
            now = time.monotonic()
            if now - latest[0] >= PROGRESS_SECONDS:
                latest[0] = now
                _send(replies, {"costed": costed})

        _send(replies, reply(json.loads(line), guard, progress))


def _send(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "1")
