"""Conditions of a shell script: true, false or unknown.

Evaluated are comparisons of words and numbers, in `[ ]` and `[[ ]]`, joined by && and ||. Tests of
files, and of variables that the script does not assign, are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plan3d.simulator.base.units import is_whole

from .words import CONDITION

Truth = bool | None
"""None where it is unknown."""


def condition_truth(words: Sequence[str], unknown: str) -> Truth:
    """The truth of a condition; words that contain `unknown` have no value in the file."""
    terms: list[list[str]] = [[]]
    joints: list[str] = []
    for word in words:
        if word in ("&&", "||"):
            joints.append(word)
            terms.append([])
        else:
            terms[-1].append(word)
    out = _comparison(terms[0], unknown)
    for joint, term in zip(joints, terms[1:], strict=True):
        other = _comparison(term, unknown)
        out = _and(out, other) if joint == "&&" else _or(out, other)
    return out


def _comparison(words: Sequence[str], unknown: str) -> Truth:
    """One comparison between its brackets."""
    inner = list(words[1:-1])
    if not words or (words[0], words[-1]) not in (("[", "]"), ("[[", "]]")):
        return None
    if any(unknown in word for word in inner):
        return None
    match inner:
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, "-eq" | "-ne" as operator, right] if is_whole(left) and is_whole(right):
            return (int(left) == int(right)) == (operator == "-eq")
        case ["-z", word]:
            return word == ""
        case ["-n", word]:
            return word != ""
    return None


def _and(one: Truth, other: Truth) -> Truth:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _or(one: Truth, other: Truth) -> Truth:
    if one is True or other is True:
        return True
    return None if one is None or other is None else False


@dataclass
class Branches:
    """The conditions around a line of a script, the innermost last."""

    branch_truths: list[Truth] = field(default_factory=list)
    """Whether each branch is taken, once its condition is reached."""
    earlier_truths: list[Truth] = field(default_factory=list)
    """Whether an earlier branch of the same condition is taken."""
    outer_truths: list[Truth] = field(default_factory=list)
    """Whether each condition is reached."""
    dependences: list[list[str]] = field(default_factory=list)
    """What the truths of each condition up to here depend on."""

    @property
    def reached(self) -> Truth:
        """Whether the line is reached."""
        return _and(self.outer_truths[-1], self.branch_truths[-1]) if self.branch_truths else True

    @property
    def condition(self) -> str:
        """What it depends on whether the line is reached; '' where that is known."""
        if self.reached is not None:
            return ""
        names = dict.fromkeys(name for names in self.dependences for name in names)
        names.pop(CONDITION, None)
        return " and ".join(names) or CONDITION

    def enter(self, truth: Truth, dependences: Sequence[str] = ()) -> None:
        """Enter a first branch: `if`, or the body of a loop."""
        self.outer_truths.append(self.reached)
        self.dependences.append([] if truth is not None else [*dependences])
        self.branch_truths.append(truth)
        self.earlier_truths.append(truth)

    def next_branch(self, truth: Truth, dependences: Sequence[str] = ()) -> None:
        """Go on to `elif` with its truth, or to `else` with True."""
        if self.branch_truths:
            earlier = self.earlier_truths[-1]
            remaining = None if earlier is None else not earlier
            self.branch_truths[-1] = _and(remaining, truth)
            self.earlier_truths[-1] = _or(earlier, truth)
            self.dependences[-1] += [] if truth is not None else [*dependences]

    def leave(self) -> None:
        """Leave a condition or a loop: `fi` or `done`."""
        if self.branch_truths:
            self.branch_truths.pop()
            self.earlier_truths.pop()
            self.outer_truths.pop()
            self.dependences.pop()
