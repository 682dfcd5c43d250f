"""Loops of a shell script: turns that are followed, and loops over options of the script; `case`.

A loop whose words or condition are known is followed turn by turn. One that goes through arguments
that the user does not give is left out: its variables are options, which --set may give.
Source: Bash Reference Manual, 3.2.5.1 (looping constructs) and 4.1 (getopts).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from plan3d.simulator.base.units import is_whole

from .assignments import let
from .blocks import assigned_names, case_clauses, loop_block
from .conditions import Branches, Truth, arithmetic, negation
from .contents import Script, program_place
from .lexer import Operator, Token
from .variables import Value
from .words import Part, Word, matches

MOST_TURNS = 300
"""Turns of one loop that are followed."""
MOST_TOKENS_OF_TURNS = 10_000
"""Tokens that were read in blocks after which no turn is followed."""
MOST_UNCLOSED = 20
"""Loops and functions without an end after which none is looked for: each costs a reading of the
rest of the text."""


class Leave(Exception):
    """A certain `exit`, `return`, `break` or `continue`."""

    def __init__(self, kind: str, line: int, levels: int = 1) -> None:
        super().__init__(kind)
        self.kind, self.line, self.levels = kind, line, levels


class Runner(Protocol):
    """A reader of tokens (script.Reader)."""

    tokens: list[Token]
    script: Script
    position: int
    branches: Branches
    functions: dict[str, list[Token]]

    @property
    def reached(self) -> Truth:
        """Whether the place is reached."""

    def run(self, tokens: list[Token]) -> None:
        """Read tokens here."""

    def inner(self, tokens: list[Token]) -> None:
        """Read tokens as a shell of their own, with the variables and functions of this one."""

    def truth(self, tokens: list[Token]) -> tuple[Truth, list[str]]:
        """The truth of a condition, and what it depends on."""


def run_loop(kind: str, reader: Runner) -> None:
    """Follow the loop whose keyword is before the position of the reader."""
    script = reader.script
    is_looked_for = script.unclosed <= MOST_UNCLOSED
    block = loop_block(reader.tokens, reader.position) if is_looked_for else None
    if block is None:
        script.unclosed += 1
        reader.branches.enter(None)
        return
    header, body, reader.position = block
    if reader.reached is False:
        return
    words = [token for token in header if isinstance(token, Word)]
    if words and words[0].text == "getopts" and kind == "while":
        _options(words, body, reader)
    elif kind == "for" and words and words[0].text.isidentifier():
        _for(words[0].text, header, body, reader)
    elif kind == "for" and words and words[0].text.startswith("(("):
        _counted(words[0].text[2:-2].split(";"), body, reader)
    elif kind in ("while", "until"):
        _while(kind, header, body, reader)
    elif kind == "select" and words and words[0].text.isidentifier():
        name = words[0].text
        script.variables.values[name] = Value.left_open(name)
        script.variables.choices[name] = [word.text for word in words[2:]]
        _uncertain(body, [], reader)
    else:
        _uncertain(body, [], reader)


def _turn(body: list[Token], reader: Runner) -> bool:
    """Follow one turn; whether others come after it."""
    try:
        reader.run(body)
    except Leave as leave:
        if leave.kind not in ("break", "continue"):
            raise
        if leave.levels > 1:
            leave.levels -= 1
            raise
        return leave.kind == "continue"
    return True


def _uncertain(body: list[Token], dependences: Sequence[str], reader: Runner) -> None:
    """A loop of an unknown number of turns."""
    reader.branches.enter(None, dependences)
    _turn(body, reader)
    reader.branches.leave()


def _for(name: str, header: list[Token], body: list[Token], reader: Runner) -> None:
    """`for NAME in WORDS`: each of the words; where every turn trains, NAME is the user's."""
    variables = reader.script.variables
    end = next((i for i, token in enumerate(header) if isinstance(token, Operator)), len(header))
    listed = [token for token in header[2:end] if isinstance(token, Word)]
    every = [Word((Part("$@", header[0].line, True, '"$@"'.strip('"'), True),))]
    words = [made for word in listed or every for made in variables.words(word)]
    if any(word.unresolved and word.text in ("$@", "$*") for word in words):
        _skip_options(body, reader)
        return
    if len(words) > MOST_TURNS or any(w.unresolved or w.condition for w in words):
        variables.values.pop(name, None)
        _uncertain(body, [], reader)
        return
    _turns(name, words, body, reader)


def _turns(name: str, words: list[Word], body: list[Token], reader: Runner) -> bool:
    """A turn for each word, or for the one that the user gives; whether it went to its end."""
    variables = reader.script.variables
    is_given = name in variables.inputs.values
    if is_given:
        variables.names_used.add(name)
        variables.options[name] = None
        words = [Word((Part(variables.inputs.values[name], words[0].line if words else 1),))]
    before = dict(variables.values)
    for word in words:
        if reader.script.tokens_run > MOST_TOKENS_OF_TURNS:
            _uncertain(body, [], reader)
            return False
        variables.values[name] = Value((word,))
        commands, started = reader.script.commands, reader.script.started
        count, before_turn = len(commands), len(started)
        if not _turn(body, reader):
            return False
        trains = any(program_place(own) >= 0 for own in commands[count:])
        if len(words) > 1 and (trains or any(own.text for own in started[before_turn:])):
            del commands[count:], started[before_turn:]
            variables.values = {**before, name: Value.left_open(name)}
            variables.choices.setdefault(name, []).extend(word.text for word in words)
            _turn(body, reader)
            return False
    return not is_given


def _while(kind: str, header: list[Token], body: list[Token], reader: Runner) -> None:
    """`while` and `until`: turns as long as the condition is known."""
    variables = reader.script.variables
    for _ in range(MOST_TURNS):
        variables.counts_arguments = True
        truth, dependences = reader.truth(header)
        variables.counts_arguments = False
        truth = negation(truth) if kind == "until" else truth
        if truth is False:
            return
        if truth is None and dependences and all(d[:1] == "$" for d in dependences):
            names = {d[1:].strip("{}") for d in dependences}
            if all(name.isdecimal() or name in "@*#" for name in names):
                _skip_options(body, reader)
                return
        if truth is None or reader.script.tokens_run > MOST_TOKENS_OF_TURNS:
            _uncertain(body, dependences, reader)
            return
        if not _turn(body, reader):
            return
    _uncertain(body, [], reader)


def _counted(expressions: list[str], body: list[Token], reader: Runner) -> None:
    """`for ((NAME=FIRST; TEST; NEXT))`: the turns, as those of the words that NAME takes."""
    variables, name = reader.script.variables, expressions[0].partition("=")[0].strip()
    words: list[Word] = []
    given = let(expressions[0], variables) if len(expressions) == 3 else {}
    while given.keys() == {name} and given[name] is not None and len(words) <= MOST_TURNS:
        variables.values[name] = given[name] or Value(())
        number = arithmetic(expressions[1], variables.number)
        if number == 0:
            if _turns(name, words, body, reader):
                variables.values[name] = given[name] or Value(())
            return
        if number is None:
            break
        words += variables.values[name].words
        given = let(expressions[2], variables)
    variables.values.pop(name, None)
    _uncertain(body, [], reader)


def _options(words: list[Word], body: list[Token], reader: Runner) -> None:
    """`while getopts LETTERS NAME`: the options among the arguments of the script."""
    variables = reader.script.variables
    every = variables.lookup("@")
    if every is None or len(words) < 3:
        _skip_options(body, reader)
        return
    letters, name = variables.text(words[1]).lstrip(":"), words[2].text
    variables.names_used.add("#")
    left = [word.text for word in every.words]
    count = len(left)
    while left and left[0][:1] == "-" and left[0] not in ("-", "--"):
        option = left.pop(0)[1:]
        letter, rest = option[0], option[1:]
        if f"{letter}:" in letters:
            value = rest or (left.pop(0) if left else "")
        else:
            value, left = "", [f"-{rest}", *left] if rest else left
        variables.values[name] = Value.of(letter)
        variables.values["OPTARG"] = Value.of(value)
        variables.values["OPTIND"] = Value.of(str(count - len(left) + 1))
        if not _turn(body, reader):
            return
    left = left[left[:1] == ["--"] :]
    variables.values["OPTIND"] = Value.of(str(count - len(left) + 1))


def _skip_options(body: list[Token], reader: Runner) -> None:
    """A loop over arguments that the user does not give: its variables keep their values, or have
    those of --set; one without a value is open where the script would stop without it."""
    variables = reader.script.variables
    for name in assigned_names(body):
        given = variables.inputs.values.get(name)
        variables.options[name] = None
        own = variables.values.get(name)
        if given is not None:
            variables.names_used.add(name)
            variables.values[name] = Value.of(given)
        elif variables.opens_all and (own is None or not own.text):
            variables.values[name] = Value.left_open(name)


def run_case(reader: Runner) -> None:
    """`case WORD in PATTERN) ... ;; esac`: the clauses whose pattern the word may match."""
    variables = reader.script.variables
    subject = reader.tokens[reader.position] if reader.position < len(reader.tokens) else None
    if not isinstance(subject, Word):
        return
    reader.position += 1
    unknown = variables.dependences(subject)
    text, is_first = variables.text(subject), True
    clauses, reader.position = case_clauses(reader.tokens, reader.position)
    passed_by = 0
    for patterns, body, ending, count in clauses:
        if passed_by:
            passed_by -= 1
            continue
        known = [variables.text(pattern) for pattern in patterns]
        if unknown:
            for pattern in known:
                variables.note_choice(subject, pattern)
        is_match: Truth = any(matches(text, one, variables.any_case) for one in known)
        if "*" in known:
            is_match = True
        elif unknown or any(map(variables.dependences, patterns)):
            is_match = None
        step = reader.branches.enter if is_first else reader.branches.next_branch
        earlier = [False] if is_first else reader.branches.earlier_truths[-1:]
        step(is_match, unknown)
        is_first = False
        passed_by = count if reader.branches.branch_truths[-1:] == [True] else 0
        reader.run(body)
        if ending == ";;&":
            reader.branches.earlier_truths[-1:] = earlier
    if not is_first:
        reader.branches.leave()


def levels(reader: Runner) -> int:
    """The number after `break` or `continue`."""
    token = reader.tokens[reader.position] if reader.position < len(reader.tokens) else None
    text = token.text if isinstance(token, Word) else ""
    return int(text) if is_whole(text) and len(text) < 3 else 1
