"""Blocks of the tokens of a shell script: loops, groups and the clauses of `case`.

A keyword is an unquoted word where a command begins.
Source: Bash Reference Manual, 3.2.5 (compound commands) and 3.3 (functions).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .lexer import REDIRECTION, HereDocument, Operator, Token
from .words import Word

LOOPS = ("for", "while", "until", "select")
_BEFORE_COMMANDS = ("then", "do", "else", "elif", "if", "while", "until", "{", "!", "time")
"""Keywords after which a command begins."""
Clause = tuple[list[Word], list[Token], str, int]
"""Patterns of `case`, the commands that they lead to, the operator that ends them, and how many of
the clauses behind have commands among them."""


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


def condition_end(tokens: Sequence[Token], at: int) -> int:
    """The place of `then` behind a condition that begins at a place, or the end."""
    return next((place for place, text in _keywords(tokens, at) if text == "then"), len(tokens))


def commands_of(tokens: Sequence[Token]) -> Iterator[tuple[int, str]]:
    """The places of the first words of commands, with the keywords among them."""
    return _keywords(tokens, 0)


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
            clauses.append((patterns, body, text, 0))
            patterns, body = [], None
        else:
            body.append(token)
    clauses += [(patterns, body, ";;", 0)] if body is not None else []
    for place in reversed(range(len(clauses) - 1)):
        patterns, body, ending, _ = clauses[place]
        if ending == ";&":
            _, following, last, count = clauses[place + 1]
            clauses[place] = patterns, [*body, Operator(";", 1), *following], last, count + 1
    return clauses, at


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
        name = name.removesuffix("+")
        names += [name] * bool(equals and name.isidentifier())
    return list(dict.fromkeys(names))


OPEN, CLOSE = "( ", " )"
"""Brackets of a subshell, which a script cannot write."""
_OPENING = {"if": "fi", "case": "esac", "{": "}"}
_OPENING |= dict.fromkeys(("for", "while", "until", "select"), "done")
_HEADERS = {"if": "then", "elif": "then"} | dict.fromkeys(("for", "while", "until", "select"), "do")
_PIPES = ("|", "|&")
_JOINTS = ("&&", "||", *_PIPES)
"""Operators after which a list of commands goes on: an end of the line behind them is left out."""
_CLAUSE_ENDS = (";;", ";&", ";;&")


@dataclass
class _Block:
    """Commands up to the word or the bracket that ends them."""

    end: str = ""
    list_begin: int = 0
    """Where, among the tokens made, the list of commands begins."""
    begin: int = 0
    """Where the command begins."""
    in_pipe: bool = False
    """The command reads from the one before."""


def with_subshells(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with brackets around every subshell: `( ... )`, every command of a pipe, and what
    runs behind `&`. What it assigns is its own, and where it exits the script goes on.

    Source: Bash Reference Manual, 3.2.3 (pipelines), 3.2.4 (lists), 3.2.5.3 (grouping commands).
    """
    return _Bracketing(tokens).made()


@dataclass
class _Bracketing:
    """One pass over the tokens."""

    tokens: Sequence[Token]
    at: int = 0
    out: list[Token] = field(default_factory=list)
    blocks: list[_Block] = field(default_factory=lambda: [_Block()])
    begins: bool = True
    """A command begins here."""

    def made(self) -> list[Token]:
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator) and not REDIRECTION.fullmatch(token.text):
                self._operator(token)
            elif isinstance(token, Word) and self.begins:
                self._first_word(token)
            elif isinstance(token, Operator):
                self._copy(2)
            else:
                self._copy(1)
        self._end_command()
        return self.out

    def _copy(self, count: int) -> None:
        self.out += self.tokens[self.at : self.at + count]
        self.at += count

    def _copy_up_to(self, *ends: str) -> None:
        """Copy the tokens up to and with a word or an operator."""
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self._copy(1)
            if not isinstance(token, HereDocument) and token.text in ends:
                return

    def _operator(self, token: Operator) -> None:
        block = self.blocks[-1]
        if token.text == "(" and self.begins:
            self.out.append(Operator(OPEN, token.line))
            self.at += 1
            self.blocks.append(_Block(")", len(self.out), len(self.out)))
            return
        if token.text == "(":
            self._copy_up_to(")")
            self.begins = True
            return
        if token.text == ")" and block.end == ")":
            self._end_command()
            self.blocks.pop()
            self.out.append(Operator(CLOSE, token.line))
            self.at, self.begins = self.at + 1, False
            return
        if token.text == "\n" and self._last in _JOINTS:
            self.at += 1
            return
        if token.text in _PIPES:
            self._bracket(block.begin)
        else:
            self._end_command()
        if token.text == "&":
            self._bracket(block.list_begin)
        self._copy(1)
        block.in_pipe = token.text in _PIPES
        self.begins, block.begin = True, len(self.out)
        if token.text not in _JOINTS:
            block.list_begin = len(self.out)
        if token.text in _CLAUSE_ENDS and block.end == "esac":
            self._pattern()

    def _first_word(self, token: Word) -> None:
        """The first word of a command: keywords begin and end blocks."""
        text, block = (token.text if token.unquoted else ""), self.blocks[-1]
        following = self.tokens[self.at + 1 : self.at + 3]
        is_function = [getattr(one, "text", "") for one in following] == ["(", ")"]
        self.begins = False
        if is_function:
            self._copy(3)
            self.begins = True
        elif text == "function":
            self._copy(2)
            self._copy(2 if self._is_here("(") else 0)
            self.begins = True
        elif text == block.end != "":
            self._end_command()
            self.blocks.pop()
            self._copy(1)
        elif text == "[[":
            self._copy_up_to("]]")
        elif text in ("!", "time"):
            self._copy(1)
            block.begin, self.begins = len(self.out), True
        elif text in ("then", "do", "else"):
            self._copy(1)
            self._begin()
        elif text in _OPENING or text == "elif":
            header = _HEADERS.get(text)
            if header:
                self._copy_up_to(header)
            else:
                self._copy(1)
            if text != "elif":
                self.blocks.append(_Block(_OPENING[text]))
            if text == "case":
                self._copy_up_to("in")
                self._pattern()
            self._begin()
        else:
            self._copy(1)
            if token.text.endswith("=") and self._is_here("("):
                self._copy_up_to(")")

    @property
    def _last(self) -> str:
        """The text of the last token that was made."""
        last = self.out[-1] if self.out else None
        return last.text if isinstance(last, Operator) else ""

    def _is_here(self, text: str) -> bool:
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        return isinstance(token, Operator) and token.text == text

    def _pattern(self) -> None:
        """Copy the pattern of a clause of `case`; leave `esac` where it is."""
        while self._is_here("\n"):
            self._copy(1)
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if isinstance(token, Word) and token.unquoted and token.text == "esac":
            self._begin()
            return
        self._copy_up_to(")")
        self._begin()

    def _begin(self) -> None:
        """A list of commands begins here."""
        block = self.blocks[-1]
        block.begin = block.list_begin = len(self.out)
        block.in_pipe, self.begins = False, True

    def _end_command(self) -> None:
        """Bracket the last command of a pipe."""
        block = self.blocks[-1]
        if block.in_pipe:
            self._bracket(block.begin)
            block.in_pipe = False

    def _bracket(self, begin: int) -> None:
        """Put brackets around the tokens made from a place on."""
        if begin < len(self.out):
            line = self.out[begin].line
            self.out.insert(begin, Operator(OPEN, line))
            self.out.append(Operator(CLOSE, line))


def closing_bracket(tokens: Sequence[Token], at: int) -> int:
    """The place of the bracket that closes a subshell whose inside begins at a place; the number of
    tokens where none does."""
    depth = 1
    for place in range(at, len(tokens)):
        token = tokens[place]
        if isinstance(token, Operator):
            depth += (token.text == OPEN) - (token.text == CLOSE)
        if not depth:
            return place
    return len(tokens)
