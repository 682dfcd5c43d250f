"""Every reader takes a broken file or refuses it in one line: a few inputs of each.

tests/benchmarks/fuzz.py tries many more.
"""

import ast
import importlib.util
import signal
import sys
import tempfile
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
TRIED_BY = {
    "plan3d/cli/arguments/training_arguments.py": "graph",
    "plan3d/cli/arguments/plan_arguments.py": "result",
    "plan3d/cli/arguments/task_arguments.py": "documents",
    "plan3d/cli/evidence/calibrate.py": "measurements",
    "plan3d/cli/evidence/calibrate_steps.py": "steps",
    "plan3d/cli/arguments/positional.py": "megatron",
    "plan3d/cli/arguments/launch_file_arguments.py": "megatron",
    "plan3d/launch_files/deepspeed/launch.py": "deepspeed",
    "plan3d/launch_files/logs/launch.py": "wandb",
    "plan3d/launch_files/logs/printed_settings.py": "logs",
    "plan3d/launch_files/mcore/nemo.py": "nemo",
    "plan3d/launch_files/mcore/primus.py": "primus",
    "plan3d/launch_files/trainer/automodel.py": "automodel",
    "plan3d/launch_files/trainer/torchtune.py": "torchtune",
    "plan3d/launch_files/mcore/swift.py": "megatron-swift",
    "plan3d/launch_files/megatron_bridge/overrides.py": "bridge-overrides",
    "plan3d/launch_files/megatron_bridge/run_config.py": "bridge",
    "plan3d/launch_files/megatron/yaml_arguments.py": "flags",
    "plan3d/launch_files/nanotron/launch.py": "nanotron",
    "plan3d/launch_files/torchtitan/command.py": "torchtitan-command",
    "plan3d/launch_files/torchtitan/launch.py": "torchtitan",
    "plan3d/launch_files/trainer/accelerate.py": "accelerate",
    "plan3d/launch_files/trainer/commands.py": "trainer-command",
    "plan3d/launch_files/trainer/launch.py": "trainer-command",
    "plan3d/launch_files/yaml_frameworks.py": "trainer",
    "plan3d/tuning/loop.py": "logs",
    "plan3d/tuning/session.py": "tune",
    "plan3d/web/server.py": "request",
    "search/whatif/sweep_file.py": "sweep",
    "simulator/calibration/fit/profile_text.py": "fit",
    "simulator/calibration/readers/files.py": "nccl-tests",
    "simulator/calibration/readers/histories.py": "history",
    "simulator/calibration/readers/measurements.py": "measurements",
    "simulator/calibration/traces/memory_events.py": "memory-timeline",
    "simulator/calibration/traces/nsys.py": "nsys",
    "simulator/calibration/traces/reader.py": "trace",
    "simulator/hardware/gemm_tables.py": "gemm-table",
    "simulator/hardware/layer_tables.py": "layer-table",
    "simulator/hardware/leaves.py": "profile",
    "simulator/runs/published_runs.py": "runs",
    "simulator/workload/hf_config.py": "config",
    "simulator/workload/layer_list.py": "layers-csv",
}
"""Every module that reads a file, and a reader that the benchmark has for it."""
SHIPPED = {
    "plan3d/launch_files/tables.py",
    "plan3d/screens/report_page.py",
    "simulator/runs/nearest_run.py",
    "simulator/runs/same_runs.py",
    "simulator/runs/run_stack.py",
    "simulator/uncertainty/learned.py",
    "simulator/workload/presets.py",
}
"""Those that read only what comes with the package."""
DOOR = ("base.files", "base.documents", "base.csv_files")


def test_every_module_that_reads_is_fuzzed():
    found = {
        str(path.relative_to(ROOT))
        for folder in ("plan3d", "simulator", "search")
        for path in (ROOT / folder).rglob("*.py")
        if path.parent.name != "base" and _reads(path)
    }
    assert found == set(TRIED_BY) | SHIPPED
    assert set(TRIED_BY.values()) <= set(fuzz.READERS)


def _reads(path):
    """Whether a module takes a reader through the door for files."""
    text = path.read_text()
    if not any(door in text for door in DOOR):
        return False
    nodes = ast.walk(ast.parse(text))
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom))
    return any(
        (node.module or "").endswith(DOOR)
        and any(one.name.startswith(("read_", "parse_", "shipped_")) for one in node.names)
        for node in imports
    )


def load():
    """The benchmark, which has the readers, their seeds and the mutators."""
    path = Path(__file__).parent / "benchmarks" / "fuzz.py"
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("fuzz", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    return module


fuzz = load()


@pytest.fixture(scope="module", autouse=True)
def _alarms():
    before = {alarm: signal.signal(alarm, fuzz.interrupted) for alarm in fuzz.ALARMS}
    yield
    for alarm, handler in before.items():
        signal.signal(alarm, handler)


@cache
def seeds(name):
    return fuzz.READERS[name].seeds()


@pytest.mark.parametrize("name", fuzz.READERS)
def test_seeds_are_read(name):
    found = fuzz.Found()
    for content in seeds(name):
        assert tried(name, content, found) == ""
    assert found.taken == found.inputs > 0


def tried(name, content, found):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / fuzz.READERS[name].ending
        return fuzz.tried(fuzz.READERS[name], path, content, found)


@pytest.mark.parametrize("name", fuzz.READERS)
def test_what_crashed_once_is_taken_or_refused(name):
    found = fuzz.Found()
    for content in fuzz.kept(name):
        tried(name, content, found)
    assert not found.crashes


def test_what_crashed_is_kept_for_a_reader():
    assert {path.name for path in fuzz.CORPUS.iterdir()} <= set(fuzz.READERS)


@pytest.mark.parametrize("name", fuzz.READERS)
@given(number=st.integers(0, 2**32))
@example(number=0)
@settings(max_examples=6, deadline=None)
def test_broken_files_are_taken_or_refused(name, number):
    draw = Random(number)
    content = fuzz.mutated(draw.choice(seeds(name)), seeds(name), draw)
    assert tried(name, content, fuzz.Found()) == ""
