"""How is a shell script prepared for a lexer? Comments and here-documents out, line marks in.

A mark is a word of its own, so that the line of every word is known after the lexer has joined
continuations and quotations. `,` marks a line that continues a command, `.` one that begins one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MARK = re.compile(r"\x02(\d+)([.,])\x03")
_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_TARGET = re.compile(r">\s*(\S+)")


@dataclass(frozen=True, slots=True)
class HereDocument:
    """Text that a script writes into a file."""

    target: str
    text: str
    line: int
    """The first line of the text."""


def mark(line: int, kind: str) -> str:
    """The word that says which line follows."""
    return f"\x02{line}{kind}\x03"


def without_documents(text: str) -> tuple[str, list[HereDocument]]:
    """The script with its here-documents left blank, and those."""
    out: list[str] = []
    documents: list[HereDocument] = []
    end, target, start, body = "", "", 0, [""]
    for number, line in enumerate(text.splitlines(), 1):
        if end:
            out.append("")
            if line.strip() != end:
                body.append(line)
                continue
            documents.append(HereDocument(target, "\n".join(body), start))
            end = ""
            continue
        found = None if "<<<" in line else _HERE.search(line)
        if found:
            line = line.replace(found[0], " ")
            named = _TARGET.search(line)
            end, target = found[2], named[1].strip("\"'") if named else ""
            start, body = number + 1, []
        out.append(line)
    return "\n".join(out), documents


def marked(text: str) -> str:
    """The script without comments, with the number of each line before it."""
    out, quote, line, at = [f"{mark(1, '.')} "], "", 1, 0
    while at < len(text):
        char, pair = text[at], text[at : at + 2]
        step = 1
        if char == "\\" and quote != "'":
            step = 2
            if pair == "\\\n":
                line += 1
                pair = f" {mark(line, ',')} "
            char = pair
        elif char == "#" and not quote and (at == 0 or text[at - 1] in " \t\n;"):
            end = text.find("\n", at)
            char, step = "", (len(text) if end < 0 else end) - at
        elif char == "\n":
            line += 1
            char = f"\n {mark(line, ',' if quote else '.')} "
        elif char in "\"'" and quote in ("", char):
            quote = "" if quote else char
        out.append(char)
        at += step
    return "".join(out)
