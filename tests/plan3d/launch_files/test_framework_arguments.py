"""Every argument of a framework, by its own list of names and defaults, has a class."""

import json
import tomllib
from pathlib import Path

import pytest

from plan3d.launch_files.deepspeed.keys import CONFIG
from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.mcore.run import OF_MODEL
from plan3d.launch_files.megatron.flags import ALIASES
from plan3d.launch_files.megatron.flags import TABLE as FLAGS
from plan3d.launch_files.megatron.other_flags import group_of
from plan3d.launch_files.nanotron.keys import TABLE as NANOTRON
from plan3d.launch_files.registry import READERS
from plan3d.launch_files.spellings import table_of
from plan3d.launch_files.tables import Effect, Unmodelled, UnmodelledKeys
from plan3d.launch_files.torchtitan.job import read_job
from plan3d.launch_files.torchtitan.keys import TABLE as TORCHTITAN
from plan3d.launch_files.trainer.launch import DIALECTS
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Optimizer
from plan3d.simulator.plan.field_values import StateFormat

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


COMMANDS = (
    *("accelerate", "megatron-lm", "megatron-lm-older", "megatron-bridge", "primus", "nemo"),
)
"""Lists of flags of a command, which are compared below."""


def arguments(name):
    """The defaults of a list by name, as JSON texts; '' of what is worked out."""
    out, value = {}, ""
    for line in LISTS[name]["arguments"].splitlines():
        text, found, names = line.partition(": ")
        value, names = (text, names) if found and not line.startswith("  ") else (value, line)
        out |= {one: "" if value == "computed" else value for one in names.split()}
    return out


@pytest.mark.parametrize("name", [name for name in LISTS if name not in COMMANDS])
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


MEGATRON = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --bf16 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --swiglu "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 128256 --num-experts 8 "
    "--moe-router-topk 2 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 {}\n"
)


def read_megatron(flags):
    return READERS["megatron"](MEGATRON.format(flags), "run.sh", ReaderOptions())


@pytest.mark.parametrize("name", ["megatron-lm", "megatron-lm-older"])
def test_every_argument_of_megatron_lm_has_a_class(name):
    rows, flags = {row.key for row in FLAGS}, [f"--{one}" for one in arguments(name)]
    unknown = [one for one in flags if ALIASES.get(one, one) not in rows and not group_of(one)]
    assert len(flags) > 50
    assert unknown == []


@pytest.mark.parametrize("name", ["megatron-lm", "megatron-lm-older"])
def test_a_default_of_megatron_lm_that_is_stated_changes_nothing(name):
    """Of images, of layers without attention and of one group of queries the flag itself is
    refused or said, and of Muon and of experts a token a default that changed is said."""
    others = ("--img", "--vision", "--patch", "--num-channels", "--num-query-groups", "--muon")
    few, changing = read_megatron(""), []
    for flag, text in arguments(name).items():
        group = group_of(f"--{flag}", ["x"])
        is_other = f"--{flag}".startswith(others) or (group and group.effect is Effect.MODEL)
        if is_other or text in ("switch", "null", "[]", '""') or f"--{flag} " in MEGATRON:
            continue
        value = json.loads(text)
        words = " ".join(map(str, value)) if isinstance(value, list) else value
        many = read_megatron(f"--{flag} {words}")
        same = (many.model, many.left_out, many.unmodelled) == (few.model, few.left_out, {})
        plan = {key: value for key, value in many.plan.items() if not key.endswith("_dtype")}
        same &= plan == {key: few.plan[key] for key in plan}
        changing += [] if same and not any(one.affects_cost for one in many.unread) else [flag]
    assert changing == []


def read_bridge(section, field, value):
    content = {
        "model": {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
        | {"seq_length": 4096, "vocab_size": 128_256, "pipeline_model_parallel_size": 2}
        | {"virtual_pipeline_model_parallel_size": 2},
        "train": {"micro_batch_size": 1, "global_batch_size": 64},
        "ddp": {"use_distributed_optimizer": True},
        "optimizer": {"optimizer": "muon"},
        "mixed_precision": {"bf16": True},
    }
    content[section][field] = value
    reader = READERS["megatron-bridge-config"]
    return reader(json.dumps(content), "run_config.yaml", ReaderOptions())


@pytest.mark.parametrize(
    "field", [name for name, text in arguments("megatron-bridge").items() if text]
)
def test_every_field_of_megatron_bridge_has_a_class(field):
    """A value that none has by default is read, refused, said, or of no effect; the default is
    not said."""
    section, name = field.split(".")
    text = arguments("megatron-bridge")[field]
    for value in (
        json.loads(text),
        True if text in ("true", "false") or name == "fp8_param" else 2,
    ):
        try:
            found = read_bridge(section, name, value)
        except InputError:
            continue
        unknown = [one for one in found.unread if not (one.affects_cost or one.why_neutral)]
        assert unknown == []
    default = read_bridge(section, name, json.loads(text))
    assert [one for one in default.unread if one.text.startswith(name)] == []


def read_primus(**overrides):
    trainer = {"framework": "megatron", "model": "llama3.1_8B.yaml"}
    trainer["overrides"] = {"global_batch_size": 64, "seq_length": 4096, **overrides}
    content = {"modules": {"pre_trainer": trainer}}
    return READERS["primus"](json.dumps(content), "run.yaml", ReaderOptions())


def unknown_to_primus(name, value):
    try:
        found = read_primus(**{name: value})
    except InputError:
        return []
    return [one for one in found.unread if not (one.affects_cost or one.why_neutral)]


def test_every_argument_of_primus_has_a_class():
    stated = {k: json.loads(text) if text else {} for k, text in arguments("primus").items()}
    assert len(stated) > 500
    assert [
        k for k, v in stated.items() if unknown_to_primus(k, v) or unknown_to_primus(k, 2)
    ] == []


RECIPE = """
from nemo.collections import llm
def recipe():
    r = llm.llama3_8b.pretrain_recipe(num_nodes=2, num_gpus_per_node=4)
    r.{} = {}
    return r
"""


@pytest.mark.parametrize("field", arguments("nemo"))
def test_every_field_of_a_recipe_of_nemo_has_a_class(field):
    """Its default, and a value that none has: read, refused, said, or of no effect."""
    text = arguments("nemo")[field]
    for value in (repr(json.loads(text)) if text else "None", "True", "2"):
        try:
            found = READERS["recipe"](RECIPE.format(field, value), "r.py", ReaderOptions())
        except InputError:
            continue
        unknown = [one for one in found.unread if not (one.affects_cost or one.why_neutral)]
        assert unknown == []


def test_a_default_of_primus_that_is_stated_changes_nothing():
    """But dropout, and what each of its models states itself."""
    few, changing = read_primus(), []
    for name, text in arguments("primus").items():
        if name in OF_MODEL or text in ("", "null") or name.endswith("dropout"):
            continue
        if name in ("global_batch_size", "seq_length"):
            continue
        many = read_primus(**{name: json.loads(text)})
        same = (many.model, many.plan, many.left_out, many.unmodelled, many.software) == (
            few.model,
            few.plan,
            few.left_out,
            {},
            few.software,
        )
        same &= not any(one.affects_cost for one in many.unread)
        changing += [] if same else [name]
    assert changing == []


@pytest.mark.parametrize(
    ("section", "field", "value", "plan"),
    [
        ("model", "virtual_pipeline_model_parallel_size", 4, {"virtual_stages": 4}),
        ("model", "microbatch_group_size_per_vp_stage", 8, {"micro_batch_group": 8}),
        ("optimizer", "use_layer_wise_distributed_optimizer", True, {"zero": 1}),
    ],
)
def test_fields_of_megatron_bridge_with_other_names_are_read(section, field, value, plan):
    found = read_bridge(section, field, value)
    assert {key: found.plan[key] for key in plan} == plan


def test_layers_that_megatron_bridge_makes_otherwise_are_said():
    for name, count in (("default_layer_spec", 0), ("gemma2_layer_spec", 1)):
        spec = {"_target_": f"megatron.bridge.models.{name}", "_call_": False}
        found = read_bridge("model", "transformer_layer_spec", spec)
        assert len(found.left_out) == count


def read_megatron_log(printed):
    lines = "".join(f"  {name} {'.' * 8} {value}\n" for name, value in sorted(printed.items()))
    text = f"------ arguments ------\n{lines}------ end of arguments ------\n"
    return READERS["log"](text, "train.log", ReaderOptions())


@pytest.mark.parametrize("name", ["megatron-lm", "megatron-lm-older"])
def test_a_log_that_prints_all_defaults_is_read(name):
    """Megatron-LM prints every argument, with the sizes of layers that a model lacks, and formats
    of state as torch names them."""
    sizes = {
        **{"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "world_size": 8},
        **{"seq_length": 4096, "max_position_embeddings": 4096, "vocab_size": 128_256},
        **{"micro_batch_size": 1, "global_batch_size": 64, "bf16": True, "optimizer": "adam"},
        **{"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    }
    printed = {
        flag.replace("-", "_"): json.loads(text)
        for flag, text in arguments(name).items()
        if text != "switch" and not flag.endswith("-dtype")
    }
    state = ("main_grads", "main_params", "exp_avg", "exp_avg_sq")
    formats = {f"{one}_dtype": "torch.float32" for one in state}
    many = read_megatron_log({**printed, **formats, "use_custom_fsdp": False, **sizes})
    few = read_megatron_log(sizes)
    assert (many.model, many.plan, many.left_out) == (few.model, few.plan, [])
    assert (many.unread, many.unmodelled) == ([], {})


def test_formats_of_state_and_fusions_that_are_off_are_read_of_a_log():
    sizes = {
        **{"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "world_size": 8},
        **{"seq_length": 4096, "max_position_embeddings": 4096, "vocab_size": 128_256},
        **{"micro_batch_size": 1, "global_batch_size": 64, "bf16": True},
        **{"use_precision_aware_optimizer": True, "exp_avg_dtype": "torch.bfloat16"},
        **{"bias_dropout_fusion": True, "masked_softmax_fusion": False},
    }
    found = read_megatron_log(sizes)
    assert found.plan["exp_avg_dtype"] == StateFormat.BF16
    assert [one.text for one in found.unread] == ["--no-masked-softmax-fusion"]


def test_a_script_with_environments_of_reinforcement_learning_is_refused():
    """examples/rl/model_configs of Megatron-LM, whose --perform-rl-step is in another file."""
    with pytest.raises(InputError, match="reinforcement learning"):
        read_megatron("--grpo-group-size 16 --langrl-env-config envs.yaml")


def test_switches_of_megatron_lm_are_turned_off_by_either_word():
    """training/argument_utils.py makes --no-NAME and --disable-NAME of what is on."""
    assert group_of("--disable-manual-gc-eval") == group_of("--no-manual-gc-eval")
    assert group_of("--disable-clone-scatter-output-in-embedding").effect is Effect.COST
    assert group_of("--no-rl-skip-bos-token").effect is Effect.NONE
    assert group_of("--no-hybrid-layer-pattern") is None


def test_the_default_of_megatron_fsdp_changed_and_is_asked_for():
    """no_shard in core_v0.17.0, optim_grads_params in core_v0.18.0; it was --use-custom-fsdp."""
    for flag in ("--use-megatron-fsdp", "--use-custom-fsdp"):
        assert "core 0.18" in read_megatron(flag).unmodelled["zero"]
        stated = read_megatron(f"{flag} --data-parallel-sharding-strategy optim_grads_params")
        assert (stated.plan["zero"], stated.unmodelled) == (3, {})


def test_weights_over_more_ranks_than_those_of_tensors_are_refused():
    assert read_megatron("--tensor-parallel-num-weight-shards 2").unmodelled == {}
    with pytest.raises(InputError, match="more than 2 tensor ranks"):
        read_megatron("--tensor-parallel-num-weight-shards 8")


@pytest.mark.parametrize(
    ("flags", "zero"),
    [
        ("--optimizer muon", 0),
        ("--optimizer dist_muon", 1),
        ("--optimizer muon --use-distributed-optimizer", 1),
    ],
)
def test_muon_of_megatron_lm_shares_out_whole_matrices(flags, zero):
    """Core 0.15 and later; the distributed form deals matrices out, as ZeRO 1 does."""
    plan = read_megatron(flags).plan
    assert (plan["optimizer"], plan["zero"]) == (Optimizer.MUON, zero)


def test_how_muon_splits_matrices_of_tensor_ranks_is_said_where_it_is_not_stated():
    """Blockwise in core_v0.16.0 to core_v0.19.0, duplicated on main of August 2026."""
    mode = "--muon-tp-mode"
    noted = [one for one in read_megatron("--optimizer muon").unread if one.place == mode]
    assert [(one.affects_cost, one.is_derived) for one in noted] == [(True, True)]
    for flags in (
        f"--optimizer muon {mode} blockwise",
        "--optimizer muon --tensor-model-parallel-size 1",
    ):
        assert not [one for one in read_megatron(flags).unread if one.affects_cost]


def test_fp32_gradients_beside_fp16_weights_are_said():
    text = MEGATRON.replace("--bf16", "--fp16")
    read = READERS["megatron"](
        text.format("--accumulate-allreduce-grads-in-fp32"), "run.sh", ReaderOptions()
    )
    assert read.left_out == [
        "gradients in fp32 beside fp16 weights: 2 bytes a parameter more "
        "(--accumulate-allreduce-grads-in-fp32)"
    ]


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
