"""Counts the commands that hostile names and flags run in exported files; there must be none.

    python tests/benchmarks/hostile_names.py --exports 10000 --seed 1

Every export has a name that tries to leave its place: of a model, an accelerator, a profile's file
or a launch file, given to the writers as it is and through the files that hold it; or flags that an
imported script quotes. Scripts are run in bash, with stubs for every command, and must start the
launcher with the arguments of a harmless name and nothing else; documents are parsed and must say
the same.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from plan3d.launch_files.exporter import launch_text
from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.registry import EXPORTERS, READERS
from plan3d.launch_files.shell.words import quote
from plan3d.simulator.base.documents import toml_string
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

NASTY = (
    "H100\ntouch PWNED #",
    "H100\r\ntouch PWNED\r\n",
    "x\ntouch PWNED\n",
    "$(touch PWNED)",
    "`touch PWNED`",
    "'; touch PWNED; '",
    '"; touch PWNED; "',
    "'\"'\"'$(touch PWNED)",
    "a' $(touch PWNED) 'b",
    "\\",
    "a\\\n touch PWNED",
    "\x00touch PWNED",
    "\x1b[2J\x1b]0;touch PWNED\x07",
    "]]>",
    "-->",
    "<script>touch('PWNED')</script>",
    '"""',
    '"""\nimport os; os.system("touch PWNED")\n"""',
    '"""; import os; os.system("touch PWNED") #',
    "\\\"\"\"; __import__('os').system('touch PWNED') #",
    "'''",
    "\rtouch PWNED",
    "\u202etouch PWNED",
    "a\u2028touch PWNED",
    "a\u2029touch PWNED",
    "a\x85touch PWNED",
    "a\x0btouch PWNED\x0c",
    "--tensor-model-parallel-size 99",
    "-rf",
    "EOF\ntouch PWNED\n",
    "JSON\ntouch PWNED\ncat <<'JSON'\n",
    "]\n[parallelism]\ntensor_parallel_degree = 99\n",
    "x\nparallelism: {tp: 99}\n",
    "x: &a [*a]",
    "!!python/object/apply:os.system ['touch PWNED']",
    "=cmd|'/c calc'!A0",
    "@SUM(1)",
    "{{7*7}} ${IFS}touch${IFS}PWNED",
    "&& touch PWNED &",
    "|| touch PWNED",
    "> PWNED",
    "<(touch PWNED)",
    "~root $HOME *",
    "{a,b}",
    "!!",
    "",
    " ",
    "\t",
    "x" * 10_000,
    "\udc80\ud800",
    "\u200b\u200d\ufeff",
    "名前",
)
"""Names and flags that try to be something else."""
FRAGMENTS = (
    *("\n", "\r", "\x00", "\x1b[1m", "`", "$(", ")", "'", '"', "\\", "]]>", "-->", '"""', "'''"),
    *("\u202e", "\u2028", "--", "-", "EOF\n", "JSON\n", "touch PWNED", ";", "&", "|", ">PWNED"),
    *(
        "#",
        " ",
        "\t",
        "$HOME",
        "${X:-touch PWNED}",
        "*",
        "~",
        "{",
        "}",
        "!",
        "%",
        "[x]\n",
        ": ",
        "é",
    ),
)
LAUNCHERS = ("torchrun", "deepspeed")
COMMANDS = ("touch", "rm", "sh", "python", "python3", "id", "env", "cp", "curl", "calc", "a", "x")
STUB = '#!/bin/sh\nprintf "%s\\0" "$@" > "$DUMP"\n'
CANARY = "#!/bin/sh\n: > PWNED\n"
PLAN = "tp=2 overlap_param_gather=0"
SHELL = ("megatron", "megatron-bridge", "deepspeed")


def random_name(random: random.Random) -> str:
    """A name of the list, or one put together."""
    if random.random() < 0.3:
        return random.choice(NASTY)
    return "".join(random.choices(FRAGMENTS, k=random.randint(1, 12)))


class Shell:
    """A folder with stubs for commands, in which scripts are run by bash."""

    def __init__(self, folder: Path) -> None:
        self.stubs, self.inside, self.dump = folder / "stubs", folder / "inside", folder / "dump"
        self.stubs.mkdir(exist_ok=True)
        for name in (*LAUNCHERS, *COMMANDS):
            stub = self.stubs / name
            stub.write_text(STUB if name in LAUNCHERS else CANARY)
            stub.chmod(0o755)
        cat = shutil.which("cat")
        assert cat
        if not (self.stubs / "cat").exists():
            (self.stubs / "cat").symlink_to(cat)
        self.bash = shutil.which("bash") or "bash"

    def arguments(self, script: str) -> list[str] | None:
        """What a script's launcher is started with; None where anything else was done."""
        shutil.rmtree(self.inside, ignore_errors=True)
        self.inside.mkdir()
        self.dump.unlink(missing_ok=True)
        begin = tuple(f"# {launcher} " for launcher in LAUNCHERS)
        line = next(line for line in script.split("\n") if line.startswith(begin))
        command = line.removeprefix("# ").removesuffix(" ...")
        done = subprocess.run(
            [self.bash, "-c", f"{script}\n{command}\n"],
            env={"PATH": str(self.stubs), "DUMP": str(self.dump)},
            cwd=self.inside,
            capture_output=True,
            check=False,
        )
        if done.returncode or done.stderr or done.stdout or not self.dump.exists():
            return None
        if set(os.listdir(self.inside)) - {"ds_config.json"}:
            return None
        return self.dump.read_bytes().decode("utf-8", "surrogateescape").split("\0")[:-1]


@cache
def _machine() -> Cluster:
    return Cluster.profile("h100-sxm", gpus=16)


@cache
def _model(preset: str) -> Model:
    return Model.preset(preset)


def task(preset: str, model: str | None = None, machine: str | None = None) -> Task:
    """A task whose model and accelerator have these names."""
    layers, cluster = _model(preset), _machine()
    if model is not None:
        layers = replace(layers, name=model)
    if machine is not None:
        cluster = replace(cluster, accelerator=replace(cluster.accelerator, name=machine))
    return Task(layers, cluster, sequence=2048, global_batch=64)


def _python(text: str) -> Any:
    """The statements of a module without its docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef):
            assert isinstance(node.body[0], ast.Expr)
            node.body = node.body[1:]
    return ast.dump(tree)


def _flavorless(text: str) -> Any:
    content = tomllib.loads(text)
    content["model"].pop("flavor")
    return content


DOCUMENTS: dict[tuple[str, str], tuple[str, str, Callable[[str], Any]]] = {
    ("torchtitan", ""): ("llama-7b", "tp=2 zero=3", _flavorless),
    ("torchtitan", "0.3"): ("llama-3.1-8b", "tp=2 zero=3", _python),
    ("nanotron", ""): ("llama-7b", PLAN, yaml.safe_load),
    ("deepspeed", ""): ("llama-7b", "zero=3", json.loads),
}
"""Formats that are parsed: a model, a plan, and what a file says."""


def document(kind: tuple[str, str], model: str | None, machine: str | None) -> str:
    """A file that is parsed."""
    preset, plan, _ = DOCUMENTS[kind]
    return launch_text(
        task(preset, model, machine), Plan.parse(plan), EXPORTERS[kind[0]].form(kind[1])
    )


def same(kind: tuple[str, str], model: str | None, machine: str | None) -> bool:
    """Whether a file says what it says with harmless names."""
    text, (_, _, parse) = document(kind, model, machine), DOCUMENTS[kind]
    if kind == ("torchtitan", ""):
        flavor = tomllib.loads(text)["model"]["flavor"]
        whole = model is None or any(0xD800 <= ord(c) < 0xE000 for c in model) or flavor == model
        return whole and parse(text) == parse(document(kind, None, None))
    plain, found = parse(document(kind, None, None)), parse(text)
    if kind == ("deepspeed", ""):
        plain.pop("plan3d"), found.pop("plan3d")
    return bool(found == plain)


def script(framework: str, model: str | None, machine: str | None) -> str:
    """A shell fragment."""
    named = task("gpt3-1.3b", model, machine)
    return launch_text(named, Plan.parse(PLAN), EXPORTERS[framework].form())


def profile_text(name: str) -> str:
    """A hardware profile whose accelerator has this name."""
    text = files("plan3d.hardware_profiles").joinpath("h100-sxm.toml").read_text(encoding="utf-8")
    own = toml_string(_machine().accelerator.name)
    assert own in text
    return text.replace(own, toml_string(name))


def through_files(name: str, framework: str, folder: Path) -> str:
    """The export of a profile with this name, in a file of this name where there can be one.
    Raises InputError where it is refused."""
    path = folder / "mine.toml"
    path.write_text(profile_text(name), encoding="utf-8")
    with_name = folder / f"{name.replace('/', '')[:80]}.toml"
    try:
        path = path.rename(with_name)
    except (OSError, ValueError):
        path = folder / "mine.toml"
    try:
        cluster = Cluster.profile(path, gpus=16)
    finally:
        path.unlink()
    named = Task(_model("gpt3-1.3b"), cluster, sequence=2048, global_batch=64)
    return launch_text(named, Plan.parse(PLAN), EXPORTERS[framework].form())


IMPORTED = """torchrun pretrain_gpt.py --num-layers 24 --hidden-size 2048 \\
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \\
  --micro-batch-size 2 --bf16 --global-batch-size 64 --use-distributed-optimizer \\
  --overlap-grad-reduce {flags}
"""


def imported(flags: str, name: str = "run.sh") -> str:
    """A script with these flags, read and written again. Raises InputError where it is refused."""
    launch = READERS["megatron"](IMPORTED.format(flags=flags), name, ReaderOptions())
    assert launch.model is not None
    named = Task(launch.model, _machine(), sequence=2048, global_batch=64)
    return launch_text(
        named, Plan.parse("overlap_param_gather=0"), EXPORTERS["megatron"].form(), launch.unread
    )


def quotations(word: str) -> list[str]:
    """Ways in which a script says a word."""
    out = [quote(word), "".join(f"\\{c}" if c != "\n" else "'\n'" for c in word) or "''"]
    if "'" not in word:
        out.append(f"'{word}'")
    special = {char: f"\\{char}" for char in '$`"\\'}
    return [*out, '"' + "".join(special.get(char, char) for char in word) + '"']


def kept_as(words: list[str], shell: Shell, random: random.Random) -> bool | None:
    """Whether flags keep their words on the way through import and export; None where they are
    refused."""
    said = " ".join(random.choice(quotations(word)) for word in words)
    try:
        text = imported(f"--save {said}")
    except InputError:
        return None
    found = shell.arguments(text)
    return found is not None and found[found.index("--save") + 1 :] == words


def trials(count: int, random: random.Random, folder: Path) -> Iterator[str]:
    """What came of each export."""
    shell = Shell(folder)
    plain = {framework: shell.arguments(script(framework, None, None)) for framework in SHELL}
    assert None not in plain.values()
    for _ in range(count):
        name, kind = random_name(random), random.randrange(5)
        framework = random.choice(SHELL)
        model, machine = random.choice([(name, None), (None, name), (name, name)])
        if kind == 0:
            found = shell.arguments(script(framework, model, machine))
            yield "script: the same" if found == plain[framework] else f"EXECUTED: {name!r}"
        elif kind == 1:
            documents = random.choice(list(DOCUMENTS))
            good = same(documents, model, machine)
            yield "document: the same" if good else f"CHANGED {documents}: {name!r}"
        elif kind == 2:
            try:
                found = shell.arguments(through_files(name, framework, folder))
            except InputError:
                yield "name refused"
                continue
            yield "file: the same" if found == plain[framework] else f"EXECUTED by file: {name!r}"
        elif kind == 3:
            found = shell.arguments(imported("--lr 1", f"{name}.sh"))
            good = found == shell.arguments(imported("--lr 1"))
            yield "launch file: the same" if good else f"EXECUTED by launch file: {name!r}"
        else:
            clean = name.replace("\0", "").encode("utf-8", "replace").decode()
            kept = kept_as([clean, random.choice(("x", "$(touch PWNED)", "&"))], shell, random)
            said = {True: "kept: the same words", None: "flags refused"}
            yield said.get(kept, f"EXECUTED or changed by a flag: {clean!r}")


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--exports", type=int, default=10_000)
    words.add_argument("--seed", type=int, default=1)
    asked = words.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        counts = Counter(trials(asked.exports, random.Random(asked.seed), Path(folder)))
    bad = {what: n for what, n in counts.items() if what.isupper() or what[:2].isupper()}
    for what, number in counts.most_common():
        print(f"{number:7} {what}")
    seconds = time.perf_counter() - began
    print(f"{asked.exports} exports, {sum(bad.values())} executions or changes, {seconds:.0f} s")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
