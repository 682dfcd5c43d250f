"""The sessions in README.md and docs/: what plan3d prints, put between the marks by

    python -P tests/readme_session.py

and compared with what it prints now by tests/test_readme.py. Seconds of searching vary and are
left out of the comparison.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = (
    *("accuracy", "context_and_experts", "explain", "export", "glossary"),
    *("offload", "systems", "tensor_grids", "textbook"),
)
PAGES = (README, *(ROOT / "docs" / f"{name}.md" for name in DOCS))
SESSION = re.compile(r"(<!-- session: (?P<command>[^\n]+) -->\n```\n)(?P<output>.*?)(```\n)", re.S)


def printed(command: str) -> str:
    """What `plan3d COMMAND` writes to a pipe; sentences of -v are 100 columns wide."""
    from plan3d.cli.main import main

    out = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(out), contextlib.chdir(ROOT):
            main(shlex.split(command))
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return f"$ plan3d {command}\n{out.getvalue().strip()}\n"


def timeless(text: str) -> str:
    """The text without the seconds a search took."""
    return re.sub(r"\d[\d.]* (s|ms)(?=\n)", "T", text)


def main() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = SESSION.sub(lambda m: m[1] + printed(m["command"]) + m[4], text)
        page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
