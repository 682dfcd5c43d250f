"""Contents of a shell script without running it."""

from __future__ import annotations

import re
from functools import partial

from plan3d.simulator.base.errors import InputError

from .batch_job import job_sizes, job_variables, with_tasks
from .commands import Reader
from .contents import Script
from .inner_commands import output_of
from .inputs import NO_INPUTS, ScriptInputs
from .loops import Leave
from .variables import LONGEST, Value, Variables, read_commands

_PLACEHOLDER = re.compile(r"(?<![<\w&'\"])<([A-Z][\w.-]*(?: [\w.-]+)*)>")
"""What stands for a path that the reader of a script fills in: <PATH TO gpt-vocab.json>."""


def read_script(text: str, file: str, inputs: ScriptInputs = NO_INPUTS) -> Script:
    """The contents of a script with these inputs; where it would stop before it trains, with what
    it leaves open taken as unknown.

    Raises InputError where it has no tokens of a shell, and for inputs that it decides itself.
    """
    script = _contents(text, file, inputs, False)
    if script.end_line and not script.training_commands():
        script = _contents(text, file, inputs, True)
    variables = script.variables
    for name, error in variables.contradicted.items():
        if name not in variables.options:
            raise error
    return script


def _contents(text: str, file: str, inputs: ScriptInputs, opens_all: bool) -> Script:
    """The contents of a script; `opens_all`: variables that the user may give are unknown, rather
    than empty."""
    if len(text) > LONGEST or "\x00" in text:
        raise InputError(f"{file}: is not a shell script")
    variables = Variables(file, inputs=inputs, opens_all=opens_all)
    job = job_sizes(text) if inputs.job is None else dict(inputs.job)
    script = Script(file, variables, job=with_tasks(job), documents=list(inputs.documents))
    for name, value in job_variables(script.job).items():
        variables.outside.setdefault(name, Value.of(value))
    if text.count("\r\n") == text.count("\n"):
        text = text.replace("\r\n", "\n")
    if text.endswith("\\") and not text.endswith("\\\\"):
        text = text[:-1]
    text = _PLACEHOLDER.sub(lambda found: found[1].replace(" ", "_"), text)
    reader = Reader(read_commands(text, file), script)
    variables.output_of = partial(output_of, reader)
    try:
        reader.read()
        if not script.training_commands():
            for body in [*reader.functions.values()]:
                variables.arguments.append(None)
                reader.run_group(body)
                variables.arguments.pop()
    except Leave as leave:
        script.end_line = leave.line
    return script
