"""Public launch scripts: how many `plan3d import` reads, refuses and why, and whether it misreads.

    python tests/benchmarks/public_files.py FOLDER [LIST.csv] [--lines]

FOLDER holds one folder a repository, OWNER+NAME; LIST.csv has the columns kind, repository, commit
and path, and without it every script of the folder is tried. What a script asks for is given: the
first of the choices that it lists, else a usual value of the flag that needs it; where a call of it
is written beside it, --example takes that, as one value. --vocabulary and --gpus count as values;
arguments of the script count each, and as one where all are given after --.
The parameters of what is read are compared with the sizes in the script's path and in the values
that were chosen.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from plan3d.cli.main import main as plan3d

USUAL = {
    "--micro-batch-size": "1",
    "--global-batch-size": "256",
    "--seq-length": "2048",
    "--max-position-embeddings": "2048",
    "--num-layers": "24",
    "--hidden-size": "2048",
    "--num-attention-heads": "16",
    "--optimizer": "adam",
}
"""Values by the flag that needs them; 1 of the others."""
CHOSEN = {"DO": "true", "MOE": "false", "TOTAL_BATCHSIZE": "256", "SP": "true", "GBS": "256"}
"""Values by the names of variables whose first choice, or whose flag, does not suit the others."""
REPLACEMENTS = {
    "recompute": "full",
    "offload_optimizer": "100",
    "precision": "bf16",
    "optimizer": "adam",
}
"""What is said of fields of the plan that a script leaves open or states twice."""
TOYS = ("run_pretrain_megatron_glm130b.sh", "run_finetune_megatron_qwen_vl.sh")
"""Scripts whose own sizes are not those of their names: 6 layers of 2048 as 2B, 2 layers as 7B."""
VOCABULARY = "128000"
STATED = {
    "run_pretrain_megatron_qwen_upcycled.sh": 24
    * (4 * 2048 * (2048 + 1) + 8 * (3 * 2048 * 5504 + 2 * 5504 + 2048) + 8 * 2048 + 2 * 2048)
    + 2 * 128_000 * 2048
    + 2048,
}
"""Parameters by hand of scripts whose sizes are not those of their names: eight experts in each
layer of a dense model of 1.8B, with the biases of Megatron-LM's default."""
GPUS = ("8", "64", "256", "1024", "1")
"""Numbers of GPUs that are tried in this order."""
MOST_QUESTIONS = 16
"""Rounds of asking for one script."""
TOLERANCE = 1.35
"""By what factor parameters may differ from a rounded size in a name, with the vocabulary above."""
_CHOSEN = re.compile(r"(\w+) (?:\(\$\d+\) )?(?:has no value)[^()]*\((--[\w-]+)\)")
_ASKED = re.compile(r"\((--[\w-]+|the JSON)\): --set (\w+)=VALUE|--set (\w+)=([\w.+-]+)")
_EXAMPLE = re.compile(r"--example ([\w./-]+:\d+)")
_REPLACED = re.compile(rf"--with ({'|'.join(REPLACEMENTS)})=VALUE")
_UNFIT = re.compile(r"its call in |must be|line \d+: the script stops here")
"""Refusals of an example that is not of this version of its script."""
_SIZE = re.compile(r"(?<![a-z\d.])(?:(\d+)x)?(\d+(?:\.\d+)?)(b|m)(?![a-z])", re.I)


class Outcome(NamedTuple):
    """What became of one script."""

    kind: str
    """read, refused, misread or failed."""
    detail: str
    values: int = 0
    """Values that were given, all arguments of the script as one."""
    single_values: int = 0
    """Values that were given, each argument as one."""


def scripts(folder: Path, listed: str | None) -> Iterator[Path]:
    """The scripts of a list, or of the folder."""
    if listed is None:
        yield from sorted(p for end in ("sh", "slurm") for p in folder.rglob(f"*.{end}"))
        return
    with Path(listed).open(encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            if row["kind"] == "Megatron script":
                yield folder / row["repository"].replace("/", "+") / row["path"]


def imported(path: Path, options: list[str]) -> tuple[int, dict[str, Any], str]:
    """The exit code of an import, its record and its error."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = plan3d(["import", str(path), "--cluster", "h100-sxm", "--json", *options])
    message = errors.getvalue().strip().splitlines()[-1:] or [""]
    return code, {} if code else json.loads(out.getvalue()), message[0]


def tried(path: Path) -> Outcome:
    """A script read with what it asks for."""
    values: dict[str, str] = {}
    options: dict[str, str] = {}
    asked_by: dict[str, str] = {}
    why, spoilt = "", False
    for _ in range(MOST_QUESTIONS):
        words = [f"--{name}={value}" for name, value in options.items()]
        words += [f"--set={name}={value}" for name, value in values.items()]
        code, record, why = imported(path, words)
        if not code:
            return _read(path, record, values, options, asked_by)
        if code != 2:
            return Outcome("failed", why)
        offered = _EXAMPLE.search(why)
        if offered and not spoilt and not values:
            options["example"] = offered[1]
            continue
        if "example" in options and (_ASKED.search(why) or _UNFIT.search(why)):
            spoilt = True
            del options["example"]
            continue
        asked = {
            name: CHOSEN.get(name) or m[4] or USUAL.get(m[1], "1")
            for m in _ASKED.finditer(why)
            if (name := m[2] or m[3])
        }
        asked_by |= {m[2]: m[1] for m in _ASKED.finditer(why) if m[2]}
        asked_by |= {name: option for name, option in _CHOSEN.findall(why)}
        gpus = options.get("gpus")
        if asked.keys() - values.keys():
            values |= asked
        elif "vocabulary" not in options and "--vocabulary" in why:
            options["vocabulary"] = VOCABULARY
        elif "give --gpus" in why:
            options["gpus"] = GPUS[0]
        elif "needs pp >" in why and values.get("PP") != "2":
            values["PP"] = "2"
        elif "overlap_tp needs" in why and values.get("TP") != "2":
            values["TP"] = "2"
        elif gpus != GPUS[-1] and re.search(r"GPUs|\bdp\(", why):
            options["gpus"] = GPUS[GPUS.index(gpus) + 1 if gpus else 0]
        elif (field := _REPLACED.search(why)) and "with" not in options:
            options["with"] = f"{field[1]}={REPLACEMENTS[field[1]]}"
        elif "say which holds: --global-batch N" in why and "global-batch" not in options:
            options["global-batch"] = "64"
        elif "ep" in why and "PR-MoE" in path.name and "with" not in options:
            options["with"] = "ep=32"
        else:
            return Outcome("refused", why.partition(path.name)[2].lstrip(": ") or why)
    return Outcome("refused", why)


def _read(
    path: Path,
    record: dict[str, Any],
    values: dict[str, str],
    options: dict[str, str],
    asked_by: dict[str, str],
) -> Outcome:
    """A script that was read, and whether its parameters are those of its name."""
    task = record["task"]
    counts = (task["parameters"], task["active_parameters"])
    names = [*values.values(), path.name, path.parent.name]
    sizes = next((found for name in names if (found := sizes_of(name))), [])
    fits = any(s / TOLERANCE <= count <= s * TOLERANCE for s in sizes for count in counts)
    fits |= any(option == "--num-experts" for option in asked_by.values())
    fits |= path.name in TOYS
    named = f"{counts[0] / 1e9:.2f} B" + (f", named {sizes[0] / 1e9:g} B" if sizes else "")
    given = len(values) if len(values) <= 2 else 1
    kind = "read" if fits or not sizes else "misread"
    if path.name in STATED:
        kind = "read" if counts[0] == STATED[path.name] else "misread"
    return Outcome(kind, named, given + len(options), len(values) + len(options))


def sizes_of(name: str) -> list[float]:
    """Parameters that a name states, such as 7B, 0.5B, 125M or 8x7b (whose experts share the
    rest)."""
    sizes = []
    for match in _SIZE.finditer(name):
        size = float(match[2]) * (1e9 if match[3].lower() == "b" else 1e6)
        sizes.append(size * (0.83 * int(match[1]) if match[1] else 1))
    return sizes


def main(words: list[str]) -> int:
    """Print the table; 1 where a script is misread or fails otherwise."""
    lines, words = "--lines" in words, [word for word in words if not word.startswith("--")]
    folder, outcomes = Path(words[0]), {}
    for path in scripts(folder, words[1] if len(words) > 1 else None):
        outcomes[str(path.relative_to(folder))] = tried(path)
    if lines:
        for name, outcome in outcomes.items():
            counts = f"{outcome.values} {outcome.single_values:2}"
            print(f"{outcome.kind:8} {counts} {name}: {outcome.detail[:150]}")
    kinds = Counter(outcome.kind for outcome in outcomes.values())
    read = [outcome for outcome in outcomes.values() if outcome.kind == "read"]
    few = sum(outcome.values <= 3 for outcome in read)
    singly = sum(outcome.single_values <= 3 for outcome in read)
    reasons = Counter(
        re.sub(r"line \d+|\d+|\S+\.(?:py|sh)\b|\S*/\S*", "_", o.detail)[:90]
        for o in outcomes.values()
        if o.kind == "refused"
    )
    print(
        f"{len(outcomes)} scripts: {dict(kinds)}; {few} read with at most three values, the "
        f"arguments of a script as one; {singly} where each counts"
    )
    for reason, count in reasons.most_common():
        print(f"{count:5} refused: {reason}")
    return int(bool(kinds.keys() - {"read", "refused"}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
