"""Blocks of the tokens of a shell script: loops, groups and the clauses of `case`.

A keyword is an unquoted word where a command begins.
Source: Bash Reference Manual, 3.2.5 (compound commands) and 3.3 (functions).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .lexer import REDIRECTION, HereDocument, Operator, Token
from .words import Word

LOOPS = ("for", "while", "until", "select")
_BEFORE_COMMANDS = ("then", "do", "else", "elif", "if", "while", "until", "{", "!", "time")
"""Keywords after which a command begins."""
Clause = tuple[list[Word], list[Token]]
"""Patterns of `case`, and the commands that they lead to."""


def text_of(token: Token) -> str:
    """The text of a word or an operator; '' of a here-document."""
    return "" if isinstance(token, HereDocument) else token.text


def _keywords(tokens: Sequence[Token], at: int, begins: bool = True) -> Iterator[tuple[int, str]]:
    """The words where commands begin, with their places; '' of words that are no keywords."""
    is_target = False
    for place in range(at, len(tokens)):
        token = tokens[place]
        if isinstance(token, Operator):
            is_target = bool(REDIRECTION.fullmatch(token.text))
            begins = begins or not is_target
        elif isinstance(token, Word) and not is_target:
            if begins:
                yield place, token.text if token.unquoted else ""
            begins = begins and token.unquoted and token.text in _BEFORE_COMMANDS
        else:
            is_target = False


def _closing(tokens: Sequence[Token], at: int, opening: Sequence[str], closing: str) -> int | None:
    """The place of the keyword that closes a block whose inside begins at a place."""
    depth = 1
    for place, text in _keywords(tokens, at):
        depth += (text in opening) - (text == closing)
        if not depth:
            return place
    return None


def loop_block(tokens: Sequence[Token], at: int) -> tuple[list[Token], list[Token], int] | None:
    """The tokens between a keyword of loops, which ends at a place, and `do`; those up to `done`;
    and the place after it. None where there is no such end."""
    begin = next((place for place, text in _keywords(tokens, at) if text == "do"), None)
    end = None if begin is None else _closing(tokens, begin + 1, LOOPS, "done")
    if begin is None or end is None:
        return None
    return list(tokens[at:begin]), list(tokens[begin + 1 : end]), end + 1


def function_block(tokens: Sequence[Token], at: int) -> tuple[str, list[Token], int] | None:
    """The name, the commands and the end of a function whose declaration begins at a place:
    `NAME() {...}` or `function NAME {...}`; None where none does, the end -1 where it has none."""
    texts = [text_of(token) for token in tokens[at : at + 8]]
    has_keyword = texts[:1] == ["function"]
    rest = texts[has_keyword:]
    name, place = "".join(rest[:1]), at + has_keyword + 1
    if rest[1:3] == ["(", ")"]:
        place += 2
    elif not has_keyword:
        return None
    while place < len(tokens) and text_of(tokens[place]) == "\n":
        place += 1
    if place >= len(tokens) or text_of(tokens[place]) != "{":
        return None
    end = _closing(tokens, place + 1, ("{",), "}")
    return (name, [], -1) if end is None else (name, list(tokens[place + 1 : end]), end + 1)


def case_clauses(tokens: Sequence[Token], at: int) -> tuple[list[Clause], int]:
    """The clauses of `case WORD` up to and with `esac`, and the place after it."""
    clauses: list[Clause] = []
    patterns: list[Word] = []
    body: list[Token] | None = None
    nested, begins = 0, False
    while at < len(tokens):
        token = tokens[at]
        at += 1
        text = text_of(token)
        is_keyword = isinstance(token, Word) and token.unquoted
        if is_keyword and text == "esac" and not nested:
            break
        if body is None:
            if isinstance(token, Word) and begins:
                patterns.append(token)
            elif text == ")":
                body = []
            begins = begins or text == "in"
            continue
        nested += is_keyword * ((text == "case") - (text == "esac"))
        if not nested and isinstance(token, Operator) and text in (";;", ";&", ";;&"):
            clauses.append((patterns, body))
            patterns, body = [], None
        else:
            body.append(token)
    return ([*clauses, (patterns, body)] if body is not None else clauses), at


_DEPTHS = {**dict.fromkeys(("if", "case", "{", *LOOPS), 1)}
_DEPTHS |= dict.fromkeys(("fi", "esac", "}", "done"), -1)
_STARTING = re.compile(r"\.py$|^(?:\S*sh|source|\.|eval|srun|sbatch|torchrun|python\d?)$")
"""Words of commands that may start a training."""


def only_way(tokens: Sequence[Token], at: int) -> bool | None:
    """Whether a script goes on only where a condition holds whose first branch begins at a place,
    or only where it does not: the other branch ends the script, and starts nothing. None where
    either may be."""
    bodies: dict[str, Sequence[Token]] = {}
    branch, begin, depth, ending = "then", at, 0, set()
    for place, text in _keywords(tokens, at):
        if depth == 0 and text in ("elif", "else", "fi"):
            bodies[branch] = tokens[begin:place]
            branch, begin = "else", place + 1
        if depth == 0 and text in ("elif", "fi"):
            break
        before = tokens[place - 1]
        is_joined = isinstance(before, Operator) and before.text in ("&&", "||")
        if depth == 0 and text == "exit" and not is_joined:
            ending.add(branch)
        depth += _DEPTHS.get(text, 0)
    else:
        return None
    body = bodies.get(next(iter(ending), ""), ())
    if text == "elif" or len(ending) != 1 or any(map(_STARTING.search, map(text_of, body))):
        return None
    return "else" in ending


def assigned_names(tokens: Sequence[Token]) -> list[str]:
    """The variables that commands of a block assign."""
    names = []
    for place, text in _keywords(tokens, 0):
        at = min(place + (text in ("local", "export", "declare")), len(tokens) - 1)
        name, equals, _ = text_of(tokens[at]).partition("=")
        names += [name.removesuffix("+")] * bool(equals and name.isidentifier())
    return list(dict.fromkeys(names))
