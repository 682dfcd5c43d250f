"""`python -m plan3d` and the `plan3d` command."""

from __future__ import annotations

import os
import signal
import sys

TERMINATED, INTERRUPTED, INTERNAL = 143, 130, 70
"""Exit codes after SIGTERM and SIGINT, as shells have them, and after an internal error."""
GRACE, LONGEST_GRACE = 4.0, 25.0
"""CPU seconds of the process after SIGTERM in which the answer so far may be written, and seconds
of any kind: on a busy machine the first take longer."""


def main() -> int:
    """Run the command line on the arguments of the process.

    The matrices here are small: threads of numpy's BLAS would cost more to start than they save.
    """
    asked: list[int] = []
    try:
        _interrupt_when_terminated(asked)
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    return _ended(asked, code)


def _ended(asked: list[int], code: int) -> int:
    """The exit code: an error in the place of an interrupt, as extension modules raise that are
    being loaded, is one. What remains is Python's own end: a signal ends it as it ends any process,
    but for the SIGINT that follows a SIGTERM."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN if signal.SIGTERM in asked else signal.SIG_DFL)
    except KeyboardInterrupt:
        return _ended(asked, INTERRUPTED)
    if code == INTERNAL and asked:
        code = INTERRUPTED
    return TERMINATED if signal.SIGTERM in asked and code == INTERRUPTED else code


def _run() -> int:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell: >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    from .cli.main import main as run

    return run(sys.argv[1:])


def _interrupt_when_terminated(asked: list[int]) -> None:
    """SIGTERM acts as Ctrl-C does, also inside a solver that does not come back to Python until it
    is interrupted; the process ends at the latest after its grace. `asked` hears of both."""

    def interrupt(number: int, frame: object) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    if os.name != "posix":
        return
    import _thread

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _thread.start_new_thread(_pass_on, (reader,))


def _pass_on(reader: int) -> None:
    """Wait for SIGTERM among the numbers of signals that arrive."""
    import time

    while signal.SIGTERM not in os.read(reader, 64):
        pass
    os.kill(os.getpid(), signal.SIGINT)
    computed, latest = time.process_time() + GRACE, time.monotonic() + LONGEST_GRACE
    while time.process_time() < computed and time.monotonic() < latest:
        time.sleep(0.05)
    os._exit(TERMINATED)


if __name__ == "__main__":
    sys.exit(main())
