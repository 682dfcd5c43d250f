"""Conditions and arithmetic of a shell script: true, false or unknown; a number or unknown.

Evaluated are `true` and `false`, and comparisons of words and numbers in `[ ]`, `[[ ]]` and
`(( ))`, joined by && and ||.
Tests of files, and of variables that the script does not assign, are unknown.
Source: Bash Reference Manual, 6.4 (conditional expressions) and 6.5 (shell arithmetic).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plan3d.simulator.base.units import is_whole

from .lexer import Operator, Token
from .words import CONDITION, Word, matches, pattern_text

if TYPE_CHECKING:
    from .variables import Variables

Truth = bool | None
"""None where it is unknown."""
Lookup = Callable[[str], int | None]
"""The number in a variable; None where it is unknown or no number."""
LONGEST_EXPRESSION = 500
"""Characters of the longest arithmetic expression that is evaluated."""
LARGEST_NUMBER = 2**63
"""Beyond it the numbers of a shell wrap around."""
UNRESOLVED = "\0"
"""A word of a condition that has no value in the file."""
_COMPARED = ("=", "==", "!=")
_COMMANDS = {"true": True, "false": False}
"""Commands that are conditions."""
_BRACKETS = {"[": "]", "[[": "]]"}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    **{"-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt},
    **{"-lt": operator.lt, "-ge": operator.ge, "-le": operator.le},
}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|[1-9]\d?#(?:\w+|\$\{?[A-Za-z_]\w*\}?)|\d+)(?!\w)"
    r"|\$?(?P<name>[A-Za-z_]\w*)|\$\{(?P<braced>[A-Za-z_]\w*)\}"
    r"|(?P<operator>&&|\|\||\*\*|<<|>>|[=!<>]=|(?:\$(?=\(\())?\(|[-+*/%<>!?:)&|^~]))"
)
_NAMES = re.compile(r"[A-Za-z_]\w*")
_PRECEDENCE = {
    **{"||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6},
    **{"<": 7, ">": 7, "<=": 7, ">=": 7, "<<": 8, ">>": 8},
    **{"+": 9, "-": 9, "*": 10, "/": 10, "%": 10, "**": 11},
}
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt},
    **{"<=": operator.le, ">=": operator.ge, "+": operator.add, "-": operator.sub},
    **{"*": operator.mul, "&": operator.and_, "|": operator.or_, "^": operator.xor},
    **{"<<": operator.lshift, ">>": operator.rshift, "**": operator.pow},
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
}


def condition_truth(
    words: Sequence[str],
    unknown: str,
    lookup: Lookup = lambda name: None,
    any_case: bool = False,
) -> Truth:
    """The truth of a condition; words that contain `unknown` have no value in the file, `lookup`
    has the numbers of variables for arithmetic, and `any_case` is `shopt -s nocasematch`."""
    terms: list[list[str]] = [[]]
    joints: list[str] = []
    bracket, first_inside = "", 0
    for word in words:
        term = terms[-1]
        if word in _BRACKETS and set(term) <= {"!"}:
            bracket, first_inside = word, len(joints)
        elif bracket and word == _BRACKETS[bracket]:
            bracket = ""
        inside = bracket == "[" and len(term) >= 3
        joint = {"-a": "&&", "-o": "||"}.get(word, "") if inside else word
        if joint not in ("&&", "||"):
            term.append(word)
            continue
        if bracket and {*joints[first_inside:]} - {joint}:
            return None
        joints.append(joint)
        term += [_BRACKETS[bracket]] if bracket else []
        terms.append([bracket] if bracket else [])
    out = _comparison(terms[0], unknown, lookup, any_case)
    for joint, term in zip(joints, terms[1:], strict=True):
        other = _comparison(term, unknown, lookup, any_case)
        out = both(out, other) if joint == "&&" else either(out, other)
    return out


def read_condition(
    tokens: Sequence[Token], begin: int, closing: str, variables: Variables
) -> tuple[Truth, list[str], int]:
    """The truth of the words up to `then`, or up to and with a closing bracket; of one word for ''.
    Also what it depends on, and the place after them."""
    words: list[str] = []
    operands: dict[int, Word] = {}
    dependences: list[str] = []
    brackets, place = "", begin
    while place < len(tokens):
        token = tokens[place]
        ends = isinstance(token, Word) and token.unquoted and token.text == closing
        if ends and closing == "then":
            break
        if isinstance(token, Word) and token.text.startswith("((") and token.parts[0].raw:
            words.append(token.text)
            value = arithmetic(token.text[2:-2], variables.number)
            dependences += variables.dependences(token) if value is None else []
        elif isinstance(token, Word):
            unknown = variables.dependences(token)
            sign = words[-1] if words[-1:] in (["-z"], ["-n"]) else ""
            is_unset = bool(sign) and variables.is_unset(token, has_default=sign == "-n")
            dependences += [] if is_unset else unknown
            is_pattern = brackets == "[[" and words[-1:] and words[-1] in _COMPARED
            text = pattern_text(variables.expanded_parts(token)) if is_pattern else ""
            value_text = UNRESOLVED if unknown else text or variables.text(token)
            brackets = value_text if value_text in ("[", "[[") else brackets
            words.append("" if is_unset else value_text)
            operands[len(words) - 1] = token
        elif isinstance(token, Operator) and token.text not in ("\n", ";"):
            words.append(token.text)
        elif isinstance(token, Operator) and closing == "]":
            break
        place += 1
        if ends or not closing:
            break
    for at, word in enumerate(words):
        if word in (*_COMPARED, "-eq", "-ne") and 0 < at < len(words) - 1:
            for one, other in ((at - 1, at + 1), (at + 1, at - 1)):
                if words[one] == UNRESOLVED != words[other] and one in operands:
                    variables.note_choice(operands[one], words[other])
    truth = condition_truth(words, UNRESOLVED, variables.number, variables.any_case)
    return truth, dependences, place


def is_comparison(tokens: Sequence[Token]) -> bool:
    """Whether a condition compares words, whose values are choices of a script."""
    return any(isinstance(one, Word) and one.text in (*_COMPARED, "-eq", "=~") for one in tokens)


def _comparison(words: Sequence[str], unknown: str, lookup: Lookup, any_case: bool) -> Truth:
    """One comparison between its brackets, or one arithmetic expression."""
    if words[:1] == ["!"]:
        return negation(_comparison(words[1:], unknown, lookup, any_case))
    if len(words) == 1 and words[0].startswith("(("):
        value = arithmetic(words[0][2:-2], lookup)
        return None if value is None else value != 0
    if len(words) == 1 and words[0] in _COMMANDS:
        return _COMMANDS[words[0]]
    if words[:1] == ["test"]:
        words = ["[", *words[1:], "]"]
    if len(words) < 2 or _BRACKETS.get(words[0]) != words[-1]:
        return None
    inner, is_double = list(words[1:-1]), words[0] == "[["
    if any(unknown in word for word in inner):
        return None
    match inner:
        case ["!", *rest]:
            rest = [words[0], *rest, words[-1]]
            return negation(_comparison(rest, unknown, lookup, any_case))
        case [left, "=" | "==" | "!=" as sign, right]:
            same = matches(left, right, any_case) if is_double else left == right
            return same is not (sign == "!=")
        case [left, "=~", right] if is_double:
            return _is_found(right, left, any_case)
        case [left, comparison, right] if comparison in _COMPARISONS:
            return _compared(comparison, left, right, lookup if is_double else None)
        case [word] if _PLAIN.fullmatch(word):
            return word != ""
        case ["-z", word]:
            return word == ""
        case ["-n", word]:
            return word != ""
    return None


_PLAIN = re.compile(r"[\w./:,+ -]*")
_PATTERN = re.compile(r"(?:[\w ./:^$,]|-(?!-)|\|(?!\|)|\((?!\?)|\)(?![*+?{])|\[(?!\[)|[\]*+?])*")
"""Regular expressions that are tried: without escapes, extensions and groups that repeat."""


def _is_found(pattern: str, text: str, any_case: bool) -> Truth:
    """Whether a regular expression is found in a text; unknown for one that might take long."""
    repeats = sum(map(pattern.count, "*+?"))
    if repeats > 2 or len(pattern) > 100 or len(text) > 200 or not _PATTERN.fullmatch(pattern):
        return None
    try:
        return re.search(pattern, text, re.I if any_case else 0) is not None
    except re.error:
        return None


def _compared(comparison: str, left: str, right: str, lookup: Lookup | None) -> Truth:
    """A comparison of numbers; of arithmetic expressions where there are variables to look up."""
    numbers = []
    for text in (left, right):
        if is_whole(text.removeprefix("-")):
            numbers.append(int(text))
            continue
        value = arithmetic(text, lookup) if lookup else None
        if value is None:
            return None
        numbers.append(value)
    return _COMPARISONS[comparison](*numbers)


def both(one: Truth, other: Truth) -> Truth:
    """The truth of A && B."""
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def either(one: Truth, other: Truth) -> Truth:
    """The truth of A || B."""
    if one is True or other is True:
        return True
    return None if one is None or other is None else False


def negation(truth: Truth) -> Truth:
    """The truth of ! A."""
    return None if truth is None else not truth


def arithmetic(text: str, lookup: Lookup) -> int | None:
    """The value of an arithmetic expression; None where it is unknown or no expression.

    >>> arithmetic("TP > 1 ? 2 * TP : 0", {"TP": 4}.get)
    8
    """
    try:
        expression = _Expression(_expression_tokens(text), lookup)
        value = expression.conditional()
        expression.expect("")
    except (ValueError, ZeroDivisionError, RecursionError):
        return None
    return value if value is not None and abs(value) < LARGEST_NUMBER else None


def _expression_tokens(text: str) -> list[str]:
    """Numbers, names and operators. Raises ValueError where there is anything else."""
    text = text.strip()
    if len(text) > LONGEST_EXPRESSION:
        raise ValueError(text)
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match:
            raise ValueError(text)
        operand = match["number"] or match["name"] or match["braced"]
        tokens.append(operand or match["operator"].lstrip("$"))
        at = match.end()
    return tokens


@dataclass
class _Expression:
    """A recursive descent over the tokens of an expression; values are None where unknown."""

    tokens: list[str]
    lookup: Lookup
    position: int = 0

    def next_token(self) -> str:
        """The token to be taken; '' at the end."""
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def expect(self, token: str) -> None:
        """Take this token. Raises ValueError where another comes."""
        if self.next_token() != token:
            raise ValueError(token)
        self.position += 1

    def conditional(self) -> int | None:
        """A ? B : C, or an expression of binary operators."""
        test = self.binary(1)
        if self.next_token() != "?":
            return test
        self.position += 1
        if_true = self.conditional()
        self.expect(":")
        if_false = self.conditional()
        return None if test is None else if_true if test else if_false

    def binary(self, lowest: int) -> int | None:
        """Operators of a precedence, or of higher ones."""
        left = self.unary()
        while _PRECEDENCE.get(self.next_token(), 0) >= lowest:
            symbol = self.next_token()
            self.position += 1
            right = self.binary(_PRECEDENCE[symbol] + (symbol != "**"))
            left = _combined(symbol, left, right)
        return left

    def unary(self) -> int | None:
        """A number, a variable, an expression in brackets, or a sign before one of these."""
        token = self.next_token()
        self.position += 1
        if token == "(":
            value = self.conditional()
            self.expect(")")
            return value
        if token in ("-", "+", "!", "~"):
            value = self.unary()
            if value is None or token == "+":
                return value
            return {"-": -value, "!": int(not value), "~": ~value}[token]
        if token[:1].isdecimal():
            return _number(token, self.lookup)
        if token.isidentifier():
            return self.lookup(token)
        raise ValueError(token)


def _number(token: str, lookup: Lookup) -> int | None:
    """A whole number of C, or one of another base, as in 16#ff or 10#$RANK."""
    base, mark, digits = token.partition("#")
    if not mark:
        is_octal = token.startswith("0") and token.isdecimal() and len(token) > 1
        return int(token, 8 if is_octal else 0)
    if digits.startswith("$"):
        value = lookup(digits.strip("${}"))
        digits = "" if value is None else str(value)
    return int(digits, int(base)) if digits else None


def _combined(symbol: str, left: int | None, right: int | None) -> int | None:
    """The value of one binary operator."""
    if symbol in ("&&", "||"):
        one, other = (None if value is None else value != 0 for value in (left, right))
        truth = both(one, other) if symbol == "&&" else either(one, other)
        return None if truth is None else int(truth)
    if left is None or right is None:
        return None
    if symbol in ("<<", ">>", "**") and not (0 <= right < 63 and abs(left) < LARGEST_NUMBER):
        return None
    return int(_OPERATIONS[symbol](left, right))


_ASSIGNING = re.compile(r"(?<![=!<>])=(?!=)|(?:<<|>>)=|\+\+|--")
"""What changes a variable in an arithmetic expression."""


def assigning(text: str) -> list[str]:
    """The expressions of `(( ))` that assign, each for itself; none where it only compares."""
    if not _ASSIGNING.search(text):
        return []
    return [text] if set("()[]") & {*text} else text.split(",")


MOST_DEPENDENCES = 100
"""Names on which the branches of one condition depend that are noted."""


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
        return both(self.outer_truths[-1], self.branch_truths[-1]) if self.branch_truths else True

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
            self.branch_truths[-1] = both(negation(earlier), truth)
            self.earlier_truths[-1] = either(earlier, truth)
            own = self.dependences[-1]
            if truth is None and len(own) < MOST_DEPENDENCES:
                own += [name for name in dependences if name not in own]

    def here(self) -> tuple[Truth, Truth]:
        """Whether this branch and an earlier one are taken."""
        return (self.branch_truths or [None])[-1], (self.earlier_truths or [None])[-1]

    def go_back(self, before: tuple[Truth, Truth]) -> None:
        """Take up the branch of `here` again."""
        if self.branch_truths:
            self.branch_truths[-1], self.earlier_truths[-1] = before

    def leave(self) -> None:
        """Leave a condition or a loop: `fi` or `done`."""
        if self.branch_truths:
            self.branch_truths.pop()
            self.earlier_truths.pop()
            self.outer_truths.pop()
            self.dependences.pop()


@dataclass
class CommandList:
    """Where the reader of a script is in such a list."""

    status: Truth = None
    """Whether the last command succeeded."""
    guard: Truth = True
    """Whether the command after && or || is reached."""
    negates: bool = False
    """The status of the command is the opposite: `! COMMAND`."""
    dependences: list[str] = field(default_factory=list)
    """What the truths of tests in the list depend on."""

    def succeed(self, truth: Truth) -> None:
        """Set the status after a command with this truth, where it is reached."""
        truth = negation(truth) if self.negates else truth
        if self.guard is None:
            self.status = truth if truth is self.status else None
        elif self.guard:
            self.status = truth

    def join(self, operator: str) -> None:
        """Go on behind an operator, which ends the list unless it joins its commands."""
        if operator in ("|", "|&"):
            return
        self.negates = False
        if operator in ("&&", "||"):
            self.guard = self.status if operator == "&&" else negation(self.status)
        elif operator != "(":
            self.end()

    def end(self) -> None:
        """Begin another list."""
        self.guard, self.dependences = True, []
