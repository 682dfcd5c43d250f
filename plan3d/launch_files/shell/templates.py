"""Files that a script makes of templates: `sed "s/A/$X/" template.json | sed ... > file.json`.

Source: POSIX, XCU, sed (the s function), with literal patterns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .contents import Document, Script
from .variables import LONGEST
from .words import Word

_REPLACEMENT = re.compile(r"s(?P<mark>[/#|,@])([\w{}$.<>-]{1,100})(?P=mark)(.*)(?P=mark)(g?)", re.S)


def replaced_documents(script: Script) -> list[Document]:
    """The texts of templates after the replacements of `sed` in a pipe."""
    documents: list[Document] = []
    in_pipe = False
    for command in script.commands:
        if not command or command[0].text not in ("sed", "cat"):
            in_pipe = False
            continue
        expressions, paths = _arguments(command)
        if paths:
            read = script.variables.inputs.read_source
            text = read(paths[0]) if read else None
            in_pipe = text is not None and len(text) <= LONGEST
            documents += [Document(text or "", command[0].line)] if in_pipe else []
        if in_pipe:
            documents[-1] = _replaced(documents[-1], expressions, script)
    return documents


def _arguments(command: Sequence[Word]) -> tuple[list[Word], list[str]]:
    """The expressions of a command and the paths of its files."""
    words = [word for word in command[1:] if not re.fullmatch(r"-[a-zA-Z]", word.text)]
    expressions = [word for word in words if _REPLACEMENT.fullmatch(word.text)]
    return expressions, [word.text for word in words if word not in expressions]


def _replaced(document: Document, expressions: Sequence[Word], script: Script) -> Document:
    """The document after the replacements; what they depend on is what it depends on."""
    text, dependences = document.text, list(document.dependences)
    for word in expressions:
        match = _REPLACEMENT.fullmatch(word.text)
        if not match:
            continue
        _, old, new, every = match.groups()
        lines = [line.replace(old, new, -1 if every else 1) for line in text.split("\n")]
        text = "\n".join(lines)[:LONGEST]
        if old in document.text:
            dependences += script.variables.dependences(word, expanded=True)
    return Document(text, document.line, tuple(dict.fromkeys(dependences)))
