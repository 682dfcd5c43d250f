"""Kills every verb that writes at random moments: nothing may be half written, lost or left alive.

    python tests/benchmarks/kills.py --kills 100 --seed 1 [--verb NAME]...

Each run has an old file where it writes, or for `sweep` and `tune` the rows and runs of the one
before. It is killed by SIGINT, SIGTERM or SIGKILL somewhere between its start and its usual end.
Then every file is the old one or a whole new one, no process of it is left after 2 seconds, the
exit code of a run that was ended is 130, 143 or -9, and what sweep and tune had done is still
there.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TASK = ("--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--gpus", "8", "--sequence", "2048")
BATCH = ("--global-batch", "64")
OLD = "old\n"
GONE = 2.0
"""Seconds after which no process of a killed run is left."""
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}


def _json(text: str) -> bool:
    return bool(json.loads(text))


def _rows(text: str) -> bool:
    """A whole table; its last line may be cut, which --resume leaves out."""
    rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    return not rows or {len(row) for row in rows} == {len(rows[0])}


def _whole_rows(text: str) -> bool:
    return _rows(text) and text.endswith("\n")


def _ends(end: str) -> Callable[[str], bool]:
    return lambda text: text.rstrip().endswith(end)


@dataclass(frozen=True)
class Verb:
    """A command that writes files."""

    words: tuple[str, ...]
    files: dict[str, Callable[[str], bool]]
    """Names of files that it writes, and whether a text is a whole one."""
    grows: bool = False
    """Whether it adds to what its last run wrote."""


SWEEP = (*TASK, "--over", f"global-batch={','.join(str(8 * i) for i in range(1, 30))}", "--fix")
TUNE = ("tune", *TASK, *BATCH, "--framework", "megatron", "--next", "3", "--logs", ".")
ROWS = str(Path(__file__).parents[1] / "simulator" / "calibration" / "data" / "nccl_h100.csv")
STEPS = (*TASK, *BATCH, "--plan", "tp=2", "--seconds", "0.5")
VERBS = {
    "search": Verb(
        ("search", *TASK, *BATCH, "--csv", "a.csv", "--report", "b.html", "--plot", "c.svg"),
        {"a.csv": _whole_rows, "b.html": _ends("</html>"), "c.svg": _ends("</svg>")},
    ),
    "export": Verb(
        ("export", "tp=2", *TASK, *BATCH, "--to", "megatron", "--output", "a.sh"),
        {"a.sh": _ends("...")},
    ),
    "timeline": Verb(
        ("timeline", *TASK, *BATCH, "--plan", "pp=8", "--trace", "a.json", "--plot", "b.svg"),
        {"a.json": _json, "b.svg": _ends("</svg>")},
    ),
    "calibrate": Verb(
        ("calibrate", "steps", *STEPS, "--out", "a.toml"),
        {"a.toml": lambda text: "calibration" in tomllib.loads(text)},
    ),
    "sweep": Verb(
        ("sweep", *SWEEP, "cp=1", "--csv", "a.csv", "--resume"), {"a.csv": _rows}, grows=True
    ),
    "sweep-anew": Verb(("sweep", *SWEEP, "cp=1", "--csv", "a.csv"), {"a.csv": _whole_rows}),
    "explain": Verb(
        ("explain", *TASK, *BATCH, "--plan", "tp=2", "--plot", "a.svg"), {"a.svg": _ends("</svg>")}
    ),
    "compare": Verb(
        ("compare", *TASK, *BATCH, "--seeds", "1", "--budget", "50", "--plot", "a.svg"),
        {"a.svg": _ends("</svg>")},
    ),
    "validate": Verb(
        ("validate", "--source", "flash_attn_training", "--csv", "a.csv", "--plot", "b.svg"),
        {"a.csv": _whole_rows, "b.svg": _ends("</svg>")},
    ),
    "import": Verb(("calibrate", "import", ROWS, "--out", "a.csv"), {"a.csv": _whole_rows}),
    "fit": Verb(
        ("calibrate", "fit", ROWS, "--base", "h100-sxm", "--out", "a.toml"),
        {"a.toml": lambda text: "links" in tomllib.loads(text)},
    ),
    "show": Verb(
        ("calibrate", "show", ROWS, "--profile", "h100-sxm", "--csv", "a.csv", "--plot", "b.svg"),
        {"a.csv": _whole_rows, "b.svg": _ends("</svg>")},
    ),
    "tune-launch": Verb(
        (*TUNE, "--launch", "sh -c 'echo no step; sleep 0.2' {script}"),
        {"tune.json": _json},
        grows=True,
    ),
    "tune": Verb(
        TUNE,
        {"tune.json": _json},
        grows=True,
    ),
}


def run(words: tuple[str, ...], folder: Path) -> subprocess.Popen[bytes]:
    """The command in a session of its own, so that whoever belongs to it can be counted."""
    return subprocess.Popen(
        [sys.executable, "-m", "plan3d", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def members(session: int) -> list[int]:
    """Processes of a session that still run."""
    out = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, _, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(of) == session and state not in "ZX":
                out.append(int(entry.name))
    return out


def problems(verb: Verb, folder: Path, moment: float, number: signal.Signals) -> list[str]:
    """What is wrong after one kill."""
    before = {name: _text(folder / name) for name in verb.files}
    child = run(verb.words, folder)
    time.sleep(moment)
    ended = child.poll() is not None
    child.send_signal(number)
    _, told = child.communicate(timeout=60)
    limit = time.monotonic() + GONE
    while members(child.pid) and time.monotonic() < limit:
        time.sleep(0.01)
    found = ["a process is left"] if members(child.pid) else []
    early = b"KeyboardInterrupt" in told and b"plan3d" not in told  # Python is still starting
    if child.returncode not in (SIGNALS[number], 0, -number, early) or (ended and child.returncode):
        last = told.decode("utf-8", "replace").rstrip().rpartition("\n")[2][:200]
        found.append(f"exit code {child.returncode} after {number.name}: {last}")
    for name, whole in verb.files.items():
        text = _text(folder / name)
        if text not in ("", before[name]) and not whole(text):
            found.append(f"{name} is half written")
        if before[name] and not text:
            found.append(f"{name} is lost")
        if verb.grows and name.endswith(".csv"):
            old = [line for line in before[name].splitlines(keepends=True) if line.endswith("\n")]
            if not set(old) <= set(text.splitlines(keepends=True)):
                found.append("rows are lost")
    return found


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _fresh(name: str, folder: Path, first: dict[str, str]) -> None:
    """The folder as it is before a run that does not go on from the last one."""
    for path in folder.iterdir():
        path.unlink()
    for file in VERBS[name].files:
        (folder / file).write_text(first.get(file, OLD))


def kill(name: str, kills: int, draw: random.Random) -> Counter[str]:
    """Problems of a verb over so many kills."""
    verb, out = VERBS[name], Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        began = time.monotonic()
        run(verb.words, folder).communicate()
        usual = time.monotonic() - began
        whole = {file: _text(folder / file) for file in verb.files}
        first = whole if name == "sweep-anew" else {}
        for _ in range(kills):
            if not verb.grows:
                _fresh(name, folder, first)
            elif draw.random() < 0.1:
                for path in folder.iterdir():
                    path.unlink()
            moment = draw.uniform(0.0, 1.05 * usual)
            number = draw.choice(list(SIGNALS))
            out.update(problems(verb, folder, moment, number))
        if verb.grows:
            child = run(verb.words, folder)
            _, told = child.communicate()
            if child.returncode:
                out[f"does not go on: {told.decode()[:200]}"] += 1
            if name == "sweep" and _text(folder / "a.csv") != whole["a.csv"]:
                out["the rows differ from those of one run"] += 1
        drafts = [path for path in os.listdir(folder) if path.endswith(".tmp")]
        print(f"{name:12} {kills} kills in 0 to {usual:.1f} s: {sum(out.values())} problems; "
              f"{len(drafts)} drafts", flush=True)  # fmt: skip
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of every verb")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verb", action="append", choices=VERBS)
    args = parser.parse_args()
    draw, total = random.Random(args.seed), Counter[str]()
    for name in args.verb or VERBS:
        found = kill(name, args.kills, draw)
        for problem, times in found.most_common():
            print(f"    {times:4} {problem}")
        total += found
    return bool(total)


if __name__ == "__main__":
    raise SystemExit(main())
