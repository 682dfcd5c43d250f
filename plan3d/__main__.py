"""`python -m plan3d` and the `plan3d` command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .cli.main import main as run


def main() -> int:
    """Run the command line on the arguments of the process.

    The matrices here are small: threads of numpy's BLAS would cost more to start than they save.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell: >&-
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
