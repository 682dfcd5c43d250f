"""Fuzzes every reader with broken files: none may crash, hang or fill the memory.

    python tests/benchmarks/fuzz.py --inputs 10000 --seed 1 [--reader NAME]... [--crashes FOLDER]

Seeds are the repository's own files and inputs that crashed once, mutated: bytes, tokens, lines,
numbers, brackets and parts of other seeds. A reader may take an input or refuse it as a
Plan3dError; what else it raises is a crash, more than 2 seconds a hang. Crashes are told apart by
where they are raised; the first input of each is kept in the folder.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz_readers import READERS, Reader, site_of

from plan3d.simulator.base.errors import Plan3dError

HANG, BLOCKED = 2.0, 30.0
"""Seconds of this process, and of the clock: others may be busy."""
ALARMS = (signal.SIGPROF, signal.SIGALRM)
MEMORY = 3 * 2**30
"""Bytes of address space, beyond which an input is a MemoryError."""
CORPUS = Path(__file__).with_name("corpus")
"""Inputs that crashed once, by reader: mutated as seeds are."""
NUMBERS = (
    *(b"0", b"1", b"-1", b"7", b"1000", b"65536", b"2147483647", b"2147483648", b"1e12", b"1.5"),
    *(b"1000000000000", b"18446744073709551616", b"1e400", b"-1e400", b"nan", b"inf", b"-inf"),
    *(b"0x7f", b"0b_", b"1_000", b"09", b"1e-320", b"", b"true", b"null", b"9" * 41, b"9" * 5000),
)
TOKENS = (
    *(b"\n", b"\r", b"\0", b"\x1b[2J", "\u202e".encode(), b"\xff", b"\xef\xbb\xbf", b"'", b'"'),
    *(b"{", b"}", b"[", b"]", b"(", b")", b",", b";", b":", b"=", b"-", b"--", b"#", b"&x ", b"*x"),
    *(b"<<: ", b"!!", b"$((", b"))", b"${", b"$(", b"`", b"\\", b"|", b"%", b"..", b"../", b"/"),
    *(b"[" * 3000, b"{" * 3000, b"(" * 3000, b"-" * 3000, b"a." * 3000, b"x" * 140_000, b"*99999"),
    *(b"/dev/zero", b"/etc/passwd", b"<!--", b"{{", b"@", b"E", b"L", b"t", b"m", b"GiB", b"0 1\n"),
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class Hung(BaseException):
    """An input took longer than HANG."""


def kept(name: str) -> list[bytes]:
    """Inputs on which a reader crashed once."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def mutated(seed: bytes, others: list[bytes], random: random.Random) -> bytes:
    """A seed with a few changes."""
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        seed = random.choice(MUTATORS)(seed, others, random)[:400_000]
    return gzip.compress(seed) if random.random() < 0.01 else seed


def _cut(seed: bytes, random: random.Random) -> tuple[int, int]:
    """Ends of a part of a seed, short ones most often."""
    begin = random.randrange(len(seed) + 1)
    return begin, min(begin + int(random.paretovariate(0.7)), len(seed))


def _flip(seed: bytes, others: list[bytes], random: random.Random) -> bytes:
    begin, _ = _cut(seed, random)
    return seed[:begin] + bytes([random.randrange(256)]) + seed[begin + 1 :]


def _insert(seed: bytes, others: list[bytes], random: random.Random) -> bytes:
    begin, _ = _cut(seed, random)
    return seed[:begin] + random.choice(TOKENS) + seed[begin:]


def _delete(seed: bytes, others: list[bytes], random: random.Random) -> bytes:
    begin, end = _cut(seed, random)
    return seed[:begin] + seed[end:]


def _repeat(seed: bytes, others: list[bytes], random: random.Random) -> bytes:
    begin, end = _cut(seed, random)
    return seed[:end] + seed[begin:end] * random.choice((1, 1, 2, 9, 300)) + seed[end:]


def _number(seed: bytes, others: list[bytes], random: random.Random) -> bytes:
    found = list(_NUMBER.finditer(seed))
    if not found:
        return _insert(seed, others, random)
    at = random.choice(found)
    return seed[: at.start()] + random.choice(NUMBERS) + seed[at.end() :]


def _lines(seed: bytes, others: list[bytes], random: random.Random) -> bytes:
    """A line left out, doubled, or in another's place."""
    lines = seed.split(b"\n")
    i, j = random.randrange(len(lines)), random.randrange(len(lines))
    lines[i : i + 1] = random.choice(([], [lines[i]] * 2, [lines[j]]))
    return b"\n".join(lines)


def _splice(seed: bytes, others: list[bytes], random: random.Random) -> bytes:
    other = random.choice(others)
    begin, end = _cut(other, random)
    at, _ = _cut(seed, random)
    return seed[:at] + other[begin : end + random.choice((0, 20, 200))] + seed[at:]


def _value(seed: bytes, others: list[bytes], random: random.Random) -> bytes:
    """A quoted text, a word or a cell in another's place."""
    found = list(re.finditer(rb"\"[^\"\n]*\"|[\w.+-]+|(?<=,)(?=,)", seed))
    if not found:
        return seed
    at, other = random.choice(found), random.choice(found)
    new = random.choice(
        (other[0], b'""', b"[]", b"{}", b"null", b"true", b"-1", b"x\x1b\xe2\x80\xae")
    )
    return seed[: at.start()] + new + seed[at.end() :]


MUTATORS = (
    _flip,
    _insert,
    _delete,
    _repeat,
    _number,
    _number,
    _number,
    _lines,
    _splice,
    _value,
    _value,
)


@dataclass
class Found:
    """What a reader did with its inputs."""

    inputs: int = 0
    taken: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    hangs: int = 0
    crashes: Counter[str] = field(default_factory=Counter)


def interrupted(number: int, frame: Any) -> None:
    """Handles the alarm of an input that takes too long."""
    raise Hung


def tried(reader: Reader, path: Path, content: bytes, found: Found) -> str:
    """One input; the site where the reader crashed, or ''."""
    path.write_bytes(content)
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, HANG)
    signal.setitimer(signal.ITIMER_REAL, BLOCKED)
    site = ""
    try:
        reader.read(path)
        found.taken += 1
    except Plan3dError:
        found.refused += 1
    except Hung:
        found.hangs += 1
        site = f"hang {site_of(traceback.format_exc())}"
    except Exception as error:
        known = isinstance(error, AssertionError) and str(error)
        site = f"{type(error).__name__} {known or site_of(traceback.format_exc())}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        took = time.process_time() - began
        found.inputs, found.seconds = found.inputs + 1, found.seconds + took
        found.slowest = max(found.slowest, took)
    if site:
        found.crashes[site] += 1
    return site


def fuzz(name: str, inputs: int, seed: int, keep: Path | None) -> Found:
    """Try a reader on so many inputs."""
    reader, found, draw = READERS[name], Found(), random.Random(f"{name} {seed}")
    seeds = reader.seeds()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / reader.ending
        for content in seeds:
            path.write_bytes(content)
            try:
                reader.read(path)
            except Plan3dError as error:
                print(f"{name}: a seed is refused: {error}")
        seeds += kept(name)
        for _ in range(inputs):
            content = mutated(draw.choice(seeds), seeds, draw)
            site = tried(reader, path, content, found)
            if site and keep and found.crashes[site] == 1:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{name}-{re.sub('[^A-Za-z0-9]+', '-', site)[:80]}").write_bytes(content)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000, help="of every reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", action="append", choices=READERS)
    parser.add_argument("--crashes", type=Path, help="folder for the first input of each")
    args = parser.parse_args()
    for alarm in ALARMS:
        signal.signal(alarm, interrupted)
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    total = Found()
    for name in args.reader or READERS:
        found = fuzz(name, args.inputs, args.seed, args.crashes)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(
            f"{name:16} {found.inputs:8} inputs {found.taken:7} taken {found.refused:8} refused "
            f"{sum(found.crashes.values()) - found.hangs:5} crashes {found.hangs:3} hangs "
            f"slowest {found.slowest:.2f} s  {1e3 * found.seconds / found.inputs:.1f} ms each  "
            f"peak so far {memory:.0f} MB",
            flush=True,
        )
        for site, times in found.crashes.most_common():
            print(f"    {times:6} {site}", flush=True)
        total.inputs, total.hangs = total.inputs + found.inputs, total.hangs + found.hangs
        total.crashes += found.crashes
    crashes = sum(total.crashes.values()) - total.hangs
    print(f"{total.inputs} inputs: {crashes} crashes, {total.hangs} hangs")
    return bool(total.crashes)


if __name__ == "__main__":
    raise SystemExit(main())
