"""Every argument of a framework, by its own list of names and defaults, has a class."""

import json
import tomllib
from pathlib import Path

import pytest

from plan3d.launch_files.deepspeed.keys import CONFIG
from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.nanotron.keys import TABLE as NANOTRON
from plan3d.launch_files.registry import READERS
from plan3d.launch_files.spellings import table_of
from plan3d.launch_files.tables import Unmodelled, UnmodelledKeys
from plan3d.launch_files.torchtitan.job import read_job
from plan3d.launch_files.torchtitan.keys import TABLE as TORCHTITAN
from plan3d.launch_files.trainer.launch import DIALECTS
from plan3d.simulator.base.errors import InputError

LISTS = tomllib.loads(
    Path(__file__).with_name("framework_arguments.toml").read_text(encoding="utf-8")
)
MINIMAL = {
    "transformers": {"model_name_or_path": "Qwen/Qwen2.5-7B"},
    "trl": {"model_name_or_path": "Qwen/Qwen2.5-7B", "use_peft": True, "learning_rate": 1},
    "llama-factory": {
        "model_name_or_path": "Qwen/Qwen2.5-7B",
        "do_train": True,
        "template": "qwen",
    },
    "axolotl": {"base_model": "Qwen/Qwen2.5-7B", "micro_batch_size": 1},
    "ms-swift": {"model": "Qwen/Qwen2.5-7B", "tuner_type": "lora"},
    "megatron-swift": {"model": "Qwen/Qwen2.5-7B", "tuner_type": "full", "max_length": 2048},
    "torchtitan": {"model.flavor": "8B", "activation_checkpoint.mode": "none", "training.steps": 1},
    "nanotron": {
        **{f"parallelism.{axis}": 1 for axis in ("dp", "pp", "tp")},
        **{f"tokens.{size}": 1 for size in ("sequence_length", "micro_batch_size")},
        **{"optimizer.accumulate_grad_in_fp32": True, "optimizer.zero_stage": 1},
        **{f"model.model_config.{size}": 4096 for size in ("hidden_size", "intermediate_size")},
        **{f"model.model_config.num_{size}": 32 for size in ("hidden_layers", "attention_heads")},
        **{"model.model_config.is_llama_config": True, "model.model_config.vocab_size": 32_000},
    },
    "deepspeed": {
        "train_micro_batch_size_per_gpu": 2,
        "activation_checkpointing": {"profile": True},
    },
}
"""Arguments of a run that states as little as it may."""


def arguments(name):
    """The defaults of a list by name, as JSON texts; '' of what is worked out."""
    out, value = {}, ""
    for line in LISTS[name]["arguments"].splitlines():
        text, found, names = line.partition(": ")
        value, names = (text, names) if found and not line.startswith("  ") else (value, line)
        out |= {one: "" if value == "computed" else value for one in names.split()}
    return out


@pytest.mark.parametrize("name", [name for name in LISTS if name != "accelerate"])
def test_every_argument_has_a_class(name):
    program = LISTS[name]["program"]
    table = TABLES.get(program) or table_of(program)
    rows = {row.key for row in table if not isinstance(row, Unmodelled)}
    names, others = arguments(name), UnmodelledKeys(table)
    unknown = [one for one in names if not others.row_of(one.split("."), "x")]
    renamed = DIALECTS[program].older if program in DIALECTS else {}
    assert len(names) > 5
    assert [one for one in unknown if one not in rows and one not in renamed] == []


TABLES = {"deepspeed": CONFIG, "nanotron": NANOTRON, "torchtitan": TORCHTITAN}
OVER = {
    "ms-swift": ("transformers", "ms-swift"),
    "llama-factory": ("transformers", "llama-factory"),
}
"""Lists of which the later override the earlier, of programs that have the Trainer's arguments."""


def nested(content):
    """Values by path as a document."""
    out = {}
    for path, value in content.items():
        *sections, key = path.split(".")
        here = out
        for one in sections:
            here = here.setdefault(one, {})
        here[key] = value
    return out


@pytest.mark.parametrize("name", MINIMAL)
def test_a_default_that_is_stated_changes_nothing(name):
    program = LISTS[name]["program"]
    defaults = {k: v for one in OVER.get(name, (name,)) for k, v in arguments(one).items()}
    stated = {key: json.loads(value) for key, value in defaults.items() if value}
    options = ReaderOptions(plan={"zero": 3})
    few, all_of_them = (
        read_job(content, "job.toml", "job.toml", options)
        if program == "torchtitan"
        else READERS[program](json.dumps(content), "run.yaml", options)
        for content in (nested(MINIMAL[name]), nested({**stated, **MINIMAL[name]}))
    )
    for part in ("plan", "adapters", "sequence", "accumulation", "left_out", "unmodelled"):
        assert getattr(all_of_them, part) == getattr(few, part), part
    notes = [{one.place for one in read.unread if one.affects_cost} for read in (few, all_of_them)]
    assert notes[0] - {"precision"} == notes[1]
    unknown = [one.place for one in all_of_them.unread if not (one.affects_cost or one.why_neutral)]
    assert unknown == []


LAUNCH = (
    "accelerate launch --num_processes 8 --mixed_precision bf16 {} train.py "
    "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --max_length 2048\n"
)


def launched(flags):
    return READERS["trainer-command"](LAUNCH.format(flags), "run.sh", ReaderOptions())


@pytest.mark.parametrize("flag", arguments("accelerate"))
def test_every_flag_of_accelerate_has_a_class(flag):
    """A value that none of them has is said to be wrong, or to change something or nothing."""
    kind = "--use_megatron_lm " if flag.startswith("megatron") else ""
    try:
        found = launched(f"{kind}--{flag}=x")
    except InputError:
        return
    assert [one for one in found.unread if not (one.affects_cost or one.why_neutral)] == []


@pytest.mark.parametrize("kind", ["fsdp", "deepspeed", "megatron_lm"])
def test_a_default_of_accelerate_that_is_stated_changes_nothing(kind):
    stated = {name: text.strip('"') for name, text in arguments("accelerate").items()}
    words = [f"--{k}={v}" for k, v in stated.items() if v not in ("", "null", "true", "[]")]
    words = [one for one in words if "[" not in one and one.removeprefix("--") not in ("tpu",)]
    few = launched(f"--use_{kind}")
    many = launched(f"--use_{kind} {' '.join(one for one in words if '=false' not in one)}")
    assert (many.plan, many.framework, many.unmodelled) == (
        few.plan,
        few.framework,
        few.unmodelled,
    )
    costs = [{one.place for one in read.unread if one.affects_cost} for read in (few, many)]
    assert costs[0] == costs[1]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.model_config._attn_implementation", "flex_attention"),
        ("model.model_config._fused_rms_norm", False),
        ("parallelism.tp_recompute_allgather", False),
        ("optimizer.optimizer_factory.torch_adam_is_fused", False),
        ("general.ignore_sanity_checks", False),
    ],
)
def test_keys_of_nanotron_that_change_time_or_memory_are_said_to(key, value):
    content = nested({**MINIMAL["nanotron"], key: value})
    found = READERS["nanotron"](json.dumps(content), "run.yaml", ReaderOptions())
    assert f"$.{key}" in [one.place for one in found.unread if one.affects_cost]


def test_a_second_model_that_weighs_the_data_of_nanotron_is_refused():
    content = nested({**MINIMAL["nanotron"], "doremi.domain_names": "a"})
    with pytest.raises(InputError, match="it weighs its data by a second model"):
        READERS["nanotron"](json.dumps(content), "run.yaml", ReaderOptions())
