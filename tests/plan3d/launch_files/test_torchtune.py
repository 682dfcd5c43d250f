"""Recipe files of torchtune, and commands of `tune run`: what is read, and what is refused."""

import json

import pytest

from plan3d.launch_files.launch_file import NO_OPTIONS, ReaderOptions
from plan3d.launch_files.registry import reader
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Optimizer, Precision

CONFIG = {
    "output_dir": "/tmp/out",
    "max_seq_len": 4096,
    "tokenizer": {
        "_component_": "torchtune.models.llama3.llama3_tokenizer",
        "max_seq_len": "${max_seq_len}",
    },
    "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
    "checkpointer": {"_component_": "torchtune.training.FullModelHFCheckpointer"},
    "dataset": {"_component_": "torchtune.datasets.alpaca_dataset", "packed": True},
    "batch_size": 2,
    "gradient_accumulation_steps": 8,
    "optimizer": {"_component_": "torch.optim.AdamW", "fused": True, "lr": 2e-5},
    "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
    "clip_grad_norm": None,
    "compile": False,
    "enable_activation_checkpointing": True,
    "custom_sharded_layers": ["tok_embeddings", "output"],
    "dtype": "bf16",
    "epochs": 1,
}
LORA = {
    "_component_": "torchtune.models.llama3_1.lora_llama3_1_8b",
    "lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
    "apply_lora_to_mlp": True,
    "lora_rank": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
}


def launch(options=NO_OPTIONS, **changes):
    text = json.dumps({**CONFIG, **changes})
    return reader(text, "r.yaml", None)(text, "r.yaml", options)


def test_a_full_recipe_is_fsdp_of_weights_in_16_bits():
    found = launch()
    assert (found.model.name, found.sequence, found.accumulation) == ("llama-3.1-8b", 4096, 8)
    stated = {"tp": 1, "zero": 3, "micro_batch": 2, "recompute": 2}
    assert found.plan.items() >= {**stated, "precision": Precision.PURE_BF16}.items()
    assert (found.framework, found.title, found.adapters) == ("torchtitan", "torchtune", None)
    names = ("clipping_bytes", "gathered_ends", "fused_norm", "fused_activation")
    assert [found.software[name] for name in names] == [0, (), False, False]
    places = {one.place for one in found.unread if not one.why_neutral}
    assert places == {"sequences"}


def test_adapters_have_their_matrices_and_the_format_of_frozen_weights():
    found = launch(model=LORA).adapters
    assert (found.rank, found.dropout, found.base) == (16, 0.05, "bf16")
    assert {*found.targets} == {"q", "v", "o", "gate", "up", "down"}
    quantised = {**LORA, "_component_": "torchtune.models.llama3_1.qlora_llama3_1_8b"}
    assert launch(model=quantised).adapters.base == "nf4-dq"
    assert launch(model={**LORA, "quantize_base": True}).adapters.base == "nf4-dq"


@pytest.mark.parametrize(
    ("builder", "name", "parameters"),
    [
        ("llama2.llama2_7b", "llama-2-7b", 6_738_415_616),
        ("llama3.llama3_70b", "llama-3-70b", 70_553_706_496),
        ("llama3_2.llama3_2_1b", "llama-3.2-1b", 1_235_814_400),
        ("llama3_3.llama3_3_70b", "llama-3.3-70b", 70_553_706_496),
        ("mistral.mistral_7b", "mistral-7b", 7_241_732_096),
        ("gemma.gemma_2b", "gemma-2b", 2_506_172_416),
        ("gemma2.gemma2_9b", "gemma-2-9b", 9_241_705_984),
        ("phi3.phi3_mini", "phi-3-mini", 3_821_079_552),
        ("phi4.phi4_14b", "phi-4", 14_659_507_200),
        ("qwen2.qwen2_0_5b", "qwen2.5-0.5b", 494_032_768),
        ("qwen2_5.qwen2_5_1_5b_instruct", "qwen2.5-1.5b", 1_543_714_304),
        ("qwen3.qwen3_8b_base", "qwen3-8b", 8_190_735_360),
    ],
)
def test_builders_have_the_parameters_of_their_names(builder, name, parameters):
    model = launch(model={"_component_": f"torchtune.models.{builder}"}).model
    assert (model.name, model.parameters) == (name, parameters)
    if name in ("mistral-7b", "phi-3-mini"):
        assert not any(block.attention.window for block in model.kinds)


def test_a_file_for_one_gpu_says_so_in_its_call():
    text = "# tune run lora_finetune_single_device --config x\n" + json.dumps(CONFIG)
    found = reader(text, "r.yaml", None)(text, "r.yaml", NO_OPTIONS)
    assert (found.launcher_gpus, launch().launcher_gpus) == (1, None)


def test_settings_of_memory_are_read():
    found = launch(
        optimizer={"_component_": "bitsandbytes.optim.PagedAdamW8bit", "lr": 1e-5},
        optimizer_in_bwd=True,
        gradient_accumulation_steps=1,
        fsdp_reshard_after_forward=False,
        clip_grad_norm=1.0,
        custom_sharded_layers=None,
        compile=True,
    )
    assert (found.plan["zero"], found.plan["optimizer"]) == (2, Optimizer.ADAM_8BIT)
    assert 0 < found.software["gradient_memory"] < 1e-6
    assert 0 < found.software["optimizer_memory"] < 1e-6
    assert [one for one in found.unread if "states are on the host" in one.text]
    assert found.software["gathered_ends"] == ("embedding", "head")
    assert found.software["fused_adapters"]
    assert "clipping_bytes" not in found.software
    assert launch(fsdp_cpu_offload=True).plan["offload_parameters"] == 100
    assert launch(optimizer={"_component_": "torch.optim.AdamW"}).software["fused_update"] is False


def test_axes_are_read():
    plan = {"_component_": "torchtune.models.llama3.base_llama_tp_plan"}
    found = launch(tensor_parallel_dim=4, tensor_parallel_plan=plan, data_parallel_shard_dim=2)
    assert (found.plan["tp"], found.plan["sequence_parallel"], found.gpus) == (4, 1, 8)
    assert launch(data_parallel_shard_dim=4, data_parallel_replicate_dim=2).replicas == 2


@pytest.mark.parametrize(
    ("axes", "gpus", "replicas"),
    [
        ({"data_parallel_shard_dim": 1}, 1, 1),
        ({"data_parallel_shard_dim": 5}, 5, 1),
        ({"data_parallel_shard_dim": 5, "data_parallel_replicate_dim": 2}, 10, 2),
        ({"data_parallel_shard_dim": 5, "context_parallel_dim": 3}, 15, 1),
        (
            {
                "data_parallel_shard_dim": 5,
                "data_parallel_replicate_dim": 2,
                "context_parallel_dim": 3,
                "tensor_parallel_dim": 4,
            },
            120,
            2,
        ),
        ({"data_parallel_shard_dim": -1}, None, 1),
        ({"data_parallel_replicate_dim": 2}, None, 2),
        ({"context_parallel_dim": 3}, None, 1),
    ],
)
def test_gpus_are_the_product_of_the_axes_where_all_are_stated(axes, gpus, replicas):
    """torchtune shards over what the other axes leave where the size is -1, as by default."""
    plan = {"_component_": "torchtune.models.llama3.base_llama_tp_plan"}
    found = launch(tensor_parallel_plan=plan, **axes)
    assert (found.gpus, found.replicas) == (gpus, replicas)
    assert found.plan["cp"] == axes.get("context_parallel_dim", 1)
    assert found.plan["sequence_parallel"] == (found.plan["tp"] > 1)


@pytest.mark.parametrize(("size", "zero"), [(True, 3), (False, 2)])
def test_weights_that_are_kept_between_passes(size, zero):
    assert launch(fsdp_reshard_after_forward=size).plan["zero"] == zero


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": {"_component_": "torchtune.models.llama4.llama4_scout_17b_16e"}},
            "llama4_scout",
        ),
        ({"model": {**LORA, "use_dora": True}}, "trains by dora, .*nearest: full or lora"),
        ({"model": {**LORA, "apply_lora_to_output": True}}, "adapters of lm_head"),
        ({"model": {"_component_": "torchtune.models.llama2.llama2"}}, "give --model config.json"),
        ({"loss": {"_component_": "torchtune.rlhf.loss.DPOLoss"}}, "trains by DPOLoss"),
        ({"teacher_model": {"_component_": "x"}}, "teacher_model"),
        ({"quantizer": {"_component_": "x.Int8DynActInt4WeightQATQuantizer"}}, "fake numbers"),
        ({"optimizer": None, "loss": None}, "trains no model"),
        ({"tokenizer": {"max_seq_len": None}}, "give --sequence N"),
        ({"batch_size": "${missing}"}, "batch_size"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        launch(**changes)


def test_what_no_plan_has_is_asked_for():
    assert "offload_activations" in launch(enable_activation_offloading=True).unmodelled
    assert "precision" in launch(enable_fp8_training=True).unmodelled
    assert "recompute" in launch(ac_mode="selective", ac_option=2).unmodelled
    assert launch(ReaderOptions(sequence=512), tokenizer={"max_seq_len": None}).sequence == 512


COMMAND = (
    "N=4\ntune run --nnodes 1 --nproc_per_node $N lora_finetune_distributed "
    "--config conf/8B_lora.yaml batch_size=4 model.lora_rank=64 ~clip_grad_norm "
    "tokenizer.max_seq_len=$LEN dataset.packed=False optimizer.fused=False\n"
)


def command(text=COMMAND, files=None, **values):
    found = {"conf/8B_lora.yaml": json.dumps({**CONFIG, "model": LORA})} if files is None else files
    inputs = ScriptInputs(values=values, read_source=found.get)
    return reader(text, "run.sh", None)(text, "run.sh", ReaderOptions(inputs=inputs))


def test_a_command_replaces_keys_of_its_config():
    found = command(LEN="2048")
    assert (found.launcher_gpus, found.plan["micro_batch"], found.sequence) == (4, 4, 2048)
    assert (found.adapters.rank, found.software["fused_update"]) == (64, False)
    text = "tune run full_finetune_single_device --config x.yaml model.lora_rank=8"
    files = {"x.yaml": json.dumps(CONFIG)}
    assert command(text, files).launcher_gpus == 1


def test_open_values_and_configs_that_are_not_there_are_named():
    with pytest.raises(InputError, match=r"LEN has no value .*--set LEN=VALUE"):
        command()
    text = "tune run lora_finetune_single_device --config llama9/8B_lora_single_device"
    with pytest.raises(InputError, match="tune cp llama9/8B_lora_single_device"):
        command(text, {})
    for words, message in (
        ("--nproc_per_node 2 lora_dpo_distributed", "lora_dpo_distributed trains"),
        ("eleuther_eval", "trains no model"),
        (f"lora_finetune_distributed a{'.a' * 999}=1", "has more than 16 levels"),
        ("--nproc_per_node 2 my/own.py", "a recipe of its own"),
    ):
        with pytest.raises(InputError, match=message):
            command(f"tune run {words} --config conf/8B_lora.yaml")


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("--nproc_per_node 4", 4),
        ("--nnodes 3 --nproc_per_node 4", 12),
        ("--nnodes=3 --nproc_per_node=4", 12),
        ("--standalone --nproc-per-node 4", 4),
        ("--rdzv-backend c10d --standalone --nnodes 2 --nproc-per-node=4", 8),
        ("--nnodes 3", None),
        ("--nproc_per_node gpu", None),
        ("--nproc_per_node " + "9" * 5000, None),
        ("", 1),
    ],
)
def test_the_processes_of_a_launcher(options, gpus):
    text = f"echo tune x; tune run {options} full_finetune_distributed --config x.yaml\n"
    found = command(text, {"x.yaml": json.dumps(CONFIG)})
    assert (found.launcher_gpus, found.plan["micro_batch"]) == (gpus, 2)


def test_configs_that_torchtune_brings_need_no_file():
    text = (
        "tune run --nproc_per_node 4 lora_finetune_distributed --config llama3_1/8B_lora "
        "tokenizer.max_seq_len=4096 model.lora_attn_modules=[q_proj,k_proj]"
    )
    found = command(text, {})
    assert (found.model.name, found.sequence, found.accumulation) == ("llama-3.1-8b", 4096, 8)
    assert (found.adapters.rank, found.launcher_gpus, found.plan["micro_batch"]) == (8, 4, 2)
    assert {*found.adapters.targets} == {"q", "k", "gate", "up", "down"}
    assert "taken as torchtune 0.7 brings it" in found.left_out[-1]
    beside = command(text, {"llama3_1/8B_lora": json.dumps({**CONFIG, "model": LORA})})
    assert (beside.adapters.rank, beside.left_out) == (16, [])
