"""Contents of a shell script without running it: assignments, commands and here-documents.

Evaluated are assignments, arrays, expansions and conditions. Words that depend on an unknown
condition or on variables from outside the file are marked, so that readers of their values refuse
them by line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.base.units import is_whole

from . import lexer
from .batch_job import job_sizes, job_variables
from .conditions import Branches, Truth, arithmetic, both, condition_truth, negation
from .inputs import NO_INPUTS, ScriptInputs
from .lexer import HereDocument, Operator, Token
from .variables import LONGEST, LONGEST_NAME, Value, Variables, read_tokens
from .words import CONDITION, Part, Word

UNRESOLVED = "$"
"""A word of a condition that has no value in the file."""
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_LOOPS = ("for", "while", "until", "select")
_ENDS = ("fi", "done")
MOST_TOKENS = 500_000
"""Tokens of clauses and of sourced files that are read."""
DEEPEST = 12
"""Files that source each other, and conditions by case inside each other."""
_BODIES = ("then", "do")
_PREFIXES = ("export", "declare", "local", "readonly", "-a", "-x")
_WORDS = ("if", "elif", "else", "case", *_LOOPS, *_ENDS, *_PREFIXES)


@dataclass(frozen=True, slots=True)
class Document:
    """A here-document."""

    text: str
    line: int
    """The first line of the text."""


@dataclass
class Script:
    """Variables, commands and here-documents of a script."""

    file: str
    variables: Variables
    conditional_values: list[Value] = field(default_factory=list)
    """Values with flags that are assigned or added under an unknown condition."""
    commands: list[list[Word]] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    job: dict[str, int] = field(default_factory=dict)
    """Sizes that it asks of Slurm (batch_job.job_sizes)."""
    tokens_run: int = 0
    """Tokens of clauses and of sourced files that were read."""
    missing_sources: list[str] = field(default_factory=list)
    """Files that it sources and that are not there, with their lines."""

    def assign(self, name: str, appends: bool, made: Value) -> None:
        """Record one assignment; under an unknown condition it makes the value conditional."""
        before = self.variables.lookup(name)
        same = before is not None and made.text == before.text
        if made.condition and "--" in made.text and not same:
            added = None if appends or before is None else _added_flags(before, made)
            self.conditional_values.append(added or made)
            self.variables.values.setdefault(name, Value(()))
            return
        if appends and before is not None:
            made = _appended(before, made)
        same = before is not None and made.text == before.text
        self.variables.values[name] = replace(made, condition="" if same else made.condition)

    def assigned_words(self) -> list[Word]:
        """The words of every variable that holds flags, for a fragment without a command."""
        values = [value for value in self.variables.values.values() if "--" in value.text]
        return [word for value in values for word in value.all_words]

    def conditional_words(self) -> list[Word]:
        """The words of every value that is assigned under an unknown condition."""
        return [word for value in self.conditional_values for word in value.all_words]


def _appended(before: Value, made: Value) -> Value:
    """NAME+=...: more elements, or more text."""
    if before.array or made.array:
        return Value((*before.words, *made.words), True, made.condition or before.condition)
    parts = [part for word in (*before.words, *made.words) for part in word.parts]
    return Value((Word(tuple(parts)),) if parts else (), False, made.condition or before.condition)


def _added_flags(before: Value, made: Value) -> Value | None:
    """NAME="$NAME --flag": what follows the words of the value before; None where that is no flag,
    or the value another."""
    words, count = made.all_words, len(before.all_words)
    texts = [word.text for word in words]
    if texts[:count] != [word.text for word in before.all_words]:
        return None
    if not "".join(texts[count:]).startswith("--"):
        return None
    return replace(made, words=tuple(words[count:]), array=True)


def read_script(text: str, file: str, line: int = 1, inputs: ScriptInputs = NO_INPUTS) -> Script:
    """The contents of a script with these inputs. Raises InputError where it has no tokens of a
    shell."""
    if len(text) > LONGEST or "\x00" in text:
        raise InputError(f"{file}: is not a shell script")
    script = Script(file, Variables(file, inputs=inputs), job=job_sizes(text))
    outside = script.variables.outside
    for name, value in job_variables(script.job).items():
        outside.setdefault(name, Value.of(value))
    if text.count("\r\n") == text.count("\n"):
        text = text.replace("\r\n", "\n")
    _Reader(read_tokens(text, file, line), script).read()
    return script


@dataclass
class _Reader:
    """One pass over the tokens: assignments become values, other words commands."""

    tokens: list[Token]
    script: Script
    position: int = 0
    branches: Branches = field(default_factory=Branches)
    guard: Truth = True
    """Whether the command after && or || is reached."""
    status: Truth = None
    """Whether the last command succeeded."""
    dependences: list[str] = field(default_factory=list)
    """What the truths of tests in this list of commands depend on."""
    outer_lists: list[tuple[Truth, Truth, list[str], bool]] = field(default_factory=list)
    """Guard, status and dependences of the lists around this one, at each `{`, and whether that
    begins a function."""
    starts_command: bool = True
    """A command begins here."""
    depth: int = 0
    """Sourced files and clauses of case around this token."""

    def read(self) -> None:
        """Go through the tokens once."""
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            self.position += 1
            if isinstance(token, HereDocument):
                text = self.script.variables.text(Word(token.parts)) if token.parts else ""
                self.script.documents.append(Document(text, token.line))
            elif isinstance(token, Operator):
                self._operator(token)
            elif self._structure(token) or self._test(token):
                continue
            elif both(self.branches.reached, self.guard) is False:
                self.starts_command = False
            elif not self._assignment(token):
                self._word(token)

    def _operator(self, token: Operator) -> None:
        """End a command, or skip a redirection and its target."""
        if lexer.REDIRECTION.fullmatch(token.text):
            self.position += self.position < len(self.tokens) and isinstance(
                self.tokens[self.position], Word
            )
            return
        self.starts_command = True
        if token.text in ("&&", "||"):
            self.guard = self.status if token.text == "&&" else negation(self.status)
        elif token.text != "(":
            self._end_list()

    def _end_list(self) -> None:
        """End a list of commands that are joined by && and ||."""
        self.guard, self.dependences = True, []

    def _test(self, token: Word) -> bool:
        """Whether a word begins a test that is a command of its own, which decides whether the
        command after && or || is reached."""
        first = self.position - 1
        negated = token.unquoted and token.text == "!" and self.position < len(self.tokens)
        begin = self.tokens[self.position] if negated else token
        text = begin.text if isinstance(begin, Word) and not begin.parts[0].quoted else ""
        closing = {"[": "]", "[[": "]]"}.get(text, "")
        if not self.starts_command or not (closing or text.startswith("((")):
            return False
        self.position = first + negated
        truth, dependences = self._condition(closing)
        self.dependences += [] if truth is not None else dependences
        self._succeed(negation(truth) if negated else truth)
        self.starts_command = False
        return True

    def _succeed(self, truth: Truth) -> None:
        """Set the status of the list after a command with this truth, where it is reached."""
        if self.guard is None:
            self.status = truth if truth is self.status else None
        elif self.guard:
            self.status = truth

    def _structure(self, token: Word) -> bool:
        """Whether a word is a keyword or a prefix of assignments; branches are entered and left."""
        text = token.text if token.unquoted else ""
        if self.starts_command and text == "{":
            self.branches.enter(self.guard, self.dependences)
            is_function = self._begins_function()
            self.script.variables.function_depth += is_function
            self.outer_lists.append((self.guard, self.status, self.dependences, is_function))
            self._end_list()
            return True
        if self.starts_command and text == "}":
            self._leave_group()
            return True
        if self.starts_command and text in _BODIES:
            self._end_list()
            return True
        if not self.starts_command or text not in _WORDS:
            return False
        if text == "case":
            self._case()
        elif text == "if":
            self.branches.enter(*self._condition())
        elif text in ("elif", "else"):
            self.branches.next_branch(*(self._condition() if text == "elif" else (True, [])))
        elif text in _LOOPS:
            self.branches.enter(None)
            self.script.commands.append([])
        elif text in _ENDS:
            self.branches.leave()
        self.starts_command = text not in _LOOPS
        return True

    def _run(self, tokens: list[Token]) -> None:
        """Read other tokens here: a clause of case, or a sourced file."""
        self.script.tokens_run += len(tokens)
        if self.depth >= DEEPEST or self.script.tokens_run > MOST_TOKENS:
            raise InputError(f"{self.script.file}: files or conditions are nested too deeply")
        outer, self.tokens, self.position = (self.tokens, self.position), tokens, 0
        self.depth, self.starts_command = self.depth + 1, True
        self.read()
        self.tokens, self.position = outer
        self.depth, self.starts_command = self.depth - 1, True

    def _case(self) -> None:
        """`case WORD in PATTERN) ... ;; esac`: the clauses whose pattern the word may match."""
        variables = self.script.variables
        subject = self.tokens[self.position] if self.position < len(self.tokens) else None
        if not isinstance(subject, Word):
            return
        self.position += 1
        unknown = variables.dependences(subject)
        text, is_first = variables.text(subject), True
        for patterns, body in self._clauses():
            known = [variables.text(pattern) for pattern in patterns]
            if unknown:
                for pattern in known:
                    variables.note_choice(subject, pattern)
            is_match: Truth = any(fnmatchcase(text, pattern) for pattern in known)
            if "*" in known:
                is_match = True
            elif unknown or any(map(variables.dependences, patterns)):
                is_match = None
            step = self.branches.enter if is_first else self.branches.next_branch
            step(is_match, unknown)
            is_first = False
            self._run(body)
        if not is_first:
            self.branches.leave()

    def _clauses(self) -> list[tuple[list[Word], list[Token]]]:
        """The patterns and the commands of every clause, up to and with `esac`."""
        clauses: list[tuple[list[Word], list[Token]]] = []
        patterns: list[Word] = []
        body: list[Token] | None = None
        nested = 0
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            self.position += 1
            text = token.text if isinstance(token, Operator | Word) else ""
            is_keyword = isinstance(token, Word) and token.unquoted
            if is_keyword and text == "esac" and not nested:
                break
            if body is None:
                if isinstance(token, Word) and not (text == "in" and not (clauses or patterns)):
                    patterns.append(token)
                elif text == ")":
                    body = []
                continue
            nested += is_keyword * ((text == "case") - (text == "esac"))
            if not nested and isinstance(token, Operator) and text in (";;", ";&", ";;&"):
                clauses.append((patterns, body))
                patterns, body = [], None
            else:
                body.append(token)
        return [*clauses, (patterns, body)] if body is not None else clauses

    def _source(self) -> None:
        """`source FILE`: its contents, where it stands beside the script."""
        token = self.tokens[self.position] if self.position < len(self.tokens) else None
        if not isinstance(token, Word):
            return
        self.position += 1
        path, read = self.script.variables.text(token), self.script.variables.inputs.read_source
        text = read(path) if read and not self.script.variables.dependences(token) else None
        if text is None or len(text) > LONGEST or "\x00" in text:
            self.script.missing_sources.append(f"{one_line(path)} (line {token.line})")
            return
        self._run(read_tokens(text.replace("\r\n", "\n"), path))

    def _begins_function(self) -> bool:
        """Whether the brace before this position is that of a function: `NAME() {`, or
        `function NAME {`."""
        before = [token for token in self.tokens[max(self.position - 6, 0) : self.position - 1]]
        texts = [t.text for t in before if not isinstance(t, HereDocument) and t.text != "\n"]
        return texts[-2:] == ["(", ")"] or texts[-2:-1] == ["function"]

    def _leave_group(self) -> None:
        """End the commands between braces, whose status is that of the last one."""
        if self.outer_lists:
            truth = self.status
            self.guard, self.status, self.dependences, was_function = self.outer_lists.pop()
            self.script.variables.function_depth -= was_function
            self._succeed(truth)
            self.branches.leave()

    def _condition(self, closing: str = "then") -> tuple[Truth, list[str]]:
        """The truth of the words up to `then`, or up to and with a closing bracket; of one word for
        ''. Also what it depends on."""
        variables = self.script.variables
        words: list[str] = []
        operands: dict[int, Word] = {}
        dependences: list[str] = []
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            ends = isinstance(token, Word) and token.unquoted and token.text == closing
            if ends and closing == "then":
                break
            if isinstance(token, Word) and token.text.startswith("((") and token.parts[0].raw:
                words.append(token.text)
                value = arithmetic(token.text[2:-2], variables.number)
                dependences += variables.dependences(token) if value is None else []
            elif isinstance(token, Word):
                unknown = variables.dependences(token)
                is_unset = words[-1:] == ["-z"] and variables.is_unset(token)
                dependences += [] if is_unset else unknown
                value_text = UNRESOLVED if unknown else variables.text(token)
                words.append("" if is_unset else value_text)
                operands[len(words) - 1] = token
            elif isinstance(token, Operator) and token.text not in ("\n", ";"):
                words.append(token.text)
            elif isinstance(token, Operator) and closing == "]":
                break
            self.position += 1
            if ends or not closing:
                break
        for place, word in enumerate(words):
            if word in ("=", "==", "!=") and 0 < place < len(words) - 1:
                for one, other in ((place - 1, place + 1), (place + 1, place - 1)):
                    if words[one] == UNRESOLVED != words[other] and one in operands:
                        variables.note_choice(operands[one], words[other])
        return condition_truth(words, UNRESOLVED, variables.number), dependences

    def _assignment(self, token: Word) -> bool:
        first = token.parts[0]
        literal = self.starts_command and not (first.quoted or first.raw)
        match = _ASSIGN.match(first.text) if literal else None
        if not match:
            return False
        rest = token.without_prefix(match.end())
        here = self.tokens[self.position] if self.position < len(self.tokens) else None
        array = not rest.text and isinstance(here, Operator) and here.text == "("
        words = (
            self._array()
            if array
            else [Word(tuple(map(_stored, self.script.variables.expanded_parts(rest))))]
        )
        condition = self.branches.condition
        if not condition and self.guard is None:
            condition = " and ".join(dict.fromkeys(self.dependences)) or CONDITION
        value = Value(tuple(words), array, condition)
        self._succeed(True)
        stated = self.script.variables.outside.get(match[1])
        if stated is not None and not match[2]:
            if not value.is_open and value.text != stated.text:
                self._check_environment(match[1], token, value)
            elif value.is_open and match[1] not in self.script.variables.values:
                value = stated
                self.script.variables.names_used.add(match[1])
        self.script.assign(match[1], bool(match[2]), value)
        return True

    def _check_environment(self, name: str, token: Word, value: Value) -> None:
        """Raise InputError for a variable that the user gives and the script decides."""
        variables = self.script.variables
        is_given = name in variables.inputs.values
        if not is_given or name in variables.names_used or name in variables.values:
            return
        raise InputError(
            f"{self.script.file}: line {token.line}: the script itself sets {name} to "
            f"{one_line(value.text)[:LONGEST_NAME]}: leave out --set {name}"
        )

    def _array(self) -> list[Word]:
        """The elements up to the closing bracket."""
        words: list[Word] = []
        self.position += 1
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            self.position += 1
            if isinstance(token, Operator) and token.text == ")":
                break
            words += self.script.variables.words(token) if isinstance(token, Word) else []
        return words

    def _word(self, token: Word) -> None:
        if self.starts_command or not self.script.commands:
            self.script.commands.append([])
            self._succeed(None)
        command = token.text if self.starts_command and token.unquoted else ""
        if command == "shift":
            self._shift()
        elif command in ("source", "."):
            self._source()
            return
        self.starts_command = False
        words = self.script.commands[-1]
        added = self.script.variables.words(token)
        is_eval = bool(words) and words[0].text == "eval"
        words.extend(evaluated(added, self.script.file) if is_eval else added)

    def _shift(self) -> None:
        """Leave out the first arguments; all, where it is unknown whether a line is reached."""
        variables = self.script.variables
        every = variables.outside.get("@")
        if every is None or variables.function_depth:
            return
        following = self.tokens[self.position] if self.position < len(self.tokens) else None
        text = following.text if isinstance(following, Word) else ""
        reached = both(self.branches.reached, self.guard)
        count = (int(text) if is_whole(text) else 1) if reached else len(every.words)
        variables.names_used.add("#")
        variables.set_arguments([word.text for word in every.words[count:]])


def evaluated(words: list[Word], file: str) -> list[Word]:
    """The words of `eval`, which takes quotation in their text away; words of unknown values as
    they are."""
    out: list[Word] = []
    text, line = "", 0
    for word in words:
        if not text and (word.unresolved or word.condition or not set(word.text) & {*"'\"\\"}):
            out.append(word)
            continue
        text, line = f"{text} {word.text}" if text else word.text, line or word.line
        try:
            out += [token for token in read_tokens(text, file, line) if isinstance(token, Word)]
        except InputError:
            continue
        text, line = "", 0
    return [*out, *([Word.of(text, line)] if text else [])]


def _stored(part: Part) -> Part:
    """A part as the value of a variable: quoted where the variable is expanded."""
    literal = not part.raw or part.raw in "{}"
    return replace(part, quoted=False, raw="" if literal else part.raw)
