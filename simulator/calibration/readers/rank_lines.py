"""Lines of a log without the names of ranks that launchers put before them."""

from __future__ import annotations

import re
from collections import Counter

_PREFIX_FORMS = (
    r"\s*\d+:\s",
    r"\[\d+,\d+\](?:<std(?:out|err)>)?:\s?",
    r"\[[A-Za-z_]+\d+\]:\s?",
    r"\[(?!\d+/\d+\])(?:pod/)?[\w.-]+/[\w.-]+\]\s",
    r"[\w.-]+\s+\|\s",
    r"[A-Za-z][\w.-]*\d[\w.-]*:\s",
)
"""Names of ranks that mpirun, srun, torchrun, kubectl, Compose and pdsh put before lines: `0: ...`,
`[1,0]<stdout>: ...`, `[default0]:...`, `[pod/worker-0/train] ...`, `worker-0 | ...`, `node-1: ...`.
"""
LEAST_PREFIXED = 0.5
"""Share of the lines of a text that must have a prefix of one form."""


def split_prefixes(text: str) -> list[tuple[str, str]]:
    """(prefix, rest) of every line; prefixes are '' unless most lines have one of the same form."""
    lines = text.splitlines()
    form = _prefix_form(lines)
    if not form:
        return [("", line) for line in lines]
    found = [(form.match(line), line) for line in lines]
    return [(m[0].strip(), line[m.end() :]) if m else ("", line) for m, line in found]


def _prefix_form(lines: list[str]) -> re.Pattern[str] | None:
    """The form that most lines begin with."""
    told = [line for line in lines if line.strip()]
    for form in map(re.compile, _PREFIX_FORMS):
        if told and sum(bool(form.match(line)) for line in told) > LEAST_PREFIXED * len(told):
            return form
    return None


def without_prefixes(text: str) -> str:
    """The text without prefixes."""
    return "\n".join(line for _, line in split_prefixes(text)) + "\n"


def lines_of_one_rank(text: str, sign: str) -> str:
    """The lines of the rank that prints most lines with `sign`, without prefixes."""
    lines = split_prefixes(text)
    counts = Counter(prefix for prefix, line in lines if sign in line)
    if len(counts) < 2:
        return without_prefixes(text)
    ((rank, _),) = counts.most_common(1)
    return "\n".join(line for prefix, line in lines if prefix == rank) + "\n"
