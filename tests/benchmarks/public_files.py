"""Public launch scripts: how many are read, refused and why, and whether they are misread.

    python tests/benchmarks/public_files.py FOLDER [LIST.csv] [--lines]

FOLDER holds one folder a repository, OWNER+NAME; LIST.csv has the columns kind, repository, commit
and path, and without it every script of the folder is tried. What a script asks for is given: the
first of the choices that it lists, else a usual value of the flag that needs it. Arguments that the
user gives after -- count as one value, so do --vocabulary and --gpus. The parameters of what is
read are compared with the sizes in the script's path and in the values that were chosen.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.registry import reader
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.simulator.base.errors import InputError

USUAL = {
    "--micro-batch-size": "1",
    "--global-batch-size": "256",
    "--seq-length": "2048",
    "--max-position-embeddings": "2048",
    "--num-layers": "24",
    "--hidden-size": "2048",
    "--num-attention-heads": "16",
}
"""Values by the flag that needs them; 1 of the others."""
VOCABULARY = 128_000
MOST_QUESTIONS = 8
"""Rounds of asking for one script."""
TOLERANCE = 1.35
"""By what factor parameters may differ from a rounded size in a name, with the vocabulary above."""
_CHOSEN = re.compile(r"(\w+) (?:\(\$\d+\) )?(?:has no value)[^()]*\((--[\w-]+)\)")
_ASKED = re.compile(r"\((--[\w-]+)\): --set (\w+)=VALUE|--set (\w+)=([\w.+-]+)")
_SIZE = re.compile(r"(?<![a-z\d.])(?:(\d+)x)?(\d+(?:\.\d+)?)(b|m)(?![a-z])", re.I)


class Outcome(NamedTuple):
    """What became of one script."""

    kind: str
    """read, refused, misread or a name of an exception."""
    detail: str
    values: int = 0
    """Values that were given."""


def scripts(folder: Path, listed: str | None) -> Iterator[Path]:
    """The scripts of a list, or of the folder."""
    if listed is None:
        yield from sorted(p for end in ("sh", "slurm") for p in folder.rglob(f"*.{end}"))
        return
    with Path(listed).open(encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            if row["kind"] == "Megatron script":
                yield folder / row["repository"].replace("/", "+") / row["path"]


def tried(path: Path) -> Outcome:
    """A script read with what it asks for."""
    text = path.read_text("utf-8", errors="replace")
    values: dict[str, str] = {}
    vocabulary: int | None = None

    def sourced(name: str) -> str | None:
        file = path.parent / name
        return file.read_text("utf-8", errors="replace") if file.is_file() else None

    why = ""
    asked_by: dict[str, str] = {}
    for _ in range(MOST_QUESTIONS):
        inputs = ScriptInputs((), values, sourced)
        options = ReaderOptions(vocabulary=vocabulary, inputs=inputs)
        try:
            launch = reader(text, str(path), None)(text, path.name, options)
        except InputError as error:
            why = str(error)
            asked = {
                m[2] or m[3]: USUAL.get(m[1], "1") if m[2] else m[4] for m in _ASKED.finditer(why)
            }
            asked_by |= {m[2]: m[1] for m in _ASKED.finditer(why) if m[2]}
            asked_by |= {name: option for name, option in _CHOSEN.findall(why)}
            if asked.keys() - values.keys():
                values |= asked
            elif vocabulary is None and "--vocabulary" in why:
                vocabulary = VOCABULARY
            else:
                return Outcome("refused", why.partition(": ")[2])
            continue
        except Exception as error:  # the bench counts them
            return Outcome(type(error).__name__, str(error)[:80])
        given = len(values) if len(values) <= 2 else 1
        given += (vocabulary is not None) + (not (launch.gpus or launch.launcher_gpus))
        parameters = launch.model.parameters if launch.model else 0
        names = [*values.values(), path.name, path.parent.name]
        sizes = next((found for name in names if (found := sizes_of(name))), [])
        active = launch.model.active_parameters if launch.model else 0
        counts = (parameters, active)
        fits = any(s / TOLERANCE <= count <= s * TOLERANCE for s in sizes for count in counts)
        fits |= any(option == "--num-experts" for option in asked_by.values())
        named = f"{parameters / 1e9:.2f} B" + (f", named {sizes[0] / 1e9:g} B" if sizes else "")
        return Outcome("read" if fits or not sizes else "misread", named, given)
    return Outcome("refused", why)


def sizes_of(name: str) -> list[float]:
    """Parameters that a name states, such as 7B, 0.5B, 125M or 8x7b (whose experts share the
    rest)."""
    sizes = []
    for match in _SIZE.finditer(name):
        size = float(match[2]) * (1e9 if match[3].lower() == "b" else 1e6)
        sizes.append(size * (0.83 * int(match[1]) if match[1] else 1))
    return sizes


def main(words: list[str]) -> int:
    """Print the table; 1 where a script is misread or raises another exception."""
    lines, words = "--lines" in words, [word for word in words if not word.startswith("--")]
    folder, outcomes = Path(words[0]), {}
    for path in scripts(folder, words[1] if len(words) > 1 else None):
        outcomes[str(path.relative_to(folder))] = tried(path)
    if lines:
        for name, outcome in outcomes.items():
            print(f"{outcome.kind:8} {outcome.values} {name}: {outcome.detail[:150]}")
    kinds = Counter(outcome.kind for outcome in outcomes.values())
    few = sum(outcome.kind == "read" and outcome.values <= 3 for outcome in outcomes.values())
    reasons = Counter(
        re.sub(r"line \d+|\d+|\S+\.(?:py|sh)\b|\S*/\S*", "_", o.detail)[:70]
        for o in outcomes.values()
        if o.kind == "refused"
    )
    print(f"{len(outcomes)} scripts: {dict(kinds)}; {few} read with at most three values")
    for reason, count in reasons.most_common():
        print(f"{count:5} refused: {reason}")
    return int(bool(kinds.keys() - {"read", "refused"}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
