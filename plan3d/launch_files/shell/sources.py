"""Files that a script sources: their commands, where they stand beside it.

Source: Bash Reference Manual, 4.1 (Bourne shell builtins), `.`.
"""

from __future__ import annotations

import re

from plan3d.simulator.base.printable import one_line

from .inputs import open_parameters
from .loops import Leave, Runner
from .variables import LONGEST, read_tokens
from .words import Part, Word

_HERE = re.compile(r"\$PWD|\$\{PWD\}|`pwd`|\$\(pwd\)")
"""The folder in which a script is started: where it sources a file, that of the script."""
_ENVIRONMENT = re.compile(
    r"(?:\.(?:bashrc|profile|bash_profile)|bin/activate|conda\.sh|/setvars\.sh|^/etc/.*)$"
)
"""Files that set up a shell, and hold no flags."""


def run_source(reader: Runner) -> None:
    """`source FILE`: its contents, where it stands beside the script."""
    token = reader.tokens[reader.position] if reader.position < len(reader.tokens) else None
    if not isinstance(token, Word):
        return
    reader.position += 1
    variables = reader.script.variables
    parts = variables.expanded_parts(token)
    here = Word(tuple(Part(".", p.line) if _HERE.fullmatch(p.raw) else p for p in parts))
    path, read = here.text, variables.inputs.read_source
    text = read(path) if read and not variables.dependences(here) else None
    if text is None and _ENVIRONMENT.search(path):
        return
    if text is None or len(text) > LONGEST or "\x00" in text:
        needs = open_parameters((one, "") for one in variables.dependences(here))
        given = "".join(f"; --set {parameter.name}=VALUE" for parameter in needs)
        reader.script.missing_sources.append(f"{one_line(path)} (line {token.line}{given})")
        return
    try:
        reader.run(read_tokens(text.replace("\r\n", "\n"), path))
    except Leave as leave:
        if leave.kind != "return":
            raise
