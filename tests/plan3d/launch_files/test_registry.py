"""Frameworks from outside the package are registered; none is loaded that is not asked for.

Those that entry points declare are in tests/test_extensions.py.
"""

import subprocess
import sys

import pytest

from plan3d.cli.main import main
from plan3d.launch_files import registry
from plan3d.launch_files.common_rules import one_of
from plan3d.launch_files.exporter import Exporter, Form, heading
from plan3d.launch_files.launch_file import Launch
from plan3d.launch_files.numbers import fill_launch, numbers_of
from plan3d.launch_files.tables import Numbers, Row, read_rows, settings_of
from plan3d.simulator.base.errors import InputError

TASK = ["--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--gpus", "16", "--global-batch", "64"]
TASK += ["--sequence", "2048"]
ROOMS = {"megatron", "megatron_bridge", "torchtitan", "deepspeed", "nanotron"}
TABLE = (Row("TP", "tp"), Row("PP", "pp"), Row("BATCH", "global_batch"), Row("LENGTH", "sequence"))


class Lines:
    """A file of lines KEY=VALUE."""

    def __init__(self, text):
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        self.values = dict(line.split("=") for line in lines)

    def claim(self, key):
        return key in self.values

    def size(self, key, *, least=1, most=2**31):
        return int(self.values[key])


def write(task, plan, kept=()):
    settings = settings_of(TABLE, numbers_of(task, plan))
    return "\n".join([*heading(task, plan, "mine 1"), *(f"{k}={v}" for k, v in settings), ""])


def read_mine(text, file, given):
    launch, n = Launch(file, "mine", model=given.model), Numbers()
    read_rows(TABLE, Lines(text), n)
    fill_launch(launch, n)
    return launch


MINE = Exporter(
    "mine", (Form("1", "mine 1", (one_of("mine-zero", "zero", (1,), "it is"),), write),)
)
"""A framework in one table."""


@pytest.fixture
def mine(monkeypatch):
    for known in (registry.EXPORTERS, registry.READERS):
        monkeypatch.setattr(known, "_known", dict(known._known))
    registry.register_exporter(MINE, read_mine)


def test_an_exporter_of_ones_own_writes_and_reads(mine, capsys, tmp_path):
    assert main(["export", "tp=2 pp=4", *TASK, "--to", "mine"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[3:] == ["TP=2", "PP=4", "BATCH=64", "LENGTH=2048"]
    path = tmp_path / "job.mine"
    path.write_text(out)
    words = ["import", str(path), "--from", "mine", *TASK[:6], "--to", "megatron"]
    assert main(words) == 0
    assert "--pipeline-model-parallel-size 4" in capsys.readouterr().out
    assert main(["export", "tp=2 zero=0", *TASK, "--to", "mine"]) == 2
    assert "(mine-zero)" in capsys.readouterr().err
    with pytest.raises(ValueError, match="is there already"):
        registry.register_exporter(Exporter("megatron", MINE.forms))


def test_a_field_of_a_plan_is_a_flag_of_a_framework():
    assert registry.flags_by_framework("pp") == {
        "megatron": "--pipeline-model-parallel-size",
        "megatron-bridge": "model.pipeline_model_parallel_size",
        "torchtitan": "parallelism.pipeline_parallel_degree",
        "deepspeed": "--pipeline-model-parallel-size",
        "nanotron": "parallelism.pp",
    }
    assert registry.flags_by_framework("sync_period") == {}
    assert registry.flags_by_framework("cp")["deepspeed"] == "--ds-sequence-parallel-size"


def test_only_the_frameworks_that_are_asked_for_are_loaded():
    code = (
        "import sys\nfrom plan3d.cli.main import main\n"
        f"main({['export', 'tp=2', *TASK, '--to', 'megatron']!r})\n"
        "rooms = {m.split('.')[2] for m in sys.modules if m.startswith('plan3d.launch_files.')}\n"
        f"print(sorted(rooms & {ROOMS!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['megatron']"


def test_a_framework_that_is_not_known_is_named_with_the_nearest():
    with pytest.raises(InputError, match="--to megatrom is not known; did you mean megatron"):
        registry.exporter("megatrom")
