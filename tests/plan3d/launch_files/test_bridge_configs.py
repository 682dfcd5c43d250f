"""Configurations that Megatron-Bridge saves, and Python that is refused by name."""

import json

import pytest

from plan3d.launch_files.exporter import launch_text
from plan3d.launch_files.launch_file import ReaderOptions, plan_of
from plan3d.launch_files.registry import EXPORTERS, READERS, framework_of_file, reader
from plan3d.launch_files.shape import same_shape
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.pipeline.stage_placement import chunk_layers
from plan3d.simulator.plan.field_values import Loss, StateFormat
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

MODEL = {
    "_target_": "megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B",
    "activation_func": {"_call_": False, "_target_": "torch.nn.functional.silu"},
    "add_bias_linear": False,
    "attention_dropout": 0.0,
    "bf16": True,
    "context_parallel_size": 2,
    "cross_entropy_loss_fusion": True,
    "ffn_hidden_size": 224,
    "gated_linear_unit": True,
    "hidden_dropout": 0.0,
    "hidden_size": 64,
    "kv_channels": 16,
    "moe_layer_freq": 1,
    "moe_router_topk": 2,
    "normalization": "RMSNorm",
    "num_attention_heads": 4,
    "num_layers": 4,
    "num_moe_experts": None,
    "num_query_groups": 2,
    "pipeline_model_parallel_size": 2,
    "position_embedding_type": "rope",
    "recompute_granularity": None,
    "rotary_base": 500000,
    "seq_length": 128,
    "sequence_parallel": True,
    "share_embeddings_and_output_weights": False,
    "tensor_model_parallel_size": 2,
    "vocab_size": 1000,
}
REST = {
    "ddp": {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "bucket_size": None},
    "mixed_precision": {"bf16": True, "fp8": None, "fp8_recipe": "tensorwise"},
    "optimizer": {"optimizer": "adam", "lr": 3e-4, "use_distributed_optimizer": True},
    "train": {"global_batch_size": 64, "micro_batch_size": 1, "train_iters": 10},
    "rng": {"seed": 1},
}


def launch(**changes):
    text = json.dumps({**REST, "model": {**MODEL, **changes}})
    return reader(text, "run_config.yaml", None)(text, "run_config.yaml", ReaderOptions())


def test_a_run_config_is_read():
    """Attention: 64 (4 + 2 + 2) 16 + 64 64; gated MLP: 3 64 224; two norms: 128 weights."""
    found = launch()
    layer = 64 * 128 + 64 * 64 + 3 * 64 * 224 + 128
    assert found.model.parameters == 2 * 1000 * 64 + 4 * layer + 64
    assert found.title == "Megatron-Bridge"
    sizes = {name: found.plan[name] for name in ("tp", "pp", "cp", "zero", "sequence_parallel")}
    assert sizes == {"tp": 2, "pp": 2, "cp": 2, "zero": 1, "sequence_parallel": True}
    assert (found.sequence, found.global_batch) == (128, 64)


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        ({"gated_linear_unit": False, "activation_func": None}, -4 * 64 * 224),
        ({"add_qkv_bias": True}, 4 * 128),
        ({"share_embeddings_and_output_weights": True}, -64_000),
        (
            {"num_moe_experts": 4, "moe_ffn_hidden_size": 224},
            4 * (3 * 3 * 64 * 224 + 4 * 64),
        ),
    ],
)
def test_fields_of_the_model(changes, parameters):
    assert launch(**changes).model.parameters - launch().model.parameters == parameters


def test_fields_that_nobody_knows_are_named():
    found = launch(
        num_layer_groups=3, use_te_rng_tracker=True, quant_recipes="a", normalisation=None
    )
    assert [(one.text, one.affects_cost) for one in found.unread] == [
        ("num_layer_groups = 3", False),
        ("quant_recipes = a", False),
    ]
    assert launch().unread == []


def test_adapters_of_a_run_config():
    peft = {"_target_": "megatron.bridge.peft.lora.LoRA", "dim": 8, "target_modules": None}
    text = json.dumps({**REST, "model": MODEL, "peft": peft})
    found = reader(text, "run_config.yaml", None)(text, "run_config.yaml", ReaderOptions())
    assert found.adapters.rank == 8
    assert {"q", "k", "v", "o"} < set(found.adapters.targets)
    for change, message in (
        ({"_target_": "a.DoRA"}, "trains by dora"),
        ({"dim": 0}, r"^run_config\.yaml: \$\.peft\.dim .*whole number from 1 to 4096"),
        ({"dim": 4097}, r"^run_config\.yaml: \$\.peft\.dim .*whole number from 1 to 4096"),
        ({"dropout": 2}, r"^run_config\.yaml: \$\.peft\.dropout "),
    ):
        text = json.dumps({**REST, "model": MODEL, "peft": {**peft, **change}})
        with pytest.raises(InputError, match=message):
            reader(text, "run_config.yaml", None)(text, "run_config.yaml", ReaderOptions())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_target_": "megatron.bridge.models.mamba.mamba_provider.MambaProvider"}, "state-space"),
        ({"is_hybrid_model": True}, "state-space"),
        ({"_target_": "megatron.bridge.models.wan.wan_provider.WanProvider"}, "a diffusion model"),
        ({"heterogeneous_block_specs": {"a": 1}}, "layers that differ"),
    ],
)
def test_other_models_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        launch(**changes)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("o.yaml", "train: {train_iters: 5}\ndist: {}\n", r"Megatron-Bridge \(overrides"),
        ("r.py", "import slime\n", "Python of slime, which is not read"),
        ("r.py", "import deepspeed\n", "Python of DeepSpeed, which is not run: give its JSON"),
        ("r.py", "x = 1\n", "r.py: is Python, which is not run"),
        ("r.sh", "python performance/setup_experiment.py -m a\n", "Megatron-Bridge"),
    ],
)
def test_programs_are_refused_by_name(file, text, message):
    with pytest.raises(InputError, match=message):
        reader(text, file, None)


def test_samples_have_the_tokens_of_the_data_set():
    text = json.dumps({"model": MODEL, **REST, "dataset": {"sequence_length": 64}})
    assert reader(text, "run_config.yaml", None)(text, "run_config.yaml").sequence == 64


@pytest.mark.parametrize(
    ("kind", "moments"),
    [("float32", StateFormat.FP32), ("bfloat16", StateFormat.BF16), ("uint8", StateFormat.FP8)],
)
def test_formats_of_the_optimizer_are_objects_of_torch(kind, moments):
    made = {"_call_": False, "_target_": f"torch.{kind}"}
    optimizer = {**REST["optimizer"], "use_precision_aware_optimizer": True, "exp_avg_dtype": made}
    text = json.dumps({**REST, "model": MODEL, "optimizer": optimizer})
    found = reader(text, "run_config.yaml", None)(text, "run_config.yaml")
    assert found.plan["exp_avg_dtype"] == moments


RECIPE = (
    "torchrun --nproc-per-node 8 run_recipe.py --recipe llama32_1b_pretrain_config "
    "model.tensor_model_parallel_size=2 train.global_batch_size=64 mixed_precision="
    "bf16_with_fp8_current_scaling_mixed\n"
)


def read_script(text, **given):
    options = ReaderOptions(inputs=ScriptInputs((), given, None))
    return reader(text, "run.sh", None)(text, "run.sh", options)


def test_a_recipe_with_overrides_asks_for_what_the_recipe_decides():
    with pytest.raises(InputError, match=r"which is not known: --set pipeline_model_parallel_size"):
        read_script(RECIPE)
    sizes = {"pipeline_model_parallel_size": "1", "context_parallel_size": "1"}
    found = read_script(RECIPE, **sizes, micro_batch_size="1", max_length="4096")
    assert (found.model.name, found.launcher_gpus) == ("llama-3.2-1b", 8)
    assert (found.plan["tp"], found.global_batch, found.sequence) == (2, 64, 4096)
    fields = ("precision", "fp8_params", "bf16_first_layers", "bf16_last_layers")
    assert [found.plan[name] for name in fields] == [Precision.FP8, True, 1, 1]
    assert any("decides what is not stated" in one.text for one in found.unread)


@pytest.mark.parametrize(("name", "loss"), [("qwen3-8b", Loss.FUSED), ("gpt-oss-20b", Loss.USUAL)])
def test_overrides_of_plan3d_come_back(name, loss):
    cluster = Cluster.profile("h100-sxm", gpus=16)
    task = Task(Model.preset(name), cluster, sequence=4096, global_batch=64)
    plan = Plan(tp=2, dp=8, ep=8 if "oss" in name else 1, zero=1, loss=int(loss))
    found = read_script(launch_text(task, plan, EXPORTERS["megatron-bridge"].form()))
    assert same_shape(found.model, task.model)
    assert (found.global_batch, found.sequence) == (64, 4096)
    assert [found.plan[key] for key in ("tp", "ep", "zero", "loss")] == [2, plan.ep, 1, loss]


def test_gradients_that_are_reduced_in_bf16():
    for value, code in ((False, StateFormat.BF16), (True, StateFormat.USUAL)):
        assert launch(grad_reduce_in_fp32=value).plan["grad_reduce_dtype"] == code


EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"


def chunks_of(found):
    """Layers of each chunk, in the order of the layers."""
    plan = plan_of(found, {})
    ends = (plan.first_stage_layers, plan.last_stage_layers, plan.layers_per_stage)
    return chunk_layers(found.model.layers, plan.pp, plan.virtual_stages, *ends)


@pytest.mark.parametrize(
    ("layers", "virtual", "counted", "chunks"),
    [
        # Of an embedding and 7 layers each chunk has 2, the first one but one layer.
        (7, 2, (EMBEDDING,), (1, 2, 2, 2)),
        (7, 2, (LOSS,), (2, 2, 2, 1)),
        (10, 2, (EMBEDDING, LOSS), (2, 3, 3, 2)),
        (10, 3, (EMBEDDING, LOSS), (1, 2, 2, 2, 2, 1)),
        (5, 1, (EMBEDDING,), (2, 3)),
        (5, 1, (LOSS,), (3, 2)),
        (4, 1, (EMBEDDING, LOSS), (2, 2)),
    ],
)
def test_ends_that_count_as_layers_of_chunks(layers, virtual, counted, chunks):
    stated = {"virtual_pipeline_model_parallel_size": virtual, **dict.fromkeys(counted, True)}
    assert chunks_of(launch(num_layers=layers, **stated)) == chunks


@pytest.mark.parametrize(
    ("layout", "virtual", "chunks"),
    [
        ("Ett|ttL", 1, (2, 2)),
        ("Et|tttL", 1, (1, 3)),
        ("Et|t|t|tL", 2, (1, 1, 1, 1)),
        ("Ett||t|tL", 2, (2, 0, 1, 1)),
    ],
)
def test_chunks_that_are_written_out(layout, virtual, chunks):
    found = launch(pipeline_model_parallel_layout=layout)
    assert (chunks_of(found), found.plan["virtual_stages"]) == (chunks, virtual)


DOCUMENT = """
run: {env: {container: x}}
recipe:
  _target_: megatron.bridge.recipes.qwen.qwen3.qwen3_8b_pretrain_config
  path: ${art:data,path}
train: {global_batch_size: 32, micro_batch_size: 2}
model: {tensor_model_parallel_size: 4, pipeline_model_parallel_size: 1, context_parallel_size: 2,
  seq_length: "${art:data,size}"}
logger: {log_interval: 10}
"""


def test_a_document_of_a_recipe_and_its_overrides():
    assert framework_of_file(DOCUMENT, "tiny.yaml") == "megatron-bridge-recipe"
    read = READERS["megatron-bridge-recipe"]
    given = ReaderOptions(inputs=ScriptInputs(values={"max_length": "4096"}))
    found = read(DOCUMENT, "tiny.yaml", given)
    assert (found.model.name, found.sequence, found.global_batch) == ("qwen3-8b", 4096, 32)
    assert [found.plan[name] for name in ("tp", "cp", "micro_batch")] == [4, 2, 2]
    with pytest.raises(InputError, match=r"max_length is art_data_size: --set max_length=VALUE"):
        read(DOCUMENT, "tiny.yaml", ReaderOptions())
    other = DOCUMENT.replace("megatron.bridge.recipes.qwen.qwen3.qwen3_8b_pretrain_config", "own.x")
    with pytest.raises(InputError, match=r"\$.recipe._target_ is 'own.x': no recipe of Megatron"):
        read(other, "tiny.yaml", ReaderOptions())
