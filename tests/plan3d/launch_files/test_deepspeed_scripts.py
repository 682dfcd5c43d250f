"""Scripts of Megatron-DeepSpeed: the JSON that they make of a template or name, and PR-MoE."""

import json
from dataclasses import replace

import pytest

from plan3d.launch_files.deepspeed.keys import _read_expert_counts
from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.registry import reader
from plan3d.launch_files.shell.flags import Flags
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.launch_files.shell.launch_script import training_words
from plan3d.launch_files.shell.script import read_script
from plan3d.launch_files.tables import Numbers
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.pipeline.stage_placement import chunk_layers
from plan3d.simulator.plan.field_values import StateFormat

RUN = (
    "deepspeed --num_nodes 1 --num_gpus 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 "
    "--num-attention-heads 4 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 1 "
    "--global-batch-size 64 --fp16 --deepspeed --deepspeed_config $CONFIG "
)
TEMPLATE = (
    '{"train_batch_size": GBS, "train_micro_batch_size_per_gpu": MBS,\n'
    ' "zero_optimization": {"stage": STAGE}, "fp16": {"enabled": true}}'
)
SED = (
    'CONFIG=ds.json\nsed "s/GBS/64/" template.json | sed "s/MBS/1/" \\\n'
    '  | sed "s/STAGE/${ZERO}/" > $CONFIG\n'
)


def launch(text, files=None, values=None):
    inputs = ScriptInputs((), values or {}, (files or {}).get)
    return reader(text, "run.sh", None)(text, "run.sh", ReaderOptions(inputs=inputs))


def test_a_configuration_that_sed_makes_of_a_template_decides():
    files = {"template.json": TEMPLATE}
    assert launch(f"ZERO=2\n{SED}{RUN}", files).plan["zero"] == 2
    with pytest.raises(InputError, match=r"ZERO has no value \(the JSON\): --set ZERO=VALUE"):
        launch(SED + RUN, files)
    assert launch(SED + RUN, files, {"ZERO": "1"}).plan["zero"] == 1


def test_a_template_alone_names_what_is_open():
    with pytest.raises(InputError, match="is a template, in which GBS, MBS, STAGE stand for"):
        launch_json(TEMPLATE)
    with pytest.raises(InputError, match="line 2: is a template, in which STAGE stand for"):
        launch(SED.replace("s/STAGE/", "s/NO/") + "ZERO=1\n" + RUN, {"template.json": TEMPLATE})


def test_formats_that_differ_are_named():
    own = TEMPLATE.replace("GBS", "64").replace("MBS", "1").replace("STAGE", "0")
    own = own.replace("fp16", "bf16")
    with pytest.raises(InputError, match="the JSON has precision bf16, the flags have fp16"):
        launch(f"CONFIG=own.json\n{RUN}", {"own.json": own})


def test_what_the_user_says_holds_where_flags_and_json_differ():
    own = TEMPLATE.replace("GBS", "32").replace("MBS", "1").replace("STAGE", "0")
    own = own.replace("fp16", "bf16")
    inputs = ScriptInputs((), {}, {"own.json": own}.get)
    options = ReaderOptions(plan={"precision": Precision.FP16}, has_batch=True, inputs=inputs)
    script = f"CONFIG=own.json\n{RUN}"
    found = reader(script, "run.sh", None)(script, "run.sh", options)
    assert found.plan["precision"] == Precision.FP16
    assert found.global_batch is None
    with pytest.raises(InputError, match="which holds: --global-batch N"):
        reader(script, "run.sh", None)(script, "run.sh", replace(options, has_batch=False))


def launch_json(text):
    return reader(text, "ds.json", None)(text, "ds.json", ReaderOptions())


def test_a_configuration_beside_the_script_decides():
    own = TEMPLATE.replace("GBS", "64").replace("MBS", "1").replace("STAGE", "3")
    assert launch(f"CONFIG=own.json\n{RUN}", {"own.json": own}).plan["zero"] == 3
    with pytest.raises(InputError, match=r"own\.json decides the ZeRO stage and is not there"):
        launch(f"CONFIG=own.json\n{RUN}")
    with_flag = launch(f"CONFIG=own.json\n{RUN} --zero-stage 1")
    assert with_flag.plan["zero"] == 1
    assert with_flag.left_out == ["own.json (line 2) is not there: the flags are read alone"]


MOE = "CONFIG=x\n" + RUN + "--zero-stage 0 --num-experts {} --mlp-type {} "


def test_layers_with_their_own_numbers_of_experts():
    """Experts in layers 2 and 4: 2 and 4 of them, each beside one that every token passes."""
    pyramid = launch(MOE.format("2 4", "residual")).model
    counts = [pyramid.kinds[kind].experts for kind in pyramid.order]
    assert [own and own.count for own in counts] == [None, 2, None, 4]
    assert {own.shared_ffn for own in counts if own} == {256}
    even = launch(MOE.format("4", "standard")).model
    expert, shared = 2 * 64 * 256 + 256 + 64, 2 * 64 * 256
    assert pyramid.parameters == even.parameters - 2 * (expert + 64) + 2 * shared
    for counts, most in (("2 4", 4), ("4 2", 4), ("8", 8)):
        words = training_words(read_script(f"run a.py --num-experts {counts}\n", "run.sh"))
        n = Numbers()
        assert _read_expert_counts(Flags.of(words, "run.sh"), "--num-experts", n) == most
        assert n.expert_counts == tuple(map(int, counts.split()))
    with pytest.raises(InputError, match="has 3 numbers; give one, or 2 for the layers with any"):
        launch(MOE.format("2 2 4", "standard"))


def test_tokens_go_to_their_experts_all_to_all():
    """DeepSpeed has no gathering of tokens, which is Megatron-Core's default."""
    found = launch(MOE.format("4", "standard") + "--moe-expert-parallel-size 2")
    assert (found.plan["ep"], found.plan["expert_dispatch"]) == (2, 0)


def test_the_norm_of_gradients_is_taken_whatever_limits_it():
    """DeepSpeed, stage_1_and_2.py and bf16_optimizer.py."""
    assert "clipping_bytes" not in launch(MOE.format("1", "standard") + "--clip-grad 0").software


def test_one_expert_is_none():
    dense = launch(MOE.format("1", "standard") + "--tensor-model-parallel-size 4")
    assert dense.plan["etp"] == 1


def test_axes_of_the_configuration_are_those_of_the_plan():
    axes = {"tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 2}
    found = launch_json(json.dumps({"train_micro_batch_size_per_gpu": 1, **axes}))
    assert (found.plan["tp"], found.plan["cp"], found.unread) == (2, 2, [])


def test_embedding_and_head_count_as_layers_of_stages():
    own = TEMPLATE.replace("GBS", "64").replace("MBS", "1").replace("STAGE", "0")
    method = "--pp-partition-method 'type:transformer|embedding'"
    text = f"CONFIG=own.json\n{RUN.replace('layers 4', 'layers 6')}"
    files, axes = {"own.json": own}, " --pipeline-model-parallel-size"
    assert chunk_layers(6, 4, 1, 0, 0, ()) == (1, 2, 2, 1)
    assert launch(f"{text}{axes} 4 {method}", files).plan["pp"] == 4
    with pytest.raises(InputError, match="6 layers cannot be cut into 4 equal chunks"):
        launch(f"{text}{axes} 4", files)
    with pytest.raises(InputError, match="8 must be a multiple of 3 chunks"):
        launch(f"{text}{axes} 3 {method}", files)
    with pytest.raises(InputError, match="--pp-partition-method parameters must be one of"):
        launch(f"{text}{axes} 2 --pp-partition-method parameters", files)


def test_the_optimizer_of_bf16_is_sharded_in_stages():
    own = TEMPLATE.replace("GBS", "64").replace("MBS", "1").replace("STAGE", "0")
    files = {"own.json": own.replace("fp16", "bf16")}
    text = f"CONFIG=own.json\n{RUN.replace('fp16', 'bf16')} --pipeline-model-parallel-size"
    assert [launch(f"{text} {pp}", files).plan["zero"] for pp in (1, 2)] == [0, 1]
    assert "as with ZeRO 1" in launch(f"{text} 2", files).left_out[0]


def test_keys_without_effect_are_told_from_those_with_one():
    text = json.dumps(
        {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 2, "cpu_offload": True, "contiguous_gradients": True},
            "fp16": {"enabled": True, "loss_scale": 0},
            "optimizer": {"type": "Adam", "params": {"lr": 1e-5}},
            "curriculum_learning": {"enabled": True},
            "progressive_layer_drop": {"enabled": False, "theta": 0.5},
            "data_efficiency": {"enabled": False, "seed": 1},
        }
    )
    found = launch_json(text)
    assert found.plan["offload_optimizer"] == 100
    effects = {part.place: part.affects_cost or part.why_neutral for part in found.unread}
    assert effects == {
        "$.zero_optimization.contiguous_gradients": "defaults, or without effect here",
        "$.fp16.loss_scale": "hyperparameters, and scales of gradients",
        "$.optimizer.params.lr": "hyperparameters, and scales of gradients",
        "$.curriculum_learning.enabled": True,
        "$.progressive_layer_drop.enabled": "what is switched off",
        "$.progressive_layer_drop.theta": "what is switched off",
        "$.data_efficiency.enabled": "what is switched off",
        "$.data_efficiency.seed": "what is switched off",
    }
    cast = launch_json(text.replace('"fp16"', '"torch_autocast"'))
    assert "$.torch_autocast casts by itself" in cast.unmodelled["precision"]


def engine(**sections):
    return launch_json(json.dumps({"train_micro_batch_size_per_gpu": 1, **sections}))


@pytest.mark.parametrize(
    ("sections", "place"),
    [
        ({"zero_optimization": {"reduce_scatter": False}}, "zero_optimization.reduce_scatter"),
        ({"zero_optimization": {"contiguous_gradients": False}},
         "zero_optimization.contiguous_gradients"),
        ({"zero_optimization": {"memory_efficient_linear": False}},
         "zero_optimization.memory_efficient_linear"),
        ({"zero_optimization": {"zeropp_loco_param": {"err_beta": 0.8}}},
         "zero_optimization.zeropp_loco_param.err_beta"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": False}}},
         "zero_optimization.offload_optimizer.pin_memory"),
        ({"elasticity": {"enabled": True}}, "elasticity.enabled"),
        ({"pipeline": {"seed_layers": True}}, "pipeline.seed_layers"),
        ({"compile": {"deepcompile": True}}, "compile.deepcompile"),
        ({"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}},
         "fp16.fp16_master_weights_and_grads"),
        ({"data_types": {"param_dtype": "bf16"}}, "data_types.param_dtype"),
        ({"graph_harvesting": True}, "graph_harvesting"),
        ({"disable_allgather": True}, "disable_allgather"),
    ],
)  # fmt: skip
def test_keys_of_the_engine_that_change_time_or_memory_are_said_to(sections, place):
    assert [one.place for one in engine(**sections).unread if one.affects_cost] == [f"$.{place}"]


@pytest.mark.parametrize(
    ("word", "format"),
    [("float32", "FP32"), ("torch.float32", "FP32"), ("bfloat16", "BF16"), ("bf16", "BF16")],
)
def test_the_format_in_which_gradients_are_added_up_has_words_of_torch_too(word, format):
    plan = engine(data_types={"grad_accum_dtype": word}).plan
    assert plan["main_grads_dtype"] == StateFormat[format]


@pytest.mark.parametrize("key", ["cpu_offload_param", "cpu_offload_params"])
def test_older_keys_put_weights_on_the_host(key):
    found = engine(zero_optimization={"stage": 3, key: True})
    assert found.plan["offload_parameters"] == 100
    assert not found.unread


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_weights_stay_on_gpus_below_stage_3(stage):
    """And say nothing of gathers, which other stages have not."""
    found = engine(zero_optimization={"stage": stage, "offload_param": {"device": "cpu"}})
    assert (found.plan["zero"], found.plan["offload_parameters"]) == (stage, 0)
    assert found.left_out == [f"offload_param has no effect at ZeRO stage {stage}, only at 3"]


def test_experts_are_spread_only_where_that_is_switched_on():
    sizes = [
        engine(expert_parallel={"autoep_size": 4, **more}).plan["ep"]
        for more in ({}, {"enabled": False}, {"enabled": True})
    ]
    assert sizes == [1, 1, 4]
