"""Writes terms/ and answers/ anew, and says what changed and by how much:

    python tests/goldens/write.py [NAME...]

NAME is `terms`, VERB/NAME of a question, or a part of it. Without names all is written, and answers
that belong to no question are removed. What is the same to the tolerance is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import asking
import term_records
from differences import differences, largest_change

MOST_SHOWN = 3
"""Places of a changed answer that are shown."""
TERMS = "terms"
"""What the per-term records are called."""


def main(names: Sequence[str]) -> int:
    """Write the records and answers of these names; the exit code."""
    if not names or TERMS in names:
        write_terms()
    of_answers = [name for name in names if name != TERMS]
    return write_answers(of_answers) if of_answers or not names else 0


def write_terms() -> None:
    """Write the per-term records, and print those that changed by term."""
    changed = term_records.write()
    print(f"{len(term_records.read())} records of terms, {len(changed)} changed, new or removed")
    for line in changed:
        print(f"  {line}")


def write_answers(names: Sequence[str]) -> int:
    """Write the answers to the questions of these names, or to all; the exit code."""
    questions = asking.questions()
    chosen = [q for q in questions if not names or any(name in q for name in names)]
    if not chosen:
        print(f"no question is called {', '.join(names)}", file=sys.stderr)
        return 2
    changes = [write(name, questions[name]) for name in chosen]
    if not names:
        remove_others(set(questions))
    changed = [change for change in changes if change is not None]
    size = sum(path.stat().st_size for path in asking.ANSWERS.rglob("*.json"))
    print(f"{len(chosen)} answers ({size:,} bytes in all), {len(changed)} changed or new")
    print(f"largest relative change of step_seconds: {max(changed, default=0.0):.3g}")
    return 0


def write(name: str, commands: list[str]) -> float | None:
    """Write one answer; how much its step seconds changed, None where the answer is the same."""
    place, found = asking.place(name), asking.answer(commands)
    kept = asking.kept(name) if place.exists() else None
    if kept is not None and not differences(kept, found):
        return None
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(asking.file_text(found), encoding="utf-8")
    return report(name, kept, found)


def report(name: str, kept: Any, found: Any) -> float:
    """Print how an answer changed; the largest relative change of its step seconds."""
    if kept is None:
        print(f"{name}: new")
        return 0.0
    places, change = differences(kept, found), largest_change(kept, found)
    said = "" if change is None else f", step_seconds by up to {change:.3g}"
    print(f"{name}: {len(places)} places differ{said}")
    for leaf in places[:MOST_SHOWN]:
        print(f"  {leaf}")
    return change or 0.0


def remove_others(names: set[str]) -> None:
    """Remove the answers that belong to no question."""
    for path in sorted(asking.ANSWERS.rglob("*.json")):
        name = path.relative_to(asking.ANSWERS).with_suffix("").as_posix()
        if name not in names:
            path.unlink()
            print(f"{name}: removed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
