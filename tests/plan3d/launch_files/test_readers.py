"""Readers find model, batch and plan in files that people have, and say what is wrong."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.launch_files.deepspeed.keys import BUCKETS
from plan3d.launch_files.launch_file import (
    Launch,
    ReaderOptions,
    batch_of,
    effective_plan,
    gpus_of,
    plan_of,
    sequence_of,
)
from plan3d.launch_files.registry import READERS, framework_of_file, reader
from plan3d.launch_files.shape import blocks, same_shape
from plan3d.launch_files.shell.conditions import Branches, arithmetic, condition_truth
from plan3d.launch_files.torchtitan.model_flavors import READ
from plan3d.launch_files.torchtitan.spelling import layers_of_chunks
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.field_values import Loss, Recompute, StateFormat
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

GPT3 = """
TP=8
ARGS="
  --num-layers 96 --hidden-size 12288 --num-attention-heads 96
  --seq-length 2048 --max-position-embeddings 2048
  --micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size 16
"
MORE="--fp16"
torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py $ARGS $MORE --lr 6.0e-5 --data-path $1
"""
"""The shape of an old script: learned positions, GPT-2's tokenizer by default, no sharding."""


def script(*changes, text=GPT3):
    """The script with some of its parts replaced."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def megatron(*changes, more=""):
    text = script(*changes, ('MORE="--fp16"', f'MORE="--fp16 {more}"'))
    return READERS["megatron"](text, "run.sh", ReaderOptions())


def test_an_old_script():
    launch = megatron()
    plan = plan_of(launch, {})
    assert (plan.tp, plan.pp, plan.zero, plan.precision) == (8, 16, 0, Precision.FP16)
    assert plan.sequence_parallel == 0
    assert launch.model is not None
    assert same_shape(launch.model, Model.preset("gpt3-175b"))
    assert launch.software == {"dropout": True}
    assert (launch.global_batch, launch.sequence, launch.launcher_gpus) == (1536, 2048, 16)
    assert [(k.place, k.text, k.affects_cost) for k in launch.unread] == [
        ("line 6", "--rampup-batch-size 16 16 5859375", True),
        ("line 10", "--lr 6.0e-5", False),
        ("line 10", "--data-path $1", False),
    ]


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        ("--use-distributed-optimizer", "zero", 1),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "zero", 2),
        ("--use-torch-fsdp2", "zero", 3),
        ("--sequence-parallel", "sequence_parallel", 1),
        ("--num-layers-per-virtual-pipeline-stage 2", "virtual_stages", 3),
        ("--num-virtual-stages-per-pipeline-rank 2", "virtual_stages", 2),
        ("--pipeline-model-parallel-layout Et*6|(t*6|)*14t*6L", "layers_per_stage", ()),
        (
            "--pipeline-model-parallel-layout Et*5|(t*6|)*13t*6|t*7L",
            "layers_per_stage",
            (5, *[6] * 14, 7),
        ),
        ("--decoder-first-pipeline-num-layers 6", "first_stage_layers", 6),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 6", "", 2),
        ("--recompute-granularity full --recompute-method uniform", "recompute", 2),
        ("--recompute-activations", "recompute", 1),
        ("--fp8-format hybrid", "precision", int(Precision.FP8_DELAYED)),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "precision", int(Precision.MXFP8)),
        ("--fp4-format e2m1", "precision", int(Precision.NVFP4)),
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather", "fp8_params", 1),
        ("--fp4-format e2m1 --first-last-layers-bf16", "bf16_last_layers", 1),
        ("--fp16 --grad-reduce-in-bf16", "grad_reduce_dtype", StateFormat.USUAL),
        ("--use-precision-aware-optimizer", "precision_aware", 1),
        ("--main-grads-dtype bf16", "main_grads_dtype", StateFormat.BF16),
        ("--main-params-dtype fp16", "main_params_dtype", StateFormat.FP16),
        ("--exp-avg-dtype fp8", "exp_avg_dtype", StateFormat.FP8),
        ("--exp-avg-sq-dtype fp16", "exp_avg_sq_dtype", StateFormat.FP16),
        (
            "--fp4-format e2m1 --first-last-layers-bf16 --num-layers-at-end-in-bf16 4",
            "bf16_last_layers",
            4,
        ),
        ("--first-last-layers-bf16", "bf16_first_layers", 0),
        ("--cross-entropy-loss-fusion", "loss", int(Loss.FUSED)),
        ("--optimizer sgd", "optimizer", 1),
        ("--context-parallel-size 2 --cp-comm-type a2a", "cp_comm", 2),
        ("--context-parallel-size 2 --cp-comm-type allgather", "cp_comm", 1),
    ],
)
def test_flags_become_fields(more, field, value):
    plan = plan_of(megatron(more=more), {})
    assert getattr(plan, field or "recompute") == value


def test_one_buffer_of_gradients_has_one_format():
    """bf16 where either flag narrows it; both formats at once contradict each other."""
    text = script(('MORE="--fp16"', 'MORE="--bf16 --grad-reduce-in-bf16"'))
    narrow = READERS["megatron"](text, "run.sh", ReaderOptions())
    assert plan_of(narrow, {}).grad_reduce_dtype == StateFormat.BF16
    with pytest.raises(InputError, match="main-grads-dtype contradicts --accumulate-allreduce"):
        megatron(more="--main-grads-dtype bf16 --accumulate-allreduce-grads-in-fp32")


def test_an_optimizer_on_the_host_is_precision_aware_by_itself():
    more = "--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer"
    assert plan_of(megatron(more=more), {}).precision_aware == 0


def test_a_split_that_counts_the_embedding_is_layers_of_stages():
    flag = "--account-for-embedding-in-pipeline-split"
    launch = megatron(("--num-layers 96", "--num-layers 95"), more=flag)
    assert plan_of(launch, {}).layers_per_stage == (5, *[6] * 15)


def test_a_batch_that_is_not_stated_is_one_micro_batch_a_rank():
    launch = megatron(("--global-batch-size 1536", ""))
    assert batch_of(launch, Plan(tp=8, pp=16), 512, None) == 4


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ("--window-size 127,0", (128,) * 96),
        ("--window-size '(127, 0)' --window-attn-skip-freq 3", (128, 128, 0) * 32),
        ("--window-size 127,64 --window-attn-skip-freq 1", (0,) * 96),
        ("--window-size 127,0 --window-attn-skip-freq '([1]*2+[0,1])*24'", (128, 128, 0, 128) * 24),
        ("--window-size -1,0 --window-attn-skip-freq 2", (0,) * 96),
        ("--window-size 0,0 --window-attn-skip-freq [1]*99", (1,) * 96),
        ("--window-attn-skip-freq 2", (0,) * 96),
    ],
)
def test_windows_are_those_that_megatron_core_gives_the_layers(more, windows):
    """LEFT keys before a query and its own; every Nth layer is whole, or those of zeros."""
    text = script(('MORE="--fp16"', f"MORE=(--fp16 {more})"), ("$ARGS $MORE", '$ARGS "${MORE[@]}"'))
    launch = READERS["megatron"](text, "run.sh", ReaderOptions())
    assert tuple(layer.attention.window for layer in blocks(launch.model)) == windows
    assert not any(part.affects_cost and "window" in part.text for part in launch.unread)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--bf16", "line 9: --fp16 contradicts --bf16 in line 9: give one of them"),
        (
            "--num-virtual-stages-per-pipeline-rank 2 --num-layers-per-virtual-pipeline-stage 2",
            "line 9: --num-virtual-stages-per-pipeline-rank contradicts",
        ),
        (
            "--pipeline-model-parallel-layout Et*96L --decoder-first-pipeline-num-layers 2",
            "contradicts --decoder-first-pipeline-num-layers in line 9",
        ),
        (
            "--recompute-granularity selective --recompute-method uniform",
            "line 9: --recompute-method contradicts selective recompute",
        ),
        ("--overlap-param-gather", "needs --use-distributed-optimizer and --overlap-grad-reduce"),
        (
            "--pipeline-model-parallel-layout Ett|ttL",
            "has 2 stages with 4 layers; a multiple of 16",
        ),
        ("--pipeline-model-parallel-layout Exx|L", "line 9: --pipeline-model-parallel-layout"),
        ("--num-query-groups 8", "has no effect without --group-query-attention"),
        ("--group-query-attention --num-query-groups 7", "96 is not a multiple of 7 groups"),
        ("--position-embedding-type relative", "relative is not modelled"),
        ("--normalization BatchNorm", "BatchNorm must be one of LayerNorm, RMSNorm"),
        ("--num-experts 8 --moe-layer-freq [1]*7", "must be a whole number or a list of 96"),
        ("--window-size 128", "line 9: --window-size 128 must be LEFT,0 with LEFT at least 0"),
        ("--window-size -2,0", "-2,0 must be LEFT,0 with LEFT at least 0, or -1,0"),
        ("--window-size -1,5", "-1,5 must be LEFT,0"),
        ("--window-size 1e400,0", "must be LEFT,0"),
        ("--window-size 128,0 --window-attn-skip-freq 0", "0 must be a whole number or a list of"),
        ("--window-size 128,0 --window-attn-skip-freq [1]*7", "a list of 96 zeros and ones"),
        ("--window-size 128,0 --window-attn-skip-freq [1]*96 --mtp-num-layers 1", "a list of 97"),
        (
            "--window-size 128,0 --window-attn-skip-freq 2 --mtp-num-layers 1",
            "line 9: --window-attn-skip-freq gives multi-token prediction another window than the",
        ),
        ("--num-experts 8 --moe-router-topk 9", "9 must be a whole number from 1 to 8"),
        ("--num-layers-per-virtual-pipeline-stage 5", "5 x 16 stages does not divide 96 layers"),
        ("--ffn-hidden-size 4k", "4k must be a whole number"),
        (
            "--swiglu $X --ffn-hidden-size $FFN",
            r"FFN has no value \(--ffn-hidden-size\): --set FFN=VALUE",
        ),
    ],
)
def test_contradictions_name_their_line(more, message):
    with pytest.raises(InputError, match=message.replace("*", r"\*").replace("[", r"\[")) as error:
        megatron(more=more)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--num-layers 96", ""), "--num-layers is missing: add it"),
        (("--num-layers 96", "--num-layers 97"), "97 layers cannot be cut into 16 equal chunks"),
        (("--hidden-size 12288", "--hidden-size 12289"), "does not divide hidden size 12289"),
        (
            ("--seq-length", "--tokenizer-type HFTokenizer --seq-length"),
            "--vocab-size is missing: the tokenizer decides it: give --vocabulary N",
        ),
        (
            ('MORE="--fp16"', 'if [ "$A" = 1 ]; then MORE="--bf16"; fi'),
            "A has no value, which the script compares with 1",
        ),
        (('MORE="--fp16"', 'if [ -f x ]; then MORE="--bf16"; fi'), "depends on a condition; write"),
    ],
)
def test_what_is_missing_is_asked_for_by_name(change, message):
    text = script(change)
    if "depends" in message:
        text = text.replace("--rampup", "--bf16 --rampup")
    with pytest.raises(InputError, match=message):
        READERS["megatron"](text, "run.sh", ReaderOptions())


def test_recompute_of_every_layer_of_a_block_is_modelled():
    """Of 96 layers over 16 stages, 6 a stage."""
    words = "--recompute-granularity full --recompute-method {} --recompute-num-layers {}"
    stated = [megatron(more=words.format("block", count)) for count in (5, 6, 7)]
    assert ["recompute" in launch.unmodelled for launch in stated] == [True, False, False]
    stated = [megatron(more=words.format("uniform", count)) for count in (1, 2)]
    assert ["recompute" in launch.unmodelled for launch in stated] == [False, True]


def test_recompute_of_every_layer_of_a_chunk_is_modelled():
    """Of 96 layers in 16 stages of 3 chunks, 2 a chunk."""
    words = "--num-layers-per-virtual-pipeline-stage 2 --recompute-granularity full"
    words += " --recompute-method block --recompute-num-layers {}"
    stated = [megatron(more=words.format(count)) for count in (1, 2)]
    assert ["recompute" in launch.unmodelled for launch in stated] == [True, False]


@pytest.mark.parametrize(
    "more",
    [
        "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 3",
        "--recompute-granularity selective --recompute-modules mhc core_attn",
    ],
)
def test_recompute_that_no_plan_has_can_be_replaced(more):
    launch = megatron(more=more)
    with pytest.raises(InputError, match=r"line 9: .* not modelled .* --with recompute=VALUE"):
        plan_of(launch, {})
    assert plan_of(launch, {"recompute": 2}).recompute == 2


def test_a_vocabulary_may_be_given_and_may_not_contradict():
    text = script(("--seq-length", "--tokenizer-type HFTokenizer --seq-length"))
    launch = READERS["megatron"](text, "run.sh", ReaderOptions(vocabulary=1000))
    assert launch.model.vocabulary == 1000
    with pytest.raises(InputError, match="contradicts --vocabulary 1000"):
        READERS["megatron"](
            script(("--seq-length", "--vocab-size 7 --seq-length")),
            "x",
            ReaderOptions(vocabulary=1000),
        )


DEEPSPEED = """
cat > ds.json <<'EOF'
{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 16,
 "steps_per_print": 1, "zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}
EOF
deepspeed pretrain_gpt.py --deepspeed --deepspeed_config ds.json --zero-stage 1 \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 24 \\
  --hidden-size 2048 --num-attention-heads 16 --num-key-value-heads 4 --seq-length 2048 \\
  --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 --bf16 \\
  --use-rotary-position-embeddings --normalization rmsnorm --vocab-size 32000 --lr 1
"""


def test_a_script_of_megatron_deepspeed():
    assert framework_of_file(DEEPSPEED, "run.sh") == "deepspeed"
    launch = READERS["deepspeed"](DEEPSPEED, "run.sh", ReaderOptions())
    assert launch.gpus == 8
    assert launch.plan["zero"] == 1
    assert launch.model.kinds[0].attention.kv_heads == 4
    assert launch.model.learned_positions == 0
    assert [(k.place, k.text) for k in launch.unread] == [
        ("line 10", "--lr 1"),
        ("$.steps_per_print", "1"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"stage": 1', '"stage": 0', "line 3: the JSON has zero 0, the flags have 1"),
        ('size": 64', 'size": 128', "line 3: the JSON has a batch of 128"),
        ('"bf16": {"enabled": true}', '"fp16": {"enabled": true}', "the JSON has precision"),
        ("--bf16", "--bf16 --no-pipeline-parallel", "contradicts 2 pipeline stages"),
        ('"train_batch_size"', "train_batch_size", "line 3: is not JSON"),
    ],
)
def test_flags_and_json_may_not_differ(old, new, message):
    assert old in DEEPSPEED
    with pytest.raises(InputError, match=message):
        READERS["deepspeed"](DEEPSPEED.replace(old, new), "run.sh", ReaderOptions())


def of_json(**changes):
    content = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}, **changes}
    return READERS["deepspeed"](json.dumps(content), "ds.json", ReaderOptions())


def test_deepspeed_batches():
    launch = of_json(train_batch_size=64)
    assert (launch.global_batch, launch.gpus) == (64, None)
    assert of_json(gradient_accumulation_steps=4).accumulation == 4
    assert of_json(train_batch_size=64, gradient_accumulation_steps=4).gpus == 8
    assert of_json().plan["precision"] == Precision.FP32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train_batch_size": "auto"},
            r"ds.json: \$.train_batch_size is left to the trainer: give --global-batch N",
        ),
        ({"train_micro_batch_size_per_gpu": None}, "give --with micro_batch=N$"),
        (
            {"train_batch_size": 65, "gradient_accumulation_steps": 4},
            "65, not a multiple of 2 x 4 .*nearest: 64",
        ),
        ({"zero_optimization": {"stage": 4}}, r"\$.zero_optimization.stage is 4"),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 2}}},
            "ratio is 2; it must be a number from 0 to 1",
        ),
        ({"zero_optimization": 3}, r"\$.zero_optimization is 3; it must be an object"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "both enabled"),
        ({"bf16": {"enabled": "auto"}}, r"give --with precision=bf16 \(or fp32\)$"),
        ({"bf16": {"enabled": "yes"}}, r"\$.bf16.enabled is .yes.; it must be true or false"),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, r"bf16 \(or fp16, fp32\)$"),
        ({"zero_optimization": {"stage": "auto"}}, r"\$.zero_optimization.stage is left"),
    ],
)
def test_wrong_deepspeed_keys_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        of_json(**changes)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("train_micro_batch_size_per_gpu",), "per_gpu is left to the trainer: give --with"),
        (
            ("train_batch_size", "gradient_accumulation_steps"),
            "$.train_batch_size, $.gradient_accumulation_steps are left to the trainer: give --glo",
        ),
        (
            ("train_batch_size", "train_micro_batch_size_per_gpu"),
            "$.train_batch_size, $.train_micro_batch_size_per_gpu are left to the trainer: give "
            "--global-batch N (sequences) --with micro_batch=N",
        ),
    ],
)
def test_values_left_to_the_trainer_are_told_with_their_number(keys, said):
    with pytest.raises(InputError, match=re.escape(said)):
        of_json(**dict.fromkeys(keys, "auto"))


OPEN = {
    **dict.fromkeys(
        ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        "auto",
    ),
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "gradient_clipping": "auto",
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": "auto",
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}
"""A configuration of which the trainer decides what it can."""


def open_json(options, **changes):
    return READERS["deepspeed"](json.dumps({**OPEN, **changes}), "ds.json", options)


def test_deepspeed_values_of_the_trainer_are_asked_for_all_at_once():
    with pytest.raises(InputError) as error:
        open_json(ReaderOptions())
    assert str(error.value) == (
        "ds.json: $.train_batch_size, $.gradient_accumulation_steps, "
        "$.train_micro_batch_size_per_gpu, $.fp16.enabled, $.bf16.enabled are left to the trainer: "
        "give --global-batch N (sequences) --with micro_batch=N --with precision=bf16 "
        "(or fp16, fp32)"
    )


@pytest.mark.parametrize(
    "precision", [Precision.BF16, Precision.FP16, Precision.FP32, Precision.MIXED]
)
def test_deepspeed_values_of_the_trainer_are_given(precision):
    fields = {"micro_batch": 2, "precision": int(precision)}
    model = Model.preset("qwen2.5-7b")
    launch = open_json(ReaderOptions(model, plan=fields, has_batch=True))
    plan = plan_of(launch, fields)
    assert (plan.micro_batch, plan.precision, plan.zero) == (2, precision, 3)
    assert (plan.overlap_grad_reduce, launch.global_batch, launch.accumulation) == (1, None, None)
    assert batch_of(launch, plan, 8, 64) == 64
    assert {k.path[-1]: k.value for k in launch.unread} == {
        "loss_scale": 0,
        "gradient_clipping": "auto",
        "reduce_bucket_size": 3584 * 3584,
        "stage3_prefetch_bucket_size": int(0.9 * 3584 * 3584),
        "stage3_param_persistence_threshold": 35840,
    }


def test_deepspeed_values_that_the_file_states_are_not_asked_for():
    options = ReaderOptions(plan={"micro_batch": 1})
    launch = open_json(options, gradient_accumulation_steps=8, bf16={"enabled": True})
    assert (launch.accumulation, launch.plan["precision"]) == (8, Precision.BF16)
    launch = open_json(options, train_batch_size=64, bf16={"enabled": True})
    assert (launch.accumulation, launch.global_batch) == (None, 64)
    text = DEEPSPEED.replace('"gradient_accumulation_steps": 16', '"fp16": {"enabled": "auto"}')
    text = text.replace('gpu": 2', 'gpu": "auto"')
    launch = READERS["deepspeed"](text, "run.sh", ReaderOptions())
    assert (launch.plan["micro_batch"], launch.plan["precision"]) == (2, Precision.BF16)


@pytest.mark.parametrize(("device", "nvme"), [("cpu", 0), ("nvme", 2)])
def test_deepspeed_offload_of_weights(device, nvme):
    """What is kept in memory first is listed: the prediction has DeepSpeed's usual max_in_cpu."""
    section = {"device": device, "pin_memory": True, "max_in_cpu": 0}
    launch = of_json(zero_optimization={"stage": 3, "offload_param": section})
    assert [(k.place, k.affects_cost) for k in launch.unread] == [
        ("$.zero_optimization.offload_param.max_in_cpu", True)
    ]
    assert (launch.plan["offload_parameters"], launch.plan["nvme"]) == (100, nvme)
    assert launch.plan["overlap_param_gather"] == 1
    unknown = of_json(zero_optimization={"stage": 3, "offload_param": {"device": "tape"}})
    assert "offload_param.device is tape" in unknown.unmodelled["offload_parameters"]


@pytest.mark.parametrize(
    ("section", "percent", "why"),
    [
        ({"device": "cpu"}, 100, ""),
        ({"device": "cpu", "ratio": 0.4, "pin_memory": True}, 40, ""),
        ({"device": "none"}, 0, ""),
        ({"device": "nvme"}, 100, ""),
        ({"device": "tape"}, 0, "device is tape, which is not modelled"),
        ({"device": "cpu", "ratio": 0.333}, 33, "ratio is not a whole percent"),
    ],
)
def test_deepspeed_offload_of_the_optimizer(section, percent, why):
    launch = of_json(zero_optimization={"stage": 3, "offload_optimizer": section})
    assert launch.plan["offload_optimizer"] == percent
    assert why in launch.unmodelled.get("offload_optimizer", "")
    assert bool(why) == bool(launch.unmodelled)


OFFLOAD = "--use-distributed-optimizer --optimizer-cpu-offload --use-precision-aware-optimizer"


def test_megatron_offload():
    one = ("--pipeline-model-parallel-size 16", "--pipeline-model-parallel-size 1")
    more = f"{OFFLOAD} --overlap-cpu-optimizer-d2h-h2d --cpu-offloading-num-layers 24"
    launch = megatron(one, more=more)
    assert (launch.plan["offload_optimizer"], launch.plan["offload_activations"]) == (100, 25)
    assert not launch.unmodelled
    assert [k.text.split()[0] for k in launch.unread if "off" in k.text] == []
    part = megatron(more=f"{OFFLOAD} --optimizer-offload-fraction 0.25")
    assert part.plan["offload_optimizer"] == 25
    assert "copies that wait" in part.unmodelled["offload_optimizer"]
    odd = megatron(
        more=f"{OFFLOAD} --overlap-cpu-optimizer-d2h-h2d --optimizer-offload-fraction 0.125"
    )
    assert "0.125 is not a whole percent" in odd.unmodelled["offload_optimizer"]
    with pytest.raises(InputError, match=r"needs --offload-modules among .*, not moe_axt"):
        megatron(more="--fine-grained-activation-offloading --offload-modules moe_act moe_axt")


@pytest.mark.parametrize(
    ("fraction", "percent"), [("0", 0), ("0.01", 1), ("1", 100), ("0.005", None), ("0.999", None)]
)
def test_megatron_offloads_a_whole_percent_of_the_optimizer(fraction, percent):
    more = f"{OFFLOAD} --overlap-cpu-optimizer-d2h-h2d --optimizer-offload-fraction {fraction}"
    found = megatron(more=more)
    assert ("offload_optimizer" in found.unmodelled) is (percent is None)
    assert percent is None or found.plan["offload_optimizer"] == percent


@pytest.mark.parametrize(
    ("kinds", "code", "is_modelled"),
    [("", 0, True), ("p2p p2p", 0, True), ("a2a a2a a2a", 2, True), ("p2p a2a", 0, False),
     ("a2a+p2p", 0, False)],
)  # fmt: skip
def test_exchanges_of_contexts_are_of_one_kind(kinds, code, is_modelled):
    found = megatron(more=f"--context-parallel-size 2 {'--cp-comm-type' * bool(kinds)} {kinds}")
    assert ("cp_comm" not in found.unmodelled) is is_modelled
    assert not is_modelled or found.plan["cp_comm"] == code


@pytest.mark.parametrize(("layers", "percent"), [(0, 0), (24, 25), (95, 98), (96, None)])
def test_megatron_offloads_all_layers_but_one(layers, percent):
    """Of 96, in whole percent below their share."""
    one = ("--pipeline-model-parallel-size 16", "--pipeline-model-parallel-size 1")
    more = f"--cpu-offloading --cpu-offloading-num-layers {layers}"
    if percent is None:
        with pytest.raises(InputError, match="--cpu-offloading-num-layers"):
            megatron(one, more=more)
    else:
        assert megatron(one, more=more).plan.get("offload_activations", 0) == percent


@pytest.mark.parametrize("fraction", ["2", "half", "-0.01", "1.01"])
def test_megatron_offload_of_no_share_is_refused(fraction):
    with pytest.raises(InputError, match=f"fraction {fraction} must be a number from 0 to 1"):
        megatron(more=f"{OFFLOAD} --optimizer-offload-fraction {fraction}")


TORCHTITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
seq_len = 8192
steps = 1000
[parallelism]
tensor_parallel_degree = 2
pipeline_parallel_degree = 4
[activation_checkpoint]
mode = "none"
"""


def torchtitan(*changes, given=None):
    return READERS["torchtitan"](
        script(*changes, text=TORCHTITAN), "job.toml", given or ReaderOptions()
    )


def test_torchtitan_defaults():
    launch = torchtitan()
    plan = plan_of(launch, {})
    # Its own split takes a layer from the first and the last stage, and rests go first.
    assert plan.layers_per_stage == (8, 9, 8, 7)
    assert (plan.micro_batch, launch.accumulation, plan.zero) == (1, 8, 2)
    assert plan.sequence_parallel == 1
    assert same_shape(launch.model, Model.preset("llama-3.1-8b"))
    assert [k.text for k in launch.unread] == ["1000"]
    assert layers_of_chunks(34, 4, [1, 1]) == (8, 9, 8, 7)


@pytest.mark.parametrize(
    ("says", "logit_bytes", "fused_norm"),
    [
        ("", 14.0, False),
        ("[compile]\nenable = true\n", None, None),
        ('[compile]\nenable = true\ncomponents = ["model"]\n', 14.0, None),
        ('[compile]\nenable = false\ncomponents = ["model", "loss"]\n', 14.0, False),
    ],
)
def test_what_torchtitan_does_not_compile_is_of_the_stack(says, logit_bytes, fused_norm):
    launch = torchtitan(("[training]", f"{says}[training]"))
    assert launch.software.get("logit_bytes") == logit_bytes
    assert launch.software.get("fused_norm") == fused_norm


def test_llama_4_of_torchtitan_without_chunks_attends_to_all():
    changes = ('name = "llama3"', 'name = "llama4"'), ('flavor = "8B"', 'flavor = "17bx128e"')
    found = torchtitan(*changes).model
    maverick = Model.preset("llama-4-maverick")
    assert (found.name, found.parameters) == ("llama4-17bx128e", maverick.parameters)
    assert found.active_parameters == maverick.active_parameters
    assert {kind.attention.window for kind in found.kinds} == {0}
    assert len(found.kinds) == 2


def test_the_flavor_for_tests_of_torchtitan_has_the_parameters_that_it_prints():
    assert torchtitan(('flavor = "8B"', 'flavor = "debugmodel"')).model.parameters == 6_163_712


@pytest.mark.parametrize("converter", ["quantize.linear.float8", "float8"])
def test_torchtitan_float8_by_its_name_and_by_that_of_earlier_versions(converter):
    launch = torchtitan(('flavor = "8B"', f'flavor = "8B"\nconverters = ["{converter}"]'))
    assert plan_of(launch, {}).precision == Precision.FP8


@pytest.mark.parametrize(
    ("flavor", "converters", "names", "reason"),
    [
        ("30B-A3B", ["linear.float8", "grouped_mm.float8"], '"experts"', None),
        ("30B-A3B", ["linear.float8", "grouped_mm.float8"], "[]", "only its linear layers are"),
        ("30B-A3B", ["linear.float8"], "[]", "only its linear layers are converted to float8"),
        ("30B-A3B", ["grouped_mm.float8"], '["experts"]', "only its experts are converted"),
        ("8B", ["linear.float8"], "[]", None),
        ("8B", ["linear.mx"], "[]", "layers are converted by quantize.linear.mx, not modelled"),
    ],
)
def test_torchtitan_experts_have_a_converter_of_their_own(flavor, converters, names, reason):
    listed = str([f"quantize.{name}" for name in converters])
    launch = torchtitan(
        ('"llama3"', '"qwen3"'),
        ('flavor = "8B"', f'flavor = "{flavor}"\nconverters = {listed}'),
        ("[training]", f"[quantize.grouped_mm.float8]\nfqns = {names}\n[training]"),
    )
    found = launch.unmodelled.get("precision")
    assert (reason in found) if reason else found is None


@pytest.mark.parametrize(("family", "flavor"), READ)
def test_torchtitan_flavors_are_read(family, flavor):
    launch = torchtitan(
        ('"llama3"', f'"{family}"'),
        ('"8B"', f'"{flavor}"'),
        ("_parallel_degree = 4", "_parallel_degree = 1"),
    )
    preset = replace(Model.preset(READ[family, flavor]), mtp_layers=0)
    assert same_shape(launch.model, preset)


def test_torchtitan_schedules_and_chunks():
    head = "pipeline_parallel_degree = 4\npipeline_parallel_schedule ="
    plan = plan_of(torchtitan(("pipeline_parallel_degree = 4", f'{head} "Interleaved1F1B"')), {})
    assert plan.virtual_stages == 2
    assert sum(plan.layers_per_stage) == 32
    launch = torchtitan(("pipeline_parallel_degree = 4", f'{head} "InterleavedZeroBubble"'))
    with pytest.raises(InputError, match="InterleavedZeroBubble, which no plan has"):
        plan_of(launch, {})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"8B"',
            '"9B"',
            r"names llama3 9B, which is no flavor that plan3d knows \(llama3: 1B, .*give --model",
        ),
        ('"llama3"', '"llama9"', r"names llama9 8B, .* \(models: qwen3, .*\): give --model"),
        ("[model]", "[model", "is not TOML"),
        ("= 8192", '= "long"', r"\$.training.seq_len is .long.; it must be a whole number"),
        (
            "local_batch_size = 8",
            "local_batch_size = 8\nglobal_batch_size = 64\n[parallelism]\n"
            "data_parallel_shard_degree = 2\n[x]",
            "is not TOML",
        ),
        (
            "pipeline_parallel_degree = 4",
            "pipeline_parallel_degree = 4\nmodule_fqns_per_model_part = [['layers.0']]",
            "has 1 parts with 1 layers; a multiple of 4 parts and 32 layers are needed",
        ),
        (
            "pipeline_parallel_degree = 4",
            "pipeline_parallel_degree = 4\npipeline_parallel_layers_per_stage = 5",
            "makes 7 chunks of 32 layers for 4 stages",
        ),
        ("tensor_parallel_degree = 2", "tensor_parallel_degree = 0", "from 1 to"),
    ],
)
def test_wrong_torchtitan_keys_are_named(old, new, message):
    with pytest.raises(InputError, match=message) as error:
        torchtitan((old, new))
    assert "\n" not in str(error.value)


def test_torchtitan_accumulation_over_pipelines_is_refused():
    text = script(
        ("local_batch_size = 8", "local_batch_size = 8\nglobal_batch_size = 64"),
        (
            "tensor_parallel_degree = 2",
            "tensor_parallel_degree = 2\ndata_parallel_shard_degree = 2",
        ),
        text=TORCHTITAN,
    )
    with pytest.raises(InputError, match=r"several pipelines.* nearest: local_batch_size = 32"):
        READERS["torchtitan"](text, "job.toml", ReaderOptions())


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('mode = "none"', 'mode = "selective"', "recompute"),
        ("[activation_checkpoint]", "[other]", "recompute"),
        ("[training]", '[optimizer]\nname = "Muon"\n[training]', "optimizer"),
    ],
)
def test_what_no_plan_has_is_left_to_the_user(old, new, field):
    launch = torchtitan((old, new))
    with pytest.raises(InputError, match=f"--with {field}=VALUE"):
        plan_of(launch, {})
    assert plan_of(launch, {field: 0})


def test_torchtitans_list_of_operations_is_selective_recompute():
    by_operation = 'mode = "selective"\nselective_ac_option = "op"'
    assert plan_of(torchtitan(('mode = "none"', by_operation)), {}).recompute == 1
    by_layer = torchtitan(('mode = "none"', by_operation.replace('"op"', '"3"')))
    assert "selective_ac_option is 3, which no plan has" in by_layer.unmodelled["recompute"]
    experts = ('name = "llama3"\nflavor = "8B"', 'name = "deepseek_v3"\nflavor = "671B"')
    listed = torchtitan(('mode = "none"', by_operation), experts)
    assert "is op, which is not modelled for experts" in listed.unmodelled["recompute"]
    budget = torchtitan(('mode = "none"', 'mode = "memory_budget"'))
    assert "mode is memory_budget, which no plan has" in budget.unmodelled["recompute"]


def on(gpus, model="llama-3.1-8b", **stack):
    """A task on some GPUs, whose stack has some fields of its own."""
    software = replace(software_profile("megatron-core"), **stack)
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    return Task(Model.preset(model), cluster, sequence=2048, global_batch=48, software=software)


def test_recompute_of_what_a_model_does_not_have_is_none():
    """Megatron-Core takes `layernorm` of dense models and runs nothing again: their norms are parts
    of linear layers."""
    launch, plan = megatron(), Plan(recompute="selective")
    for model, modules, found in (
        ("llama-3.1-8b", ("layernorm",), Recompute.NONE),
        ("llama-3.1-8b", ("layernorm", "core_attn"), Recompute.SELECTIVE),
        ("mixtral-8x7b", ("layernorm",), Recompute.SELECTIVE),
    ):
        assert effective_plan(launch, plan, on(64, model, selective=modules)).recompute == found


def test_weights_of_8_bits_stay_on_one_data_rank():
    more = "--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather"
    launch = megatron(more=f"{more} --use-distributed-optimizer")
    plan = plan_of(launch, {})
    one = on(int(plan.tp * plan.pp))
    alone = effective_plan(launch, plan, one)
    assert (alone.zero, alone.fp8_params) == (0, 1)
    without = megatron(more=more)
    assert effective_plan(without, plan_of(without, {}), one).fp8_params == 0


def test_replicas_of_shards_are_settled_with_the_gpus():
    """Shards of what is left over, and instances of the optimizer, need the number of GPUs."""
    hybrid = torchtitan(("[parallelism]", "[parallelism]\ndata_parallel_replicate_degree = 2"))
    plan = plan_of(hybrid, {})
    assert effective_plan(hybrid, plan, on(64)).shard == 4
    with pytest.raises(InputError, match=r"2 replicas of shards, which do not divide dp x cp = 3"):
        effective_plan(hybrid, plan, on(24))
    more = "--use-distributed-optimizer --num-distributed-optimizer-instances 2"
    launch = megatron(more=more)
    plan = plan_of(launch, {})
    gpus = int(4 * plan.tp * plan.pp)
    assert effective_plan(launch, plan, on(gpus)).shard == 2
    assert effective_plan(megatron(), plan_of(megatron(), {}), on(gpus)).shard == 0


def test_buckets_decide_where_gradients_overlap():
    more = "--use-distributed-optimizer --ddp-bucket-size 5000"
    assert plan_of(megatron(more=f"{more} --overlap-grad-reduce"), {}).bucket_parameters == 5000
    alone = megatron(more=more)
    assert plan_of(alone, {}).bucket_parameters == 0
    assert "--ddp-bucket-size 5000" in [part.text for part in alone.unread]


@pytest.mark.parametrize(
    ("zero", "bucket"),
    [
        ({"stage": 2, "overlap_comm": True}, 5000),
        ({"stage": 1, "overlap_comm": True} | dict.fromkeys(BUCKETS, 5e8), 500_000_000),
        ({"stage": 1, "overlap_comm": True} | dict.fromkeys(BUCKETS, 0.5), 0),
        ({"stage": 1, "overlap_comm": True} | dict.fromkeys(BUCKETS, 1), 1),
        ({"stage": 1, "overlap_comm": True} | dict.fromkeys(BUCKETS, 0), 0),
        ({"stage": 1, "overlap_comm": True} | dict.fromkeys(BUCKETS, 2**31 - 1), 2**31 - 1),
        ({"stage": 1, "overlap_comm": True} | dict.fromkeys(BUCKETS, 2**31), 0),
        ({"stage": 1, "overlap_comm": True} | dict.fromkeys(BUCKETS, 5000.5), 0),
        ({"stage": 2}, 0),
        ({"stage": 3}, 0),
        ({"stage": 2, "overlap_comm": True, "allgather_bucket_size": 9}, 0),
        ({"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto"}, 0),
    ],
)
def test_buckets_of_deepspeed(zero, bucket):
    sizes = {"reduce_bucket_size": 5000, "allgather_bucket_size": 5000}
    content = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {**sizes, **zero}}
    launch = READERS["deepspeed"](json.dumps(content), "ds.json", ReaderOptions())
    assert plan_of(launch, {}).bucket_parameters == bucket
    assert len(launch.unread) == (0 if bucket else 2)
    assert all(part.affects_cost for part in launch.unread)


NANOTRON = """
general: {project: debug, run: tiny, seed: 42}
model:
  dtype: bfloat16
  model_config: {is_llama_config: true, hidden_size: 512, intermediate_size: 2048,
    num_attention_heads: 8, num_hidden_layers: 4, vocab_size: 32000, rope_scaling: null}
parallelism: {dp: 2, pp: 2, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER}
tokens: {sequence_length: 256, micro_batch_size: 2, batch_accumulation_per_replica: 8,
  train_steps: 15}
optimizer: {zero_stage: 0, accumulate_grad_in_fp32: true, clip_grad: 1.0}
"""


def nanotron(*changes):
    return READERS["nanotron"](script(*changes, text=NANOTRON), "run.yaml", ReaderOptions())


def test_a_nanotron_file():
    launch = nanotron()
    plan = plan_of(launch, {})
    assert (plan.dp, plan.pp, plan.tp, plan.sequence_parallel) == (2, 2, 2, 1)
    assert (launch.gpus, launch.sequence, launch.accumulation) == (8, 256, 8)
    assert batch_of(launch, plan, 8, None) == 32
    assert "clipping_bytes" not in launch.software
    unclipped = nanotron(("clip_grad: 1.0", "clip_grad: null"))
    assert unclipped.software["clipping_bytes"] == 0
    assert launch.model.layers == 4
    assert {k.place: k.value for k in launch.unread} == {
        "$.general.project": "debug",
        "$.general.run": "tiny",
        "$.general.seed": 42,
        "$.tokens.train_steps": 15,
        "$.optimizer.clip_grad": 1.0,
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dp: 2", "dp: two", r"\$.parallelism.dp is .two.; it must be a whole number"),
        ("dp: 2, ", "", r"\$.parallelism.dp is missing"),
        ("general: {", "general: {{", r"is not YAML \(line 1?[0-9]: "),
        ("1f1b", "interleaved", "it must be one of 'afab', '1f1b'"),
        ("hidden_size: 512", "hidden_size: 513", "is 8, which does not divide 513"),
        ("rope_scaling: null", "moe_config: {num_experts: 8}", "moe_config is not modelled"),
        ("rope_scaling: null", "num_local_experts: 8", "num_local_experts is not modelled"),
        (
            "rope_scaling: null",
            "activation_function: gelu",
            r"\.activation_function is in no class",
        ),
        (
            "general: {",
            "infini_attention: {length: 8}\ngeneral: {",
            r"\$.infini_attention is in no",
        ),
        ("zero_stage: 0", "zero_stage: 3", r"\$.optimizer.zero_stage is 3"),
        ("{dp: 2", "{expert_parallel_size: 2, dp: 2", "experts of nanotron are not modelled"),
    ],
)
def test_wrong_nanotron_keys_are_named(old, new, message):
    with pytest.raises(InputError, match=message) as error:
        nanotron((old, new))
    assert "\n" not in str(error.value)


def test_sizes_from_the_file_and_from_the_user_may_not_differ():
    launch = Launch("f", "megatron", gpus=8, global_batch=16, sequence=2048)
    assert gpus_of(launch, 8) == gpus_of(launch, None) == 8
    with pytest.raises(InputError, match="is for 8 GPUs, which contradicts --gpus 16"):
        gpus_of(launch, 16)
    with pytest.raises(InputError, match="contradicts --global-batch 32"):
        batch_of(launch, Plan(), 8, 32)
    model = Model.preset("gpt3-1.3b")
    with pytest.raises(InputError, match="--sequence 4096 contradicts"):
        sequence_of(launch, 4096, model)
    empty = Launch("f", "megatron")
    with pytest.raises(InputError, match="give --gpus N"):
        gpus_of(empty, None)
    with pytest.raises(InputError, match="give --global-batch N"):
        batch_of(empty, Plan(), 8, None)
    assert sequence_of(empty, None, model) == model.sequence


@pytest.mark.parametrize(
    ("name", "text", "framework"),
    [
        ("run.sh", GPT3, "megatron"),
        ("run.sh", DEEPSPEED, "deepspeed"),
        ("ds.json", "{}", "deepspeed"),
        ("job.toml", TORCHTITAN, "torchtitan"),
        ("run.yaml", NANOTRON, "nanotron"),
        ("run.yml", NANOTRON, "nanotron"),
    ],
)
def test_files_are_recognised(name, text, framework):
    assert framework_of_file(text, name) == framework
    assert reader(text, name, None) is READERS[framework]
    with pytest.raises(InputError, match="did you mean nanotron"):
        reader(text, name, "nanotro")


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("text", ["", "{}", "[]", "echo hello", "a: 1", "\x00", "[[[[", "'"])
def test_other_files_are_refused_in_one_line(name, text):
    with pytest.raises(InputError) as error:
        READERS[name](text, "file", ReaderOptions())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "truth"),
    [
        ("[ a = a ]", True),
        ("[[ a == b ]]", False),
        ("[ a != b ]", True),
        ("[ 2 -eq 02 ]", True),
        ("[ 2 -ne 2 ]", False),
        ("[ $X = 1 ]", None),
        ("[ -f file ]", None),
        ("[ a = b ] || [ a = a ]", True),
        ("[ a = b ] && [ $X = a ]", False),
        ("[ a = a ] && [ $X = a ]", None),
        ("[ $X = a ] || [ a = a ]", True),
        ("[ 2 -gt 1 ]", True),
        ("[ 2 -gt 2 ]", False),
        ("[ 2 -ge 2 ]", True),
        ("[ 10 -lt 9 ]", False),
        ("[ 9 -le 10 ]", True),
        ("[ -1 -lt 1 ]", True),
        ("[ x -gt 1 ]", None),
        ("[ $X -gt 1 ]", None),
        ("! [ 2 -gt 1 ]", False),
        ("[ ! 2 -gt 1 ]", False),
        ("[ 2 -gt 1 -a a = b ]", False),
        ("[ 2 -gt 1 -o $X = b ]", True),
        ("[ -z a -a $X = b -o a = a ]", None),
        ("[[ 2 -gt 1 && a = b ]]", False),
        ("[[ 2 -gt 1 || $X = b ]]", True),
        ("[[ 2 -gt 1 || a = b && a = b ]]", None),
        ("[[ 2+2 -eq 4 ]]", True),
        ("[[ llama-8b == llama* ]]", True),
        ("[[ llama-8b =~ ^llama ]]", True),
        ("[[ llama-8b =~ (a+)+$ ]]", None),
        ("[[ llama-8b =~ ( ]]", None),
        ("test 2 -gt 1", True),
        ("((2>1))", True),
        ("((2-2))", False),
        ("(($1>1))", None),
        ("((2>1)) && [ a = b ]", False),
        ("grep x file", None),
        ("", None),
    ],
)
def test_conditions(words, truth):
    assert condition_truth(words.split(), "$") is truth


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("N * ${N} - $N", 12),
        ("N > 3 ? 8 : 2", 8),
        ("N > 4 ? 8 : N == 4 ? 6 : 2", 6),
        ("(N>=4) && !(N!=4)", 1),
        ("0 && UNSET", 0),
        ("1 || UNSET", 1),
        ("1 ? 5 : UNSET", 5),
        ("1 && UNSET", None),
        ("UNSET", None),
        ("$1 * 2", None),
        ("010", 8),
        ("0x1F", 31),
        ("09", None),
        ("16#ff", 255),
        ("1 / 0", None),
        ("2 ** 3 ** 2", 512),
        ("-2 ** 2 + (1 << 3 >> 1)", 8),
        ("6 & 3 | 8 ^ 1", 11),
        ("~N + 1 == -N", 1),
        ("2 ** 64", None),
        ("1 << 64", None),
        ("1 << -1", None),
        ("N = 5", None),
        ("N++", None),
        ("1 2", None),
        ("$(nproc) * 2", None),
        ("$((N + 1)) * 2", 10),
        ("9999999999 * 9999999999", None),
        ("(" * 300 + "1" + ")" * 300, None),
        ("", None),
    ],
)
def test_arithmetic(text, value):
    """Division truncates, and what is unknown or no expression has no value."""
    assert arithmetic(text, {"N": 4}.get) == value


def test_branches():
    branches = Branches()
    assert branches.reached is True
    branches.enter(False)
    branches.next_branch(None)
    assert branches.reached is None
    branches.next_branch(True)
    assert branches.reached is None
    branches.enter(False)
    assert branches.reached is False
    branches.leave()
    branches.leave()
    branches.enter(True)
    branches.next_branch(True)
    assert branches.reached is False


FILES = {
    "megatron": GPT3,
    "megatron-bridge-recipe": "recipe: {_target_: megatron.bridge.recipes.a.qwen3_8b_config, b: 1}"
    "\ntrain: {global_batch_size: 32, micro_batch_size: 2}\nmodel: {context_parallel_size: 2}\n",
    "megatron-arguments": "MODEL_ARGS:\n  --num-layers: 2\n  --bf16: true\n",
    "deepspeed": DEEPSPEED,
    "torchtitan": TORCHTITAN,
    "nanotron": NANOTRON,
    "nanotron-command": "torchrun --nproc_per_node 8 run_train.py --config-file $C/a.yaml",
    "llama-factory": "model_name_or_path: Qwen/Qwen3-8B\ndo_train: true\nquantization_bit: 4\n",
    "axolotl": "base_model: Qwen/Qwen3-8B\nsequence_len: 2048\nfsdp_config: {version: 2}\n",
    "ms-swift": "model: Qwen/Qwen2.5-7B\nmax_length: 2048\ndeepspeed: zero2\ntuner_type: lora\n",
    "trainer": "model_name_or_path: Qwen/Qwen2.5-7B\nfsdp: full_shard\nbf16: true\n",
    "trainer-script": "from transformers import AutoModelForCausalLM, TrainingArguments\n"
    "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B')\n"
    "args = TrainingArguments('o', per_device_train_batch_size=2, bf16=True)\n",
    "trainer-command": "NNODES=2 swift sft --model Qwen/Qwen3-8B --bf16 true --deepspeed zero3",
    "megatron-swift": "model: Qwen/Qwen3-8B\nglobal_batch_size: 8\nmax_length: 2048\n",
    "megatron-swift-command": "NNODES=2 megatron pt --model Qwen/Qwen3-8B --max_length 2048",
    "nemo": "trainer: {num_nodes: 1}\nmodel: {num_layers: 2, hidden_size: 64, micro_batch_size: 1, "
    "num_attention_heads: 4, global_batch_size: 4, encoder_seq_length: 64}\n",
    "megatron-bridge": "OVERRIDES=(\n model.num_layers=2\n model.hidden_size=64\n "
    "mixed_precision=bf16_mixed\n model.num_attention_heads=4\n train.micro_batch_size=1\n)\n",
    "megatron-bridge-config": "model: {_target_: a.models.b, num_layers: 2, hidden_size: 64, "
    "seq_length: 64, num_attention_heads: 4, vocab_size: 100}\ntrain: {micro_batch_size: 1}\n",
    "log": "---- arguments ----\n num_layers ... 2\n hidden_size ... 64\n"
    " num_attention_heads ... 4\n micro_batch_size ... 1\n seq_length ... 64\n"
    " max_position_embeddings ... 64\n",
    "primus": "modules: {pre_trainer: {framework: megatron, model: llama3.1_8B.yaml, overrides: "
    "{micro_batch_size: 1, recompute_granularity: full, use_torch_fsdp2: true}}}\n",
    "recipe": "import nemo_run\ndef f(n=2):\n    r = llm.llama3_8b.pretrain_recipe(num_nodes=n)\n"
    "    r.trainer.strategy.tensor_model_parallel_size = 2 * n\n    return r\n",
    "wandb": "_wandb: {value: {}}\nnum_layers: {value: 2}\nhidden_size: {value: 64}\n"
    "num_attention_heads: {value: 4}\nmicro_batch_size: {value: 1}\nseq_length: {value: 64}\n"
    "tensor_model_parallel_size: {value: 2}\nmax_position_embeddings: {value: 64}\n",
    "automodel": "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
    "step_scheduler: {global_batch_size: 64, local_batch_size: 4}\n"
    "distributed: {strategy: fsdp2, tp_size: 2}\n"
    "model: {pretrained_model_name_or_path: meta-llama/Llama-3.1-8B}\n",
    "torchtune": "model: {_component_: torchtune.models.qwen3.lora_qwen3_8b_base, lora_rank: 8, "
    "lora_attn_modules: [q_proj]}\ntokenizer: {max_seq_len: 8}\noptimizer: {_component_: a.Adam}\n"
    "loss: {_component_: a.LinearCrossEntropyLoss}\nbatch_size: 2\nfsdp_cpu_offload: true\n",
    "torchtune-command": "tune run --nproc_per_node 2 lora_finetune_distributed --config a/b x.y=2",
    "accelerate": "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_version: 2}\n",
}


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_damaged_files_are_read_or_refused_in_one_line(name, data):
    text = FILES[name]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 6))
        new = data.draw(
            st.sampled_from(("", "0", "-1", "$", "'", '"', "{", "\n", "#", "--", "1e9"))
        )
        text = text[:at] + new + text[at + cut :]
    assert "\n" not in problem(name, text)


def problem(name, text):
    """What a reader has against a file; '' when it reads it."""
    try:
        launch = READERS[name](text, "file", ReaderOptions())
    except InputError as error:
        return str(error)
    assert launch.plan["tp"] >= 1
    return ""
