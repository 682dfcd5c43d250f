"""`python -m plan3d` and the `plan3d` command."""

from __future__ import annotations

import sys

from .cli import main as run


def main() -> int:
    """Run the command line on the arguments of the process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
