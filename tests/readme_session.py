"""The sessions in README.md and docs/: what plan3d prints, put between the marks by

    python -P tests/readme_session.py

and compared with what it prints now by tests/test_readme.py. Seconds of searching vary and are
left out of the comparison. Commands of the tutorial run in turn in a folder of its reader.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ("explain", "export", "systems", "tutorial")
TUTORIAL = "tutorial.md"
BROUGHT = {
    "qwen2-7b/config.json": "tests/simulator/workload/hf_configs/qwen2-7b.json",
    "steps.csv": "docs/examples/steps.csv",
}
"""Files that the reader of the tutorial has."""
PAGES = (README, *(ROOT / "docs" / f"{name}.md" for name in DOCS))
SESSION = re.compile(r"(<!-- session: (?P<command>[^\n]+) -->\n```\n)(?P<output>.*?)(```\n)", re.S)


def printed(command: str, folder: Path = ROOT) -> str:
    """What `plan3d COMMAND` writes to a pipe; sentences of -v are 100 columns wide."""
    from plan3d.cli.main import main

    out = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(out), contextlib.chdir(folder):
            main(shlex.split(command))
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return f"$ plan3d {command}\n{out.getvalue().strip()}\n"


def timeless(text: str) -> str:
    """The text without the seconds a search took."""
    return re.sub(r"\d[\d.]* (s|ms)(?=\n)", "T", text)


def sessions(page: Path) -> Iterator[tuple[re.Match[str], str]]:
    """The sessions of a page, each with what its command prints now."""
    found = SESSION.finditer(page.read_text(encoding="utf-8"))
    if page.name != TUTORIAL:
        yield from ((one, printed(one["command"])) for one in found)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, source in BROUGHT.items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / source, path)
        yield from ((one, printed(one["command"], Path(folder))) for one in found)


def main() -> None:
    for page in PAGES:
        new = iter([output for _, output in sessions(page)])
        text = SESSION.sub(lambda m, new=new: m[1] + next(new) + m[4], page.read_text("utf-8"))
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
