"""Fills pages of the site with what plan3d prints: a hook of mkdocs (mkdocs.yml names it).

When the site is built, a line `<!-- printed: COMMAND -->` becomes what `plan3d COMMAND` prints, and
the line `<!-- every verb -->` the help of each verb with all its options.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from typing import Any

LINE = re.compile(r"^<!-- printed: (?P<command>.+) -->$", re.M)
EVERY_VERB = "<!-- every verb -->"


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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with its lines filled; mkdocs calls it for each page."""
    if EVERY_VERB in markdown:
        markdown = markdown.replace(EVERY_VERB, verbs())
    return LINE.sub(lambda found: printed(found["command"]), markdown)
