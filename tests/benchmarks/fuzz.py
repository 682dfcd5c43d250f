"""Fuzzes every reader with broken files: none may crash, hang or fill the memory.

    python tests/benchmarks/fuzz.py --inputs 10000 --seed 1 [--reader NAME]... [--crashes FOLDER]

Seeds are the repository's own files, mutated: bytes, tokens, lines, numbers, brackets and parts of
other seeds. A reader may take an input or refuse it as a Plan3dError; what else it raises is a
crash, more than 2 seconds a hang. Crashes are told apart by where they are raised; the first input
of each is kept in the folder.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import random
import re
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from plan3d.cli.arguments import plan_arguments
from plan3d.cli.evidence import calibrate_steps
from plan3d.cli.main import main as command_line
from plan3d.launch_files.exporter import written
from plan3d.launch_files.registry import EXPORTERS
from plan3d.simulator.base.errors import InputError, Plan3dError
from plan3d.simulator.base.files import read_text
from plan3d.simulator.calibration.readers.files import Hints, read
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.gossip_graphs import Graph
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.plan.stage_layout import read_layout
from plan3d.simulator.runs.origins import read_origins
from plan3d.simulator.runs.published_runs import read_runs
from plan3d.simulator.runs.run_tasks import questions
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model
from plan3d.tuning.session import resumed

HANG, BLOCKED = 2.0, 30.0
"""Seconds of this process, and of the clock: others may be busy."""
ALARMS = (signal.SIGPROF, signal.SIGALRM)
MEMORY = 3 * 2**30
"""Bytes of address space, beyond which an input is a MemoryError."""
ROOT = Path(__file__).parents[2]
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


@dataclass(frozen=True)
class Reader:
    """Something that reads files."""

    ending: str
    """Of the file's name."""
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], object]


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


@cache
def _task(model: str = "llama-3.1-8b") -> Task:
    cluster = Cluster.profile("h100-sxm", gpus=8)
    return Task(Model.preset(model), cluster, sequence=2048, global_batch=64)


def _shipped(*names: str) -> list[bytes]:
    return [files("plan3d.hardware_profiles").joinpath(name).read_bytes() for name in names]


def _exported(framework: str, *plans: str, model: str = "llama-3.1-8b") -> list[bytes]:
    form = EXPORTERS[framework].form()
    return [written(_task(model), resolve(Plan.parse(p), 8), form).encode() for p in plans]


def _data(*patterns: str) -> list[bytes]:
    """Small files of the tests."""
    found = [path for pattern in patterns for path in sorted(ROOT.glob(f"tests/{pattern}"))]
    return [path.read_bytes() for path in found if path.stat().st_size < 30_000]


def _head(name: str, rows: int) -> list[bytes]:
    """The first rows of a table that comes with the package, a few at a time."""
    lines = files("plan3d.simulator.runs").joinpath(name).read_bytes().split(b"\n")
    top = [line for line in lines[:20] if line.startswith(b"#")]
    header, *rest = lines[len(top) :]
    return [b"\n".join([header, *rest[at : at + 3], b""]) for at in range(0, rows, 40)]


def _imports(path: Path) -> None:
    """A launch file as the command line reads it."""
    words = ["import", str(path), "--cluster", "h100-sxm", "--gpus", "8", "--json", "--traceback"]
    whole = path.suffix != ".json" or b"cat >" in path.read_bytes()
    _command(words if whole else [*words, "--model", "llama-3.1-8b"])


def _command(words: list[str]) -> None:
    out, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        code = command_line(words)
    if code == 70:
        raise AssertionError(_site_of(told.getvalue()))
    line = told.getvalue().rstrip("\n")
    if code == 2 and ("\n" in line or not line.isprintable() or len(line) > 1100):
        raise AssertionError("the error is not one printable line of bounded length")
    if code in (2, 3, 4):
        raise InputError(line)


def _site_of(told: str) -> str:
    """Where a traceback ends."""
    found = re.findall(r'File "([^"]*)", line (\d+)', told)
    others = ("site-packages", "/lib/python", "benchmarks")
    inside = [(file, line) for file, line in found if not any(part in file for part in others)]
    return f"{'/'.join(Path(inside[-1][0]).parts[-2:])}:{inside[-1][1]}" if inside else told[-200:]


ESTIMATE = {
    "--model": "gpt3-1.3b",
    "--cluster": "h100-sxm",
    "--gpus": "8",
    "--sequence": "1024",
    "--global-batch": "8",
    "--plan": "dp=8",
}


def _estimates(option: str) -> Callable[[Path], None]:
    """A prediction with a file as the value of an option, as JSON."""

    def estimate(path: Path) -> None:
        asked = {**ESTIMATE, option: str(path)}
        if path.name.startswith("net."):
            del asked["--sequence"]
        words = [word for pair in asked.items() for word in pair]
        _command(["estimate", *words, "--json", "--traceback"])

    return estimate


def _texts(read: Callable[[str], object]) -> Callable[[Path], object]:
    """A reader of text that the command line hands on."""
    return lambda path: read(path.read_bytes().decode("utf-8", "replace"))


def _plan_words(text: str) -> None:
    plan = Plan.parse(text)
    evaluate(_task("gpt3-1.3b"), plan)


@cache
def _rows_of_a_sweep() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        words = ["sweep", "--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--sequence", "2048"]
        words += ["--global-batch", "8", "--gpus", "8", "--over", "tp=1,2,3", "--plan", "pp=2"]
        _command([*words, "--csv", str(path)])
        return path.read_bytes()


def _continued(path: Path) -> None:
    """A sweep that goes on from a file."""
    words = ["sweep", "--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--sequence", "2048"]
    words += ["--global-batch", "8", "--gpus", "8", "--over", "tp=1,2,3", "--plan", "pp=2"]
    _command([*words, "--csv", str(path), "--resume", "--json", "--traceback"])


@cache
def _result() -> bytes:
    out = io.StringIO()
    words = ["estimate", "--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--gpus", "8"]
    words += ["--sequence", "2048", "--global-batch", "8", "--plan", "tp=2 pp=2", "--json"]
    with contextlib.redirect_stdout(out):
        command_line(words)
    return out.getvalue().encode()


def _calibration() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.toml"
        words = ["calibrate", "steps", "--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--gpus"]
        words += ["8", "--sequence", "2048", "--global-batch", "8", "--plan", "tp=2", "--seconds"]
        _command([*words, "1.2", "--out", str(path)])
        return [path.read_bytes()]


def _session() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["tune", "--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--gpus", "8", "--logs"]
        words += [folder, "--framework", "megatron", "--global-batch", "8", "--next", "2"]
        _command(words)
        return [(Path(folder) / "tune.json").read_bytes()]


def _resumed(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tune.json").write_bytes(path.read_bytes())
        resumed(Path(folder), {})


def _configs() -> list[bytes]:
    return [text.encode() for text in _config_texts()]


def _config_texts() -> Iterator[str]:
    yield (
        '{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "vocab_size": 1000,'
        ' "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1024,'
        ' "max_position_embeddings": 2048, "rope_theta": 10000.0, "tie_word_embeddings": false,'
        ' "attention_bias": false, "mlp_bias": false, "head_dim": 64}'
    )
    yield (
        '{"model_type": "deepseek_v3", "hidden_size": 512, "num_hidden_layers": 4, "vocab_size": '
        '1000, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1024,'
        ' "moe_intermediate_size": 128, "n_routed_experts": 8, "num_experts_per_tok": 2,'
        ' "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 2,'
        ' "topk_group": 1, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_rope_head_dim": 16,'
        ' "qk_nope_head_dim": 32, "v_head_dim": 32, "num_nextn_predict_layers": 1,'
        ' "max_position_embeddings": 4096, "tie_word_embeddings": false}'
    )
    yield (
        '{"model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 1024,'
        ' "n_inner": null, "vocab_size": 50257, "activation_function": "gelu_new"}'
    )
    yield (
        '{"model_type": "gemma3_text", "hidden_size": 256, "num_hidden_layers": 6, "vocab_size":'
        ' 1000, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "sliding_window'
        '": 512, "sliding_window_pattern": 6, "intermediate_size": 512, "layer_types": null}'
    )


LAYERS = (
    b"# a network\n"
    b"name,parameters,forward_flops,activation_bytes,boundary_bytes,efficiency,repeat\n"
    b"a,1000000,2e9,1e6,1e5,0.5,3\nb,200,4e6,2e5,1e4,,\n"
)
LAYERS_JSON = (
    b'{"name": "net", "source": "me", "layers": [{"name": "a", "parameters": 100, "forward_flops":'
    b' 1e9, "activation_bytes": 5, "boundary_bytes": 7, "repeat": 2, "efficiency": 0.4}]}'
)
SHORT = (
    b"run,source,status,accelerator,gpus,gpus_per_node,inter_node_network,model,family,n_params_b,"
    b"layers,hidden,ffn_hidden,heads,kv_heads,vocab,sequence,experts,experts_per_token,global_batch,"
    b"micro_batch,tp,pp,virtual_stages,dp,cp,ep,zero_stage,fsdp,sequence_parallel,recompute,dtype,"
    b"flash_attention,schedule,framework,step_seconds,peak_memory_gb,notes\n"
    b"r,me,ok,h100-sxm,16,8,8x 400 Gb/s per node,m,llama,6.7,32,4096,11008,32,32,32000,2048,0,0,"
    b"64,1,2,2,1,4,1,1,1,False,True,selective (core_attn),bf16,True,1f1b,"
    b"megatron,3.2,41.5,hsdp 4; GiB\n"
)
PLANS = (
    b"tp=2 pp=2 micro_batch=1 recompute=full zero=1 schedule=interleaved virtual_stages=2",
    b"pp=4 layers_per_stage=6,6,7,5 schedule=zb-h1 offload_optimizer=50",
    b"pp=2 segments=12:recompute=full|12 dp=4",
    b"dp=8 sync=gossip topology=ring",
)
LAYOUTS = (b"Et*3|(tt|)*9|m|L", b"11,12,12,11", b"E(t|)*4tL")
GRAPHS = (b"0 1\n1 2\n2 0\n", b"# ring\n0-1\n1,2\n2;3\n3 0\n")
STEPS = b"plan,seconds,gpus,global_batch\ntp=2 pp=1,1.2,8,8\ntp=4,1500ms,8,8\n"
ORIGINS = b"source,origin\nmegatron,nvidia\nmine,me\n"


def _timed_rows(path: Path) -> None:
    calibrate_steps._rows(str(path), read_text(path))


def _steps(path: Path) -> None:
    words = ["calibrate", "steps", "--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--gpus", "8"]
    _command([*words, "--sequence", "2048", "--global-batch", "8", str(path), "--json"])


def _published(path: Path) -> None:
    """Runs, and what each of them asks."""
    for asked in questions(read_runs(path)):
        if not isinstance(asked, str):
            evaluate(asked.task, asked.plan)


READERS = {
    "config": Reader("config.json", _configs, _estimates("--model")),
    "layers-csv": Reader("net.csv", lambda: [LAYERS], _estimates("--model")),
    "layers-json": Reader("net.json", lambda: [LAYERS_JSON], _estimates("--model")),
    "profile": Reader(
        "p.toml", lambda: _shipped("h100-sxm.toml", "gb200.toml"), _estimates("--cluster")
    ),
    "software": Reader(
        "s.toml",
        lambda: _shipped("software/megatron-core.toml", "software/fsdp.toml"),
        _estimates("--software"),
    ),
    "megatron": Reader(
        "run.sh",
        lambda: (
            _exported("megatron", "tp=2 pp=2 zero=1", "pp=4 layers_per_stage=6,6,10,10")
            + _exported("megatron", "tp=2 ep=4", model="mixtral-8x7b")
        ),
        _imports,
    ),
    "deepspeed": Reader(
        "ds.json",
        lambda: _exported(
            "deepspeed", "zero=3", "tp=2 pp=2 zero=0 overlap_grad_reduce=0 overlap_param_gather=0"
        ),
        _imports,
    ),
    "torchtitan": Reader(
        "t.toml", lambda: _exported("torchtitan", "tp=2 zero=3", "pp=2 zero=2"), _imports
    ),
    "nanotron": Reader(
        "n.yaml", lambda: _exported("nanotron", "tp=2 pp=2 overlap_param_gather=0"), _imports
    ),
    "plan-words": Reader("plan.txt", lambda: [*PLANS], _texts(_plan_words)),
    "layout": Reader("layout.txt", lambda: [*LAYOUTS], _texts(read_layout)),
    "result": Reader(
        "result.json",
        lambda: [_result()],
        lambda path: plan_arguments.read_plan(f"{path}", "--plan"),
    ),
    "graph": Reader("g.txt", lambda: [*GRAPHS], _texts(Graph.parse)),
    "runs": Reader(
        "runs.csv", lambda: [*_head("published_runs.csv", 400), SHORT, SHORT], _published
    ),
    "origins": Reader("origins.csv", lambda: [ORIGINS], read_origins),
    "measurements": Reader(
        "m.csv",
        lambda: _data("simulator/data/*.csv", "simulator/calibration/data/**/*"),
        lambda path: read(str(path), Hints()),
    ),
    "steps": Reader(
        "steps.csv", lambda: [STEPS], lambda path: calibrate_steps._rows(str(path), read_text(path))
    ),
    "calibration": Reader("c.toml", _calibration, _estimates("--calibration")),
    "tune": Reader("tune.json", _session, _resumed),
    "sweep": Reader("rows.csv", lambda: [_rows_of_a_sweep()], _continued),
}
"""What reads files, by name."""


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
        site = f"hang {_site_of(traceback.format_exc())}"
    except Exception as error:
        known = isinstance(error, AssertionError) and str(error)
        site = f"{type(error).__name__} {known or _site_of(traceback.format_exc())}"
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
