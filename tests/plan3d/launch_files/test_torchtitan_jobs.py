"""Jobs of torchtitan before 0.2, whose keys had other names."""

import pytest

from plan3d.launch_files.launch_file import ReaderOptions, batch_of, gpus_of, plan_of
from plan3d.launch_files.registry import READERS, reader
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Precision

MODEL = """
[model]
name = "llama3"
flavor = "8B"
norm_type = "rmsnorm"
[optimizer]
fused = true
[activation_checkpoint]
mode = "full"
"""
OLDER = """
[training]
batch_size = 2
seq_len = 8192
warmup_steps = 200
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 4
compile = true
[experimental]
pipeline_parallel_degree = 1
context_parallel_degree = 2
enable_async_tensor_parallel = false
"""


def job(text, **given):
    return READERS["torchtitan"](MODEL + text, "job.toml", ReaderOptions(**given))


def fields(launch, *names):
    plan = plan_of(launch, {})
    return [getattr(plan, name) for name in names]


def test_axes_and_batch_by_their_older_names():
    launch = job(OLDER)
    assert fields(launch, "tp", "cp", "pp", "micro_batch") == [4, 2, 1, 2]
    assert launch.replicas == 2
    assert gpus_of(launch, None) == 64
    assert batch_of(launch, plan_of(launch, {}), 64, None) == 16
    assert not [one for one in launch.unread if not one.why_neutral]


@pytest.mark.parametrize("name", ["tensor_parallel_degree", "sequence_parallel_degree"])
def test_the_oldest_jobs_size_their_axes_in_training(name):
    text = f"[training]\nbatch_size = 1\ndata_parallel_degree = -1\n{name} = 2\n"
    launch = job(text)
    assert fields(launch, "tp", "zero", "micro_batch") == [2, 3, 1]


def test_all_ranks_of_data_hold_all_weights():
    text = """[training]
batch_size = 1
data_parallel_degree = 8
data_parallel_type = "ddp"
"""
    assert fields(job(text), "dp", "zero") == [8, 0]


@pytest.mark.parametrize(
    "text",
    [
        "[float8]\nenable_float8_linear = true\n",
        "[training]\nenable_fp8_linear = 'dynamic'\n",
    ],
)
def test_float8_was_a_switch(text):
    batch = "" if "[training]" in text else "[training]\nbatch_size = 1\n"
    assert job(batch + text).plan["precision"] == Precision.FP8
    off = text.replace("true", "false").replace("'dynamic'", "''")
    assert job(batch + off).plan["precision"] == Precision.BF16


@pytest.mark.parametrize("names", ["'float8'", "'quantize.linear.float8'", "['float8']"])
def test_converters_in_a_text_are_those_of_a_list(names):
    text = MODEL.replace('flavor = "8B"', f'flavor = "8B"\nconverters = {names}')
    launch = READERS["torchtitan"](f"{text}[training]\n", "job.toml", ReaderOptions())
    assert launch.plan["precision"] == Precision.FP8


@pytest.mark.parametrize(("more", "size"), [("", 2), ("pipeline_parallel_microbatches = 8\n", 1)])
def test_micro_batches_of_a_pipeline_were_counted(more, size):
    text = "[training]\nbatch_size = 8\n[experimental]\npipeline_parallel_degree = 4\n"
    assert fields(job(text + more), "pp", "micro_batch") == [4, size]


@pytest.mark.parametrize(
    ("batch", "stages", "count", "size"),
    [
        (12, 2, None, 6),
        (12, 4, None, 3),
        (12, 4, 12, 1),
        (12, 4, 3, 4),
        (12, 4, 1, 12),
        (12, 1, 3, 12),
        (None, 2, None, 4),
        (None, 4, 8, 1),
    ],
)
def test_micro_batches_are_the_batch_over_their_number(batch, stages, count, size):
    """Eight sequences where no batch is stated; as many micro-batches as stages."""
    text = "[training]\n" + (f"batch_size = {batch}\n" if batch else "")
    text += f"[experimental]\npipeline_parallel_degree = {stages}\n"
    text += f"pipeline_parallel_microbatches = {count}\n" if count else ""
    assert fields(job(text), "pp", "micro_batch") == [stages, size]


def test_newer_names_stand_before_older_ones():
    assert fields(job("[training]\nbatch_size = 4\nlocal_batch_size = 2\n"), "micro_batch") == [2]


def test_a_command_overrides_an_older_name():
    script = (
        "torchrun --nproc_per_node 8 train.py --job.config_file job.toml "
        "--training.batch_size 4 --training.tensor_parallel_degree 2 --model.converters float8\n"
    )
    inputs = ScriptInputs(read_source={"job.toml": f"{MODEL}[training]\nbatch_size = 1\n"}.get)
    launch = reader(script, "run.sh", None)(script, "run.sh", ReaderOptions(inputs=inputs))
    assert fields(launch, "tp", "micro_batch") == [2, 4]
    assert launch.plan["precision"] == Precision.FP8


@pytest.mark.parametrize(
    ("tensor_ranks", "stages", "shards", "named"),
    [
        (1, 1, 1, "autocast"),
        (2, 1, 1, "fp32, in which"),
        (8, 1, 1, "fp32, in which"),
        (1, 2, 1, "fp32, in which"),
        (1, 1, 8, ""),
    ],
)
def test_what_computes_in_another_format_without_fsdp_is_named(tensor_ranks, stages, shards, named):
    sizes = {"tensor_parallel_degree": tensor_ranks, "data_parallel_shard_degree": shards}
    sizes["pipeline_parallel_degree"] = stages
    axes = "\n".join(f"{name} = {value}" for name, value in sizes.items())
    text = f"[training]\nlocal_batch_size = 1\nseq_len = 4096\n[parallelism]\n{axes}\n"
    said = [one for one in job(text).left_out if "taken as bf16" in one]
    assert [one.startswith(named) for one in said] == [True] * bool(named)


@pytest.mark.parametrize(
    ("before", "words", "asked"),
    [
        ("B=2; if [ $FOO = 1 ]; then B=4; fi", "--training.local_batch_size $B", "has no value"),
        ("C=t; if [ $FOO = 1 ]; then C=u; fi", "", r"FOO has no value, .*\(--job.config-file\)"),
        ("if [ $FOO = 1 ]; then E='--training.seq_len 8'; fi", "$E", "FOO has no value"),
        ("if [ -d x ]; then C=u; else C=t; fi", "", "depends on a condition"),
    ],
)
def test_commands_that_an_open_condition_decides_are_asked_for(before, words, asked):
    text = f"{before}\ntorchrun -m torchtitan.train --job.config_file ${{C:-t}}.toml {words}\n"
    inputs = ScriptInputs(read_source={"t.toml": "[training]\nseq_len = 8\n"}.get)
    with pytest.raises(InputError, match=asked):
        reader(text, "run.sh", None)(text, "run.sh", ReaderOptions(inputs=inputs))
