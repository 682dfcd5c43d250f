"""Commands of a shell script, one after the other, without running them.

Evaluated are assignments, arrays, expansions, conditions, loops and calls of functions. Words that
depend on an unknown condition or on variables from outside the file are marked, so that readers of
their values refuse them by line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.units import is_whole

from . import lexer
from .arrays import element, elements_of
from .assignments import (
    COMMANDS,
    array_words,
    assign_by_command,
    assigned_parts,
    attributes_of,
    comes_before_command,
    declared_names,
    give,
    give_defaults,
    in_environment,
    let,
    result,
    shift,
    stored,
    with_attributes,
)
from .blocks import (
    LOOPS,
    OPEN,
    closing_bracket,
    commands_of,
    condition_end,
    function_block,
    only_way,
)
from .conditions import Branches, CommandList, Truth, assigning, both, is_comparison, read_condition
from .contents import Document, Script
from .inner_commands import (
    change_folder,
    inner_text,
    inner_tokens,
    output_of,
    run_source,
    start_script,
)
from .lexer import HereDocument, Operator, Token
from .loops import MOST_UNCLOSED, Leave, levels, run_case, run_loop
from .variables import Value
from .words import CONDITION, Word, braced

_ENDS = ("fi", "done")
MOST_TOKENS = 40_000
"""Tokens of clauses, loops, functions and sourced files that are read."""
DEEPEST = 20
"""Files that source each other, and conditions by case and subshells inside each other."""
_BODIES = ("then", "do")
_PREFIXES = ("export", "declare", "typeset", "local", "readonly")
_DECLARING = re.compile(r"-[aAgilrtux]+")
"""Options of declarations."""
_WORDS = ("if", "elif", "else", "case", *LOOPS, *_ENDS, *_PREFIXES)
_STATUS: dict[str, Truth] = {"true": True, ":": True, "echo": True, "printf": True, "false": False}
_LEAVING = ("exit", "return", "break", "continue")


@dataclass
class Reader:
    """One pass over the tokens: assignments become values, other words commands."""

    tokens: list[Token]
    script: Script
    position: int = 0
    branches: Branches = field(default_factory=Branches)
    joined: CommandList = field(default_factory=CommandList)
    """The commands around this token that are joined by && and ||."""
    outer_lists: list[CommandList] = field(default_factory=list)
    """The lists around that one, at each `{`."""
    starts_command: bool = True
    """A command begins here."""
    depth: int = 0
    """Sourced files, functions, loops and clauses of case around this token."""
    command: list[Word] | None = None
    """The words of the command that is being read."""
    functions: dict[str, list[Token]] = field(default_factory=dict)
    """The commands of functions by name."""
    local_values: list[dict[str, Value | None]] = field(default_factory=list)
    """Variables that each function around this token hides by its own."""
    is_declaration: bool = False
    """The command is `export`, `local` or another one of assignments."""
    is_local: bool = False
    """Its assignments are of the function around."""
    command_values: dict[str, Value] = field(default_factory=dict)
    """Variables that are assigned before a command and hold for it alone."""
    hidden_values: dict[str, Value | None] = field(default_factory=dict)
    """What these had before: words of the command see that."""
    given: str | None = None
    """The input of the command that is being read, where it stands in the script."""

    @property
    def reached(self) -> Truth:
        """Whether this token is reached."""
        return both(self.branches.reached, self.joined.guard)

    @property
    def following(self) -> Token | None:
        """The next token to be read; None at the end."""
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def inner(self, tokens: list[Token]) -> None:
        """Read tokens as a shell of their own, with the variables and functions of this one."""
        self.script.tokens_run += len(tokens) + 1
        if self.depth >= DEEPEST or self.script.tokens_run > MOST_TOKENS:
            raise InputError(f"{self.script.file}: commands are nested too deeply")
        inner = Reader(tokens, self.script, depth=self.depth + 1, functions=self.functions)
        variables, outer = self.script.variables, self.script.variables.output_of
        variables.output_of = partial(output_of, inner)
        try:
            inner.read()
        finally:
            variables.output_of = outer

    def read(self) -> None:
        """Go through the tokens once."""
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            self.position += 1
            if isinstance(token, HereDocument):
                self._document(token)
            elif isinstance(token, Operator):
                self._operator(token)
            elif self._structure(token) or self._test(token):
                continue
            elif self.reached is False:
                self.starts_command = False
            elif not self._assignment(token):
                self._word(token)
        self._end_command()

    def _document(self, token: HereDocument) -> None:
        """Note a here-document, where it is reached."""
        if self.branches.reached is False:
            return
        word, variables = Word(token.parts), self.script.variables
        parts = variables.expanded_parts(word) if token.parts else []
        text = "".join(part.text for part in parts)
        depends = tuple(variables.dependences(word)) if token.parts else ()
        self.script.documents.append(Document(text, token.line, depends))
        self.given = None if any(part.unresolved or part.condition for part in parts) else text

    def _operator(self, token: Operator) -> None:
        """End a command, or skip a redirection and its target."""
        if lexer.REDIRECTION.fullmatch(token.text):
            target = self.following
            if ">" in token.text and self.command is not None:
                self.script.redirected.add(len(self.script.commands) - 1)
            if isinstance(target, Word):
                self.position += 1
            if token.text == "<<<" and isinstance(target, Word):
                parts = self.script.variables.expanded_parts(target)
                is_known = not any(part.unresolved or part.condition for part in parts)
                self.given = "".join(part.text for part in parts) if is_known else None
            return
        self._end_command()
        self.starts_command, self.is_local, self.is_declaration = True, False, False
        if token.text == OPEN:
            end = closing_bracket(self.tokens, self.position)
            first = len(self.script.commands)
            self._subshell(self.tokens[self.position : end])
            following = self.tokens[end + 1] if end + 1 < len(self.tokens) else None
            if isinstance(following, Operator) and following.text in ("|", "|&"):
                self.script.piped.update(range(first, len(self.script.commands)))
            self.position, self.starts_command = end + 1, False
            return
        self.joined.join(token.text)

    def _subshell(self, tokens: list[Token]) -> None:
        """Read commands whose assignments are theirs alone, and which end with their own `exit`."""
        if self.reached is False:
            return
        script = self.script
        functions, status = dict(self.functions), self.joined.status
        with script.subshell():
            try:
                self.run_group(tokens)
            except Leave:
                self.joined.status = None
        self.functions.clear()
        self.functions |= functions
        truth, self.joined.status = self.joined.status, status
        self.joined.succeed(truth)

    def _end_command(self) -> None:
        """Run what a command runs that is read to its end: a function, `eval` or `bash -c`."""
        command, self.command = self.command, None
        own, self.command_values = self.command_values, {}
        given, self.given = self.given, None
        self._give_back()
        if not command:
            return
        values = self.script.variables.values
        if own:
            self.script.environments[len(self.script.commands) - 1] = own
        before = {name: values.get(name) for name in own}
        values |= own
        if command[0].text in self.functions:
            self._call(command)
            truth, self.joined.status = self.joined.status, None
            self.joined.succeed(truth)
        elif command[0].text in (*COMMANDS, "set", "shopt"):
            truth = self._status_of(command, given)
            assign_by_command(self, command, given)
            self.joined.succeed(truth)
        elif command[0].text == "cd":
            change_folder(self.script, command)
        else:
            start_script(self, command, own)
            self._run_inside(command)
        self.script.variables.restore(before)

    def _status_of(self, command: list[Word], given: str | None) -> Truth:
        """The status of a command that assigns, before it does: of `let` that its expression is not
        0, and that there is something to read."""
        name = command[0].text
        if name == "let" and len(command) == 2 and not command[1].unresolved:
            number = result(command[1].text, self.script.variables)
            return None if number is None else number != 0
        return True if given else _STATUS.get(name)

    def _call(self, command: list[Word]) -> None:
        """Run a function with its arguments and its own variables."""
        variables = self.script.variables
        is_passed_on = any(word.text == "$@" and word.unresolved for word in command[1:])
        variables.arguments.append(None if is_passed_on else tuple(command[1:]))
        self.local_values.append({})
        try:
            self.run_group(self.functions[command[0].text])
        except Leave as leave:
            if leave.kind != "return":
                raise
        variables.arguments.pop()
        self.script.variables.restore(self.local_values.pop())

    def _run_inside(self, command: list[Word]) -> None:
        """Run the text that a command reads as commands."""
        variables = self.script.variables
        words = inner_text(command)
        if words:
            tokens, held = inner_tokens(words, self.script.file, self.script.tokens_run)
            if tokens:
                del command[1:]
            variables.values |= held
            self.run_group(tokens)
            for name in held:
                variables.values.pop(name, None)

    def _test(self, token: Word) -> bool:
        """Whether a word begins a test that is a command of its own, which decides whether the
        command after && or || is reached."""
        first = self.position - 1
        text = "" if token.parts[0].quoted else token.text
        closing = {"[": "]", "[[": "]]"}.get(text, "")
        if not self.starts_command or not (closing or text.startswith("((")):
            return False
        reached, variables = self.reached, self.script.variables
        number: int | None = None
        expressions = [] if closing or reached is False else assigning(text[2:-2])
        for expression in expressions:
            number = result(expression, variables)
            give(self, let(expression, variables))
        self.position = first
        truth, dependences = self._condition(closing)
        if expressions:
            truth = None if number is None else number != 0
        self.joined.dependences += [] if truth is not None else dependences
        self.joined.succeed(truth)
        self.starts_command = False
        return True

    def _structure(self, token: Word) -> bool:
        """Whether a word is a keyword or a prefix of assignments; branches are entered and left."""
        text = token.text if token.unquoted else ""
        if not self.starts_command:
            return False
        if self.is_declaration and _DECLARING.fullmatch(text):
            self.is_local &= "g" not in text
            if self.reached is not False:
                self.script.declare(declared_names(self.tokens, self.position), text[1:])
            return True
        if self.is_local and text.isidentifier() and self.reached:
            self._keep_outer(text)
            self.script.variables.values[text] = Value(())
            return True
        if text not in _WORDS and self._function():
            return True
        if text == "!":
            self.joined.negates = not self.joined.negates
        elif text == "{":
            self.branches.enter(self.joined.guard, self.joined.dependences)
            self.outer_lists.append(self.joined)
            self.joined = CommandList(self.joined.status)
        elif text == "}":
            self._leave_group()
        elif text in _BODIES:
            self.joined.end()
        elif text not in _WORDS:
            return False
        elif text in _PREFIXES:
            self.is_declaration = True
            if text == "export":
                self.script.declare(declared_names(self.tokens, self.position), "x")
            own = text in ("local", "declare", "typeset")
            self.is_local |= own and bool(self.local_values)
        elif text == "case":
            run_case(self)
        elif text == "if":
            begin = self.position
            truth, dependences = self._decided()
            header = self.tokens[begin : self.position]
            if any(isinstance(one, Word) and one.text.endswith(".py") for one in header):
                self.run([one for one in header if getattr(one, "text", "") != "!"])
            if truth is None and not is_comparison(header):
                truth = only_way(self.tokens, self.position + 1)
            self.branches.enter(truth, dependences)
        elif text == "else":
            self.branches.next_branch(True)
        elif text == "elif":
            self.branches.next_branch(*self._of_elif())
        elif text in LOOPS:
            run_loop(text, self)
        elif text in _ENDS:
            self.branches.leave()
        self.starts_command = True
        return True

    def _function(self) -> bool:
        """Whether a function is declared here; its commands are kept for its calls."""
        if self.script.unclosed > MOST_UNCLOSED:
            return False
        found = function_block(self.tokens, self.position - 1)
        if found is None:
            return False
        name, body, end = found
        if end < 0:
            self.script.unclosed += 1
            return False
        self.functions[name], self.position = body, end
        return True

    def run(self, tokens: list[Token]) -> None:
        """Read other tokens here: a clause of case, a turn of a loop, or a sourced file."""
        self.script.tokens_run += len(tokens) + 1
        if self.depth >= DEEPEST or self.script.tokens_run > MOST_TOKENS:
            raise InputError(
                f"{self.script.file}: files, loops or conditions are nested too deeply"
            )
        outer, self.tokens, self.position = (self.tokens, self.position), tokens, 0
        around_list = self.joined, self.joined.guard, self.joined.dependences
        around = len(self.branches.branch_truths), len(self.outer_lists)
        self.depth, self.starts_command = self.depth + 1, True
        try:
            self.read()
        except Leave:
            self.command = None
            while len(self.branches.branch_truths) > around[0]:
                self.branches.leave()
            del self.outer_lists[around[1] :]
            raise
        finally:
            self.tokens, self.position = outer
            status, self.joined = self.joined.status, around_list[0]
            self.joined.status = status
            self.joined.guard, self.joined.dependences = around_list[1:]
            self.depth, self.starts_command = self.depth - 1, True

    def run_group(self, tokens: list[Token]) -> None:
        """Read the commands of a function, or of a text, as one command of the list here."""
        outer = self.joined
        self.branches.enter(outer.guard, outer.dependences)
        self.joined = CommandList(outer.status)
        try:
            self.run(tokens)
        finally:
            self.branches.leave()
            outer.status, self.joined = self.joined.status, outer

    def truth(self, tokens: list[Token]) -> tuple[Truth, list[str]]:
        """The truth of the condition of a loop, and what it depends on."""
        if self._acts(tokens):
            return self._run_condition(tokens)
        outer, self.tokens, self.position = (self.tokens, self.position), tokens, 0
        found = self._condition()
        self.tokens, self.position = outer
        return found

    def _leave_group(self) -> None:
        """End the commands between braces, whose status is that of the last one."""
        if self.outer_lists:
            truth, self.joined = self.joined.status, self.outer_lists.pop()
            self.joined.succeed(truth)
            self.branches.leave()

    def _decided(self) -> tuple[Truth, list[str]]:
        """The truth of the condition up to `then`, whose commands are run where they assign or call
        functions."""
        end = condition_end(self.tokens, self.position)
        header = self.tokens[self.position : end]
        if self.reached is False or not self._acts(header):
            return self._condition()
        self.position = end
        return self._run_condition(header)

    def _of_elif(self) -> tuple[Truth, list[str]]:
        """The same behind `elif`, which is reached where no earlier branch is taken."""
        before = self.branches.here()
        self.branches.next_branch(True)
        found = self._decided()
        self.branches.go_back(before)
        return found

    def _acts(self, tokens: list[Token]) -> bool:
        """Whether a condition assigns, or calls functions of the script."""
        for place, keyword in commands_of(tokens):
            token = tokens[place]
            if not isinstance(token, Word):
                continue
            assigns = assigned_parts(token) is not None
            assigns |= token.text.startswith("((") and bool(assigning(token.text[2:-2]))
            if assigns or keyword in (*self.functions, *COMMANDS, "{"):
                return True
        return False

    def _run_condition(self, tokens: list[Token]) -> tuple[Truth, list[str]]:
        """The status of the last of some commands, and what it depends on."""
        outer = self.joined
        self.branches.enter(outer.guard, outer.dependences)
        self.joined = CommandList()
        try:
            self.run(tokens)
        finally:
            self.branches.leave()
            inner, self.joined = self.joined, outer
        return inner.status, inner.dependences

    def _condition(self, closing: str = "then") -> tuple[Truth, list[str]]:
        """The truth of the words up to `closing`, and what it depends on."""
        truth, dependences, self.position = read_condition(
            self.tokens, self.position, closing, self.script.variables
        )
        return truth, dependences

    def _assignment(self, token: Word) -> bool:
        """Whether a word assigns: NAME=VALUE, NAME+=VALUE, NAME[KEY]=VALUE or NAME=( ... )."""
        found = assigned_parts(token) if self.starts_command else None
        if found is None:
            return False
        self._count(token)
        if self.is_declaration and not found[1]:
            found = assigned_parts(braced(token)[-1]) or found
        name, subscript, appends, rest = found
        variables = self.script.variables
        here = self.following
        array = not rest.text and isinstance(here, Operator) and here.text == "("
        if array:
            found_words, self.position = array_words(self.tokens, self.position, variables)
            words = elements_of(found_words)
        else:
            words = [Word(tuple(map(stored, variables.expanded_parts(rest))))]
        condition = self.doubt()
        value = Value(tuple(words), array, condition)
        self.joined.succeed(True)
        if subscript:
            value, appends = element(self.script, name, subscript, words, condition, appends)
        kinds = attributes_of(self.script, name)
        if kinds and not subscript:
            known = variables.lookup(name) if appends else None
            made = with_attributes(value, known, kinds, variables)
            value, appends = made or Value.left_open(name), False
        if not appends:
            value = in_environment(self.script, name, value, token.line)
        before = variables.values.get(name)
        if self.is_local:
            self._keep_outer(name)
        is_prefix = not self.is_declaration and comes_before_command(self.tokens, self.position)
        if is_prefix:
            self.hidden_values.setdefault(name, before)
        self.script.assign(name, appends, value)
        if is_prefix:
            self.command_values[name] = variables.values[name]
        return True

    def _returned(self, before: Truth) -> Truth:
        """The status with which a function returns: the number behind the word, or that of the last
        command."""
        if not isinstance(self.following, Word):
            return before
        number = self.script.variables.text(self.following)
        return int(number[:9]) == 0 if is_whole(number) else None

    def _keep_outer(self, name: str) -> None:
        """Keep what a variable is outside of the function that has one of its own."""
        self.local_values[-1].setdefault(name, self.script.variables.values.get(name))

    def _give_back(self) -> None:
        """Give variables back what they had before they were assigned for a command."""
        hidden, self.hidden_values = self.hidden_values, {}
        self.script.variables.restore(hidden)

    def doubt(self) -> str:
        """What it depends on whether this place is reached; '' where that is certain."""
        if self.branches.condition or self.joined.guard is not None:
            return self.branches.condition
        return " and ".join(dict.fromkeys(self.joined.dependences)) or CONDITION

    def _count(self, word: Word) -> None:
        """Assign what arithmetic inside a word assigns: $((N++))."""
        for part in word.parts:
            for expression in assigning(part.raw[3:-2]) if part.raw.startswith("$((") else ():
                give(self, let(expression, self.script.variables))

    def _word(self, token: Word) -> None:
        script = self.script
        if self.starts_command or self.command is None:
            self._give_back()
            self.command = []
            script.commands.append(self.command)
            condition = self.doubt()
            if condition:
                script.conditions[len(script.commands) - 1] = condition
            before = self.joined.status
            self.joined.succeed(_STATUS.get(token.text))
        name = token.text if self.starts_command and token.unquoted else ""
        if name == "shift":
            reached = self.reached
            shift(self.tokens, self.position, reached, script.variables)
        elif name == ":":
            give_defaults(self.tokens, self.position, script, self.doubt())
        elif name in _LEAVING:
            if self.reached:
                if name == "return":
                    self.joined.status = self._returned(before)
                raise Leave(name, token.line, levels(self))
        elif name in ("source", "."):
            run_source(self)
            return
        self.starts_command = False
        self.command += script.variables.words(token)
        self._count(token)
