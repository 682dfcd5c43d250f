"""Contents of the site's pages that are made when it is built: a hook of mkdocs.

A line `<!-- printed: COMMAND -->` becomes what `plan3d COMMAND` prints, `<!-- every verb -->` the
help of each verb with all its options, and `<!-- table: FILE.csv COLUMN... -->` a table of these
columns, whose first links to the column `url` where there is one. `<!-- alive -->` becomes what
software profiles say of what is in memory when, `<!-- notebook: NAME -->` the cells of
notebooks/NAME.ipynb with what they put out when they are run now.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import inspect
import io
import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
LINE = re.compile(r"^<!-- printed: (?P<command>.+) -->$", re.M)
TABLE = re.compile(r"^<!-- table: (?P<file>\S+) (?P<columns>.+) -->$", re.M)
NOTEBOOK = re.compile(r"^<!-- notebook: (?P<name>\w+) -->$", re.M)
EVERY_VERB = "<!-- every verb -->"
ALIVE = "<!-- alive -->"


def printed(command: str) -> str:
    """A block of code with what `plan3d COMMAND` prints."""
    from plan3d.cli.main import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(shlex.split(command))
    if code:
        raise ValueError(f"plan3d {command}: exit code {code}")
    return f"```text\n$ plan3d {command}\n{out.getvalue().rstrip()}\n```"


def verbs() -> str:
    """A section for each verb: its full help."""
    from plan3d.cli.verbs import VERBS

    return "\n\n".join(f"## {verb}\n\n{printed(f'help {verb}')}" for verb in VERBS)


def table(file: str, columns: list[str]) -> str:
    """A table of some columns of a CSV file of the repository."""
    with (Path(__file__).parents[1] / file).open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text))
    lines = [columns, ["---"] * len(columns)]
    for row in rows:
        first, *cells = (_cell(name, row[name]) for name in columns)
        lines.append([f"[{first}]({row['url']})" if "url" in row else first, *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def alive() -> str:
    """A table of the fields of stacks that say what is in memory when: their meaning, and each
    value with the stacks that have it and where it was read."""
    from plan3d.simulator.hardware import software, software_stack

    body = ast.parse(inspect.getsource(software.Software)).body[0].body
    meanings = {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    stacks = [software_stack.software_profile(name) for name in sorted(software_stack.SOFTWARE)]
    lines = ["| field | value | stacks | read in |", "|---|---|---|---|"]
    for field in software.ALIVE:
        lines.append(f"| **`{field}`** | | | *{meanings[field]}* |")
        found: dict[tuple[str, str], list[str]] = {}
        for stack in stacks:
            # What a stack inherits was read where its base says.
            source = stack.provenance[field].source.removeprefix(f"as {stack.base}, ")
            value = getattr(stack, field)
            shown = ", ".join(value) if isinstance(value, tuple) else f"{value:g}"
            if isinstance(value, bool):
                shown = "yes" if value else "no"
            found.setdefault((shown or "none", source.partition(": ")[2]), []).append(stack.name)
        lines += [
            f"| | {value} | {', '.join(names)} | {source} |"
            for (value, source), names in found.items()
        ]
    return "\n".join(lines)


def _cell(column: str, text: str) -> str:
    """A cell as Markdown has it; calls are code."""
    safe = text.replace("|", "\\|")
    return f"`{safe}`" if column == "call" else safe.replace("*", "\\*")


def notebook(name: str) -> str:
    """A notebook run from a fresh kernel, as Markdown."""
    import nbformat
    from nbclient import NotebookClient

    opened = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(opened, timeout=600).execute()
    return cells(json.loads(nbformat.writes(opened)))


def cells(executed: dict[str, Any]) -> str:
    """The cells of an executed notebook and their outputs as Markdown."""
    parts = []
    for cell in executed["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(one) for one in cell.get("outputs", ())]
    return "\n\n".join(parts)


def _output(one: dict[str, Any]) -> str:
    """A picture, a table of HTML or text."""
    data = one.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"].split())
        return f'<img alt="output of the cell above" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        # Markdown ends a block of HTML at an empty line.
        return re.sub(r"\n\s*\n", "\n", "".join(data["text/html"]))
    text = "".join(one.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with its lines filled; mkdocs calls it for each page."""
    for line, made in ((EVERY_VERB, verbs), (ALIVE, alive)):
        if line in markdown:
            markdown = markdown.replace(line, made())
    markdown = TABLE.sub(lambda line: table(line["file"], line["columns"].split()), markdown)
    markdown = NOTEBOOK.sub(lambda line: notebook(line["name"]), markdown)
    return LINE.sub(lambda line: printed(line["command"]), markdown)
