"""Runs of Hugging Face's Trainer and of what is built on it: what each tool's keys mean."""

import json

import pytest
import yaml

from plan3d.cli.main import main
from plan3d.launch_files.launch_file import ReaderOptions, batch_of, plan_of
from plan3d.launch_files.registry import READERS, framework_of_file, is_script, reader
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.launch_files.trainer.commands import typed
from plan3d.launch_files.trainer.models import known_model
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.plan.field_values import ContextComm, Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.workload.adapters import TARGETS
from plan3d.simulator.workload.model import Model

LLAMA_FACTORY = """
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_offload_config.json
cutoff_len: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
learning_rate: 1.0e-5
"""
AXOLOTL = """
base_model: NousResearch/Meta-Llama-3.1-8B
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
adapter: qlora
load_in_4bit: true
lora_r: 32
lora_target_linear: true
sample_packing: true
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
"""
SWIFT = """
n=4
NPROC_PER_NODE=$n NNODES=2 swift sft --model Qwen/Qwen2.5-7B --tuner_type full \\
  --torch_dtype bfloat16 --max_length 8192 --packing true --deepspeed zero2 \\
  --gradient_accumulation_steps $(expr 16 / $n) --learning_rate 1e-5
"""
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 16
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false, fsdp_offload_params: false,
  fsdp_activation_checkpointing: true}
"""
TRAINER = """
cat > accelerate.yaml <<'END'
distributed_type: DEEPSPEED
num_processes: 8
deepspeed_config: {zero_stage: 1, offload_optimizer_device: cpu, gradient_accumulation_steps: 3}
END
accelerate launch --config_file accelerate.yaml sft.py --model_name_or_path /models/Qwen3-8B \\
  --max_length 4096 --per_device_train_batch_size 2 --bf16 True --optim adamw_torch_fused "$@"
"""
YAML_OF_TRAINER = """
model_name_or_path: Qwen/Qwen2.5-7B
per_device_train_batch_size: 4
max_length: 2048
bf16: true
"""


def read(text, tool="llama-factory", plan=None, files=(), **changes):
    """The launch of a YAML text with other values of some keys; None leaves one out."""
    if changes:
        content = yaml.safe_load(text) | changes
        text = yaml.safe_dump({key: value for key, value in content.items() if value is not None})
    options = ReaderOptions(plan=plan or {}, inputs=ScriptInputs(read_source=dict(files).get))
    return READERS[tool](text, "run.yaml", options)


@pytest.mark.parametrize(
    ("text", "tool", "engine"),
    [
        (LLAMA_FACTORY, "llama-factory", None),
        (LLAMA_FACTORY, "llama-factory", "ds_z3_config.json"),
        (AXOLOTL, "axolotl", None),
    ],
)
def test_gradients_that_are_not_clipped_are_not_read_for_it(text, tool, engine):
    """But DeepSpeed takes their norm, and scales them, in any case."""
    for limit, changes in ((None, {}), (1.0, {}), ("1e-1", {}), (0, {"clipping_bytes": 0})):
        found = read(text, tool, max_grad_norm=limit, deepspeed=engine)
        stated = {n: v for n, v in found.software.items() if n == "clipping_bytes"}
        assert stated == ({} if engine else changes)
        assert not [one for one in found.unread if "max_grad_norm" in one.place]


@pytest.mark.parametrize(
    ("degrees", "gpus", "replicas"),
    [
        ({"dp_shard_size": 4}, 4, 1),
        ({"dp_shard_size": 4, "dp_replicate_size": 2}, 8, 2),
        ({"dp_shard_size": 4, "tensor_parallel_size": 2}, 8, 1),
        ({"dp_shard_size": 4, "context_parallel_size": 2}, 8, 1),
        ({"dp_shard_size": 4, "dp_replicate_size": 2, "tensor_parallel_size": 4,
          "context_parallel_size": 8}, 256, 2),
        ({"tensor_parallel_size": 2}, 0, 1),
    ],
)  # fmt: skip
def test_axes_that_are_sized_say_how_many_gpus_there_are(degrees, gpus, replicas):
    found = read(AXOLOTL, "axolotl", adapter=None, load_in_4bit=None, **degrees)
    assert (found.gpus or 0, found.replicas) == (gpus, replicas)
    tp, cp = (degrees.get(f"{name}_parallel_size", 1) for name in ("tensor", "context"))
    assert (found.plan["tp"], found.plan["cp"]) == (tp, cp)
    assert found.plan["zero"] == (3 if "dp_shard_size" in degrees else 0)


@pytest.mark.parametrize(
    ("strategy", "zero", "reduces", "gathers"),
    [("FULL_SHARD", 3, 1, 1), ("SHARD_GRAD_OP", 2, 1, 1), ("NO_SHARD", 0, 1, 0)],
)
def test_only_weights_that_are_sharded_are_gathered(strategy, zero, reduces, gathers):
    section = {"sharding_strategy": strategy}
    found = read(AXOLOTL, "axolotl", adapter=None, load_in_4bit=None, fsdp_config=section)
    names = ("zero", "overlap_grad_reduce", "overlap_param_gather")
    assert [found.plan[name] for name in names] == [zero, reduces, gathers]


@pytest.mark.parametrize("size", [1, 2**20, 2**20 + 1, 0])
def test_axes_of_accelerate_have_at_most_a_million_ranks(size):
    section = {"parallelism_config_dp_shard_size": size}
    text = yaml.safe_dump(yaml.safe_load(ACCELERATE) | {"parallelism_config": section})
    text = (
        f"cat > a.yaml <<'END'\n{text}END\naccelerate launch --config_file a.yaml sft.py "
        "--model_name_or_path Qwen/Qwen3-8B --max_length 4096 --per_device_train_batch_size 1\n"
    )
    if 1 <= size <= 2**20:
        assert reader(text, "run.sh", None)(text, "run.sh", ReaderOptions()).gpus == size
    else:
        with pytest.raises(InputError, match="parallelism_config_dp_shard_size"):
            reader(text, "run.sh", None)(text, "run.sh", ReaderOptions())


def fields(launch, *names):
    """Fields of a launch's plan, spelled."""
    spelled = plan_of(launch, {}).to_dict()
    return [spelled[name] for name in names]


def notes(launch):
    """Places of settings that change time or memory and are not modelled."""
    return [setting.place for setting in launch.unread if setting.affects_cost]


def test_a_file_of_llama_factory():
    launch = read(LLAMA_FACTORY)
    assert (launch.model.name, launch.sequence, launch.title) == (
        "qwen2.5-7b",
        4096,
        "LLaMA-Factory",
    )
    names = ("zero", "micro_batch", "recompute", "precision")
    assert fields(launch, *names) == [3, 2, "full", "bf16"]
    assert fields(launch, "offload_optimizer", "offload_parameters") == [100, 100]
    assert batch_of(launch, plan_of(launch, {}), 8, None) == 2 * 4 * 8
    assert launch.adapters is None
    assert notes(launch) == ["sequences"]
    assert "$.learning_rate" in [setting.place for setting in launch.unread]


@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        ({}, "amp"),  # trained weights are 32 bits wide, and multiplied in 16
        ({"pure_bf16": True, "bf16": None}, "pure-bf16"),
        ({"bf16": None}, "fp32"),
        ({"bf16": None, "fp16": True}, "fp16"),
    ],
)
def test_formats_of_llama_factory_without_sharding(changes, precision):
    launch = read(LLAMA_FACTORY, deepspeed=None, **changes)
    assert fields(launch, "zero", "precision") == [0, precision]
    assert "sharding" in notes(launch)


def test_a_configuration_of_deepspeed_names_the_engine():
    assert read(LLAMA_FACTORY).stack == "hf-deepspeed"
    assert not read(LLAMA_FACTORY, deepspeed=None).stack


@pytest.mark.parametrize(
    ("changes", "is_fused"),
    [
        ({}, True),  # the default since PyTorch 2.8
        ({"optim": "adamw_torch_fused"}, True),
        ({"optim": "adamw_torch"}, False),
        ({"optim": "adamw_torch", "deepspeed": None}, False),
        # DeepSpeed's own takes the place of the Trainer's.
        ({"optim": "adamw_torch", "deepspeed": {"optimizer": {"type": "AdamW"}}}, True),
    ],
)
def test_adamw_of_pytorch_is_fused_unless_told_otherwise(changes, is_fused):
    launch = read(LLAMA_FACTORY, **changes)
    assert launch.software.get("fused_update", True) == is_fused


ENGINE_RUN = """
cat > ds.json <<'END'
{"bf16": {"enabled": "auto"}, "train_batch_size": "auto",
 "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
 "gradient_clipping": "auto", "zero_optimization": {"stage": STAGE}}
END
deepspeed --num_gpus 1 train.py --deepspeed ds.json --model_name_or_path meta-llama/Llama-3.2-1B \
  --bf16 True --per_device_train_batch_size 4 --gradient_accumulation_steps 1 --block_size 2048 \
  --optim adamw_torch --output_dir out
"""


def test_the_engine_of_deepspeed_runs_on_one_gpu_too(tmp_path, capsys):
    """As timed on one H100: 0.257 s under ZeRO 2, 0.430 s under ZeRO 3 and, without the engine and
    with a fused update in bf16, 0.192 s."""
    path, seconds = tmp_path / "run.sh", {}
    words = ["import", str(path), "--cluster", "h100-sxm", "--gpus", "1", "--model", "llama-3.2-1b"]
    for stage in (0, 2, 3):
        path.write_text(ENGINE_RUN.replace("STAGE", str(stage)))
        assert main([*words, "--estimate", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["profile"]["software"] == "hf-deepspeed"
        assert found["plans"][0]["plan"]["zero"] == stage
        seconds[stage] = found["plans"][0]["step_seconds"]
    assert seconds[2] == pytest.approx(0.257, rel=0.1)
    assert seconds[3] == pytest.approx(0.430, rel=0.2)
    assert seconds[0] < seconds[2]
    assert main([*words, "--estimate"]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "software hf-deepspeed" in screen
    assert "zero=3 shards nothing on one GPU: the hooks and copies of the engine" in screen
    assert "hooks and copies of the engine that shards: zero=3, over one rank" in screen


def test_the_stack_that_is_asked_for_takes_the_place_of_the_engine(tmp_path, capsys):
    path = tmp_path / "run.sh"
    path.write_text(ENGINE_RUN.replace("STAGE", "3"))
    words = ["import", str(path), "--cluster", "h100-sxm", "--gpus", "1", "--model", "llama-3.2-1b"]
    assert main([*words, "--software", "hf-trainer", "--estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["profile"]["software"] == "hf-trainer"
    assert found["plans"][0]["plan"]["zero"] == 0


def test_adapters_and_frozen_weights_of_axolotl():
    launch = read(AXOLOTL, "axolotl")
    assert launch.model.name == "llama-3.1-8b"
    assert (launch.adapters.rank, launch.adapters.base) == (32, "nf4-dq")
    assert launch.adapters.targets == TARGETS
    names = ("optimizer", "recompute", "precision", "zero")
    assert fields(launch, *names) == ["adam-8bit", "full", "bf16", 0]
    assert notes(launch) == ["sharding", "sequences"]
    full = read(AXOLOTL, "axolotl", adapter=None, load_in_4bit=None)
    assert full.adapters is None
    assert fields(full, "precision") == ["pure-bf16"]
    sharded = read(AXOLOTL, "axolotl", adapter=None, load_in_4bit=None, fsdp=["full_shard"])
    assert fields(sharded, "zero", "precision") == [3, "bf16"]


@pytest.mark.parametrize(
    ("text", "tool", "changes"),
    [
        (AXOLOTL, "axolotl", {"lora_modules_to_save": ["embed_tokens", "lm_head"]}),
        (
            LLAMA_FACTORY,
            "llama-factory",
            {"finetuning_type": "lora", "additional_target": "lm_head,model.embed_tokens"},
        ),
    ],
)
def test_modules_trained_whole_beside_adapters(text, tool, changes):
    launch = read(text, tool, **changes)
    assert launch.adapters.modules_to_save == ("embed_tokens", "lm_head")
    (key,) = changes.keys() - {"finetuning_type"}
    with pytest.raises(
        InputError, match=r"run.yaml: 'norm' trained whole .* nearest: embed_tokens"
    ):
        read(text, tool, **{**changes, key: ["norm"]})


@pytest.mark.parametrize(
    ("name", "optimizer"), [("paged_adamw_8bit", "adam-8bit"), ("paged_adamw_32bit", "adam")]
)
def test_a_paged_optimizer_is_counted_on_gpus_and_said_to_page(name, optimizer):
    launch = read(AXOLOTL, "axolotl", optimizer=name)
    assert fields(launch, "optimizer") == [optimizer]
    assert notes(launch) == ["sharding", "sequences", "optimizer"]


@pytest.mark.parametrize(
    ("section", "stated"),
    [
        ({"fsdp_sharding_strategy": "SHARD_GRAD_OP"}, [2, "none", 0]),
        ({"reshard_after_forward": False, "offload_params": True}, [2, "none", 100]),
        ({"fsdp_activation_checkpointing": True, "fsdp_version": 2}, [3, "full", 0]),
        ({"fsdp_sharding_strategy": 3}, [0, "none", 0]),
    ],
)
def test_sections_of_fsdp(section, stated):
    launch = read(AXOLOTL, "axolotl", fsdp_config=section, gradient_checkpointing=False)
    assert fields(launch, "zero", "recompute", "offload_parameters") == stated


def test_a_command_of_ms_swift():
    assert framework_of_file(SWIFT, "run.sh") == "trainer-command"
    assert is_script(SWIFT, "run.sh", None)
    launch = read(SWIFT, "trainer-command")
    assert (launch.title, launch.launcher_gpus, launch.sequence) == ("ms-swift", 8, 8192)
    assert (launch.accumulation, launch.plan["micro_batch"]) == (16 // 4, 1)
    assert fields(launch, "zero", "precision", "recompute") == [2, "bf16", "full"]
    assert fields(launch, "overlap_grad_reduce") == [0]  # its zero2.json: overlap_comm false
    assert {"--learning_rate", "deepspeed"} <= {setting.place for setting in launch.unread}
    with pytest.raises(
        InputError, match=r"LENGTH has no value \(--max-length\): --set LENGTH=VALUE"
    ):
        read(SWIFT.replace("8192", "$LENGTH"), "trainer-command")


def test_a_written_file_in_a_folder_that_stays_open_is_found():
    text = (
        'OUT=/runs/$(date +%s)\ncat > $OUT/ds.json <<E\n{"zero_optimization": {"stage": 3}}\n'
        "E\nswift sft --model Qwen/Qwen3-8B --max_length 64 --deepspeed $OUT/ds.json\n"
    )
    assert read(text, "trainer-command").plan["zero"] == 3
    with pytest.raises(InputError, match=r"--deepspeed .* has no value"):
        read(text.replace("$OUT/ds.json\n", "$OUT.json\n"), "trainer-command")


@pytest.mark.parametrize(
    ("before", "words", "asked"),
    [
        ("BS=2; if [ -n $FOO ]; then BS=4; fi", "--per_device_train_batch_size $BS", "FOO has no"),
        ("L=64; if [ -f x ]; then L=8; fi", "--max_length $L", "max_length 8 depends on a condit"),
        ("if [ $FOO = 1 ]; then E='--packing true'; fi", "$E", "FOO has no value"),
        ("if [ -d x ]; then E='--packing true'; fi", "$E", "--packing true depends on a condition"),
        (
            "if [ $FOO = 1 ]; then C=a.yaml; else C=b.yaml; fi",
            "--config $C",
            "FOO has no .*its file",
        ),
    ],
)
@pytest.mark.parametrize("tool", ["swift sft", "megatron sft"])
def test_arguments_that_an_open_condition_decides_are_asked_for(before, words, asked, tool):
    text = f"{before}\nNPROC_PER_NODE=8 {tool} --model Qwen/Qwen3-8B {words}\n"
    if "per_device" in words and tool == "megatron sft":
        text = text.replace("per_device_train", "micro")
    with pytest.raises(InputError, match=asked):
        reader(text, "run.sh", None)(text, "run.sh", ReaderOptions())


def test_processes_that_an_open_condition_decides_are_not_taken():
    text = "N=8; if [ -d x ]; then N=4; fi\nexport NPROC_PER_NODE=$N\n"
    text += "if [ -d x ]; then export CUDA_VISIBLE_DEVICES=0; fi\nswift sft --model Qwen/Qwen3-8B\n"
    assert reader(text, "run.sh", None)(text, "run.sh", ReaderOptions()).launcher_gpus is None


def test_variables_in_a_written_file_are_asked_for():
    text = (
        "case $SIZE in a) ;; b) ;; esac\ncat > run.yaml <<E\nstage: sft\nfinetuning_type: full\n"
        "model_name_or_path: Qwen/Qwen3-8B\ncutoff_len: $LEN\noutput_dir: $OUT\n"
        "per_device_train_batch_size: ${SIZE}\nE\nllamafactory-cli train run.yaml\n"
    )
    with pytest.raises(InputError, match="LEN has no value") as error:
        read(text, "trainer-command")
    assert "SIZE is one of a, b: --set SIZE=a" in str(error.value)
    assert "OUT" not in str(error.value)


def test_a_configuration_of_accelerate_needs_model_and_batch():
    launch = read(ACCELERATE, "accelerate")
    assert (launch.model, launch.sequence, launch.launcher_gpus) == (None, None, 16)
    with pytest.raises(InputError, match=r"states no micro-batch; .*--with micro_batch=VALUE"):
        plan_of(launch, {})
    plan = plan_of(launch, {"micro_batch": 1}).to_dict()
    assert (plan["zero"], plan["recompute"], plan["precision"]) == (2, "full", "bf16")


def test_a_command_under_accelerate_with_its_configuration_as_a_here_document():
    launch = read(TRAINER, "trainer-command")
    assert (launch.model.name, launch.launcher_gpus, launch.accumulation) == ("qwen3-8b", 8, 3)
    assert fields(launch, "zero", "offload_optimizer", "micro_batch") == [1, 100, 2]


def test_the_megatron_plugin_of_accelerate_is_megatrons_stack():
    text = "distributed_type: MEGATRON_LM\nmegatron_lm_config: {megatron_lm_tp_degree: 4, "
    text += "megatron_lm_pp_degree: 2, megatron_lm_use_distributed_optimizer: true}"
    launch = read(text, "accelerate")
    assert launch.framework == "megatron"
    assert [launch.plan[name] for name in ("tp", "pp", "zero")] == [4, 2, 1]


def test_a_configuration_of_deepspeed_beside_the_run_wins_over_the_shipped_one():
    files = {"examples/deepspeed/ds_z3_offload_config.json": '{"zero_optimization": {"stage": 2}}'}
    assert fields(read(LLAMA_FACTORY, files=files), "zero") == [2]
    unknown = {"deepspeed": "mine.json"}
    with pytest.raises(InputError, match=r"shards by mine.json: put that file beside it, or give"):
        read(LLAMA_FACTORY, **unknown)
    launch = read(LLAMA_FACTORY, plan={"zero": 1}, **unknown)
    assert launch.plan["zero"] == 1
    contradiction = {"mine.json": '{"train_micro_batch_size_per_gpu": 4}'}
    with pytest.raises(InputError, match="has a micro-batch of 4, the arguments 2"):
        read(LLAMA_FACTORY, files=contradiction, **unknown)


@pytest.mark.parametrize(
    ("text", "tool", "changes", "message"),
    [
        (LLAMA_FACTORY, "llama-factory", {"stage": "dpo"}, "trains by dpo, which is not modelled"),
        (LLAMA_FACTORY, "llama-factory", {"do_train": False}, "does not train: do_train is not"),
        (LLAMA_FACTORY, "llama-factory", {"finetuning_type": "freeze"}, "trains by freeze"),
        (LLAMA_FACTORY, "llama-factory", {"quantization_bit": 4}, "all weights of a model in 4 b"),
        (LLAMA_FACTORY, "llama-factory", {"model_name_or_path": "a/b"}, "a/b, which is no preset"),
        (LLAMA_FACTORY, "llama-factory", {"bf16": "perhaps"}, r"\$.bf16 is .perhaps.; it must"),
        (LLAMA_FACTORY, "llama-factory", {"cutoff_len": "x"}, r"\$.cutoff_len is .x."),
        (LLAMA_FACTORY, "llama-factory", {"fp16": True}, "switches both bf16 and fp16 on"),
        (AXOLOTL, "axolotl", {"rl": "kto"}, "trains by kto"),
        (AXOLOTL, "axolotl", {"reward_model": True}, "trains by a reward"),
        (AXOLOTL, "axolotl", {"lora_target_linear": False, "lora_target_modules": ["lm_head"]},
         "adapters of lm_head are not modelled"),
        (AXOLOTL, "axolotl", {"lora_target_parameters": ["mlp.experts.down_proj"]},
         r"adapters of parameters \(.*\) are not modelled"),
        (YAML_OF_TRAINER, "trainer", {"beta": 0.1}, r"preferences or rewards \(\$.beta\)"),
        (TRAINER.replace("sft.py", "run_dpo.py"), "trainer-command", {}, "dpo.py trains by dpo"),
        (ACCELERATE, "accelerate", {"distributed_type": "TPU"}, "is TPU, not modelled"),
        (ACCELERATE, "accelerate", {"compute_environment": "AMAZON_SAGEMAKER"}, "is AMAZON_SAGEMA"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused_by_name(text, tool, changes, message):
    with pytest.raises(InputError, match=message) as error:
        read(text, tool, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"gptq": True}, "$.gptq"),
        ({"qat": {"weight_dtype": "int4"}}, "$.qat.weight_dtype"),
        ({"diffusion": {"eps": 0.001}}, "$.diffusion.eps"),
        ({"attn_implementation": "eager"}, "$.attn_implementation"),
    ],
)
def test_keys_and_sections_that_change_the_step_are_said_to(changes, place):
    assert place in notes(read(AXOLOTL, "axolotl", **changes))


@pytest.mark.parametrize(
    "name",
    ["galore_adamw", "apollo_adamw", "schedule_free_adamw", "ao_adamw_fp8", "adamw_anyprecision"],
)
def test_an_optimizer_whose_name_holds_that_of_another_is_not_it(name):
    launch = read(YAML_OF_TRAINER, "trainer", optim=name)
    assert launch.unmodelled["optimizer"] == f"its optimizer is {name}, which is not modelled"


@pytest.mark.parametrize("words", ["full_shard auto_wrap offload", ["full_shard", "offload"]])
def test_a_word_of_fsdp_puts_weights_on_the_host(words):
    launch = read(YAML_OF_TRAINER, "trainer", fsdp=words)
    assert fields(launch, "offload_parameters", "offload_optimizer") == [100, 100]


def test_older_names_of_arguments():
    assert read(AXOLOTL, "axolotl", sequence_parallel_degree=4).plan["cp"] == 4
    assert fields(read(YAML_OF_TRAINER, "trainer", use_liger=True), "loss") == ["fused-linear"]


def test_a_plugin_of_axolotl_computes_the_loss_without_logits():
    plugins = {"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]}
    assert fields(read(AXOLOTL, "axolotl", **plugins), "loss") == ["fused-linear"]
    assert fields(read(AXOLOTL, "axolotl", **plugins, cut_cross_entropy=False), "loss") != [
        "fused-linear"
    ]


def test_sequences_of_a_step_of_one_gpu_of_axolotl():
    launch = read(AXOLOTL, "axolotl", gradient_accumulation_steps=None, batch_size=6)
    assert (launch.plan["micro_batch"], launch.accumulation) == (2, 3)


@pytest.mark.parametrize("tool", ["axolotl", "llama-factory"])
def test_workers_of_ray_are_the_gpus(tool):
    text = AXOLOTL if tool == "axolotl" else LLAMA_FACTORY
    assert read(text, tool, ray_num_workers=4).launcher_gpus == 4


def test_processes_of_accelerate_are_of_all_nodes_whatever_one_of_them_sees():
    script = "CUDA_VISIBLE_DEVICES=0,1,2,3 accelerate launch --config_file two.yaml sft.py "
    script += "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --bf16 true"
    two = {"two.yaml": "distributed_type: FSDP\nnum_processes: 8\n"}
    assert read(script, "trainer-command", files=two).launcher_gpus == 8
    one = {"two.yaml": "distributed_type: FSDP\n"}
    assert read(script, "trainer-command", files=one).launcher_gpus == 4


RUN = (
    "accelerate launch --num_processes 16 {} train.py --model_name_or_path Qwen/Qwen2.5-7B "
    "--per_device_train_batch_size 2 {}"
)


@pytest.mark.parametrize(
    ("flags", "zero", "precision", "offload"),
    [
        ("--use_fsdp --fsdp_sharding_strategy FULL_SHARD --mixed_precision bf16", 3, "bf16", 0),
        ("--use_fsdp --fsdp_offload_params true --mixed_precision bf16", 3, "bf16", 100),
        ("--use_deepspeed --zero_stage 2 --mixed_precision bf16 -m", 2, "bf16", 0),
        ("--config_file no.yaml --mixed_precision bf16", 0, "amp", 0),
    ],
)
def test_flags_of_accelerate_are_its_configuration(flags, zero, precision, offload):
    files = {"no.yaml": "distributed_type: MULTI_GPU\nmixed_precision: 'no'\n"}
    launch = read(RUN.format(flags, ""), "trainer-command", files=files)
    assert launch.launcher_gpus == 16
    found = fields(launch, "zero", "precision", "offload_parameters")
    assert found == [zero, precision, offload]


@pytest.mark.parametrize("words", [None, [], "", False, "false"])
def test_a_section_of_fsdp_alone_shards_nothing(words):
    """transformers, TrainingArguments.__post_init__: every run has one, with its defaults."""
    section = {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False}
    launch = read(YAML_OF_TRAINER, "trainer", fsdp=words, fsdp_config=section)
    assert fields(launch, "zero") == [0]
    launch = read(YAML_OF_TRAINER, "trainer", fsdp="full_shard", fsdp_config=section)
    assert fields(launch, "zero") == [3]


def test_keys_that_are_no_texts_are_listed():
    launch = read(YAML_OF_TRAINER + "max_length: 64\n-1: 3\n", "trainer")
    assert "$.-1" in [one.place for one in launch.unread]


def test_a_section_of_fsdp_may_be_a_file():
    script = RUN.format("", "--bf16 true --fsdp full_shard --fsdp_config fsdp.json")
    files = {"fsdp.json": '{"activation_checkpointing": true}'}
    assert fields(read(script, "trainer-command", files=files), "recompute") == ["full"]
    with pytest.raises(InputError, match=r"the run is in fsdp\.json"):
        read(script, "trainer-command")


def test_the_script_of_llama_factory_with_flags_has_its_arguments():
    flags = "--stage sft --do_train --finetuning_type lora --lora_rank 4 --bf16 --cutoff_len 512"
    launch = read(RUN.format("", flags), "trainer-command")
    assert (launch.title, launch.adapters.rank, launch.sequence) == ("LLaMA-Factory", 4, 512)

    with pytest.raises(InputError, match=r"lora_rank is 4097; .* from 1 to 4096"):
        read(RUN.format("", flags.replace("rank 4", "rank 4097")), "trainer-command")


DROPOUT = "lora_dropout: {}\n"
ADAPTED = {
    "llama-factory": (LLAMA_FACTORY.replace("type: full", "type: lora"), DROPOUT, 0.0),
    "axolotl": (AXOLOTL, DROPOUT, 0.0),
    "trainer-command": (
        SWIFT.replace("type full", "type lora").rstrip(),
        " --lora_dropout {}",
        0.05,
    ),
}


@pytest.mark.parametrize("tool", ADAPTED)
def test_a_dropout_before_adapters_is_read(tool):
    """What is not stated is each program's own default."""
    text, more, usual = ADAPTED[tool]
    assert read(text, tool).adapters.dropout == usual
    assert read(text + more.format(0.25), tool).adapters.dropout == 0.25
    with pytest.raises(InputError, match="lora_dropout must be a number from 0 to below 1"):
        read(text + more.format(1.5), tool)


@pytest.mark.parametrize(
    ("name", "fields_of_plan", "open_fields"),
    [("muon", ["muon"], set()), ("lorap", ["adam"], set()), ("galore", None, {"optimizer"})],
)
def test_optimizers_that_ms_swift_brings(name, fields_of_plan, open_fields):
    script = f"swift sft --model Qwen/Qwen2.5-7B --tuner_type full --optimizer {name}"
    launch = read(script, "trainer-command")
    assert launch.unmodelled.keys() == open_fields
    assert fields_of_plan is None or fields(launch, "optimizer") == fields_of_plan


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("swift rlhf --rlhf_type dpo --per_device_train_batch_size 1", r"starts ms-swift \(RLHF\)"),
        ("swift infer --adapters x", "swift infer trains no model"),
        ("llamafactory-cli export x.yaml", "llamafactory-cli export trains no model"),
    ],
)
def test_commands_that_train_no_model_on_tokens_are_named(script, message):
    with pytest.raises(InputError, match=message):
        framework_of_file(script, "run.sh")
    sft = "swift sft --model Qwen/Qwen2.5-7B"
    assert framework_of_file(f"{script}\n{sft}", "run.sh") == "trainer-command"


def test_one_visible_gpu_is_one_gpu_of_ms_swift():
    script = "CUDA_VISIBLE_DEVICES=0 megatron sft --model Qwen/Qwen2.5-7B --global_batch_size 8"
    assert read(script, "megatron-swift-command").launcher_gpus == 1


def test_fsdp_of_ms_swift_is_a_file_that_it_ships():
    script = "swift sft --model Qwen/Qwen2.5-7B --tuner_type full --fsdp "
    assert fields(read(script + "fsdp2", "trainer-command"), "zero", "recompute") == [3, "full"]
    with pytest.raises(InputError, match=r"the run is in mine\.json"):
        read(script + "mine.json", "trainer-command")
    mine = '{"fsdp": "shard_grad_op auto_wrap", "fsdp_config": {"activation_checkpointing": true}}'
    off = script.replace("--fsdp ", "--gradient_checkpointing false --fsdp ")
    for words, files in (("mine.json", {"mine.json": mine}), (f"'{mine}'", {})):
        launch = read(off + words, "trainer-command", files=files)
        assert fields(launch, "zero", "recompute") == [2, "full"]
    with pytest.raises(InputError, match=r"has fsdp: shards, which is not known"):
        read(script + "shards", "trainer-command")
    assert fields(read(script + "false", "trainer-command"), "zero") == [0]


def test_programs_that_are_looked_up_are_those_of_their_names():
    script = "torchrun --nproc_per_node 2 $(which swift) sft --model Qwen/Qwen2.5-7B\n"
    assert framework_of_file(script, "run.sh") == "trainer-command"
    assert read(script, "trainer-command").launcher_gpus == 2
    script = script.replace("$(which swift)", "$(command -v swift)")
    assert read(script, "trainer-command").launcher_gpus == 2


def test_sequences_are_split_without_deepspeed_too():
    script = "swift sft --model Qwen/Qwen2.5-7B --tuner_type full --sequence_parallel_size 4"
    launch = read(script + " --fsdp fsdp2", "trainer-command")
    assert (launch.plan["cp"], launch.software["splits"]) == (4, ("cp",))


@pytest.mark.parametrize("program", ["swift", "megatron"])
def test_parts_that_ms_swift_freezes_are_said(program):
    script = f"{program} sft --model Qwen/Qwen2.5-7B --freeze_parameters_ratio 0.5"
    tool = "trainer-command" if program == "swift" else "megatron-swift-command"
    assert "--freeze_parameters_ratio" in notes(read(script, tool))


def test_trl_starts_the_trainer():
    script = "trl sft --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2"
    assert read(script, "trainer-command").plan["micro_batch"] == 2


def test_an_optimizer_that_is_not_modelled_can_be_replaced():
    launch = read(AXOLOTL, "axolotl", optimizer="adamw_torch_4bit")
    with pytest.raises(
        InputError, match="its optimizer is adamw_torch_4bit, which is not modelled"
    ):
        plan_of(launch, {})
    assert plan_of(launch, {"optimizer": "adam"})


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("/data/checkpoints/Qwen2.5-7B/2", None),
        ("/data/checkpoints/Qwen2.5-7B", "qwen2.5-7b"),
        ("Qwen/Qwen2-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "qwen2.5-14b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", None),  # its head is not tied
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("lmsys/vicuna-13b-v1.5", "llama-2-13b"),
        ("mistralai/Magistral-Small-2506", "mistral-small-24b"),
        ("mistralai/Magistral-Small-2509", None),  # it has a vision tower
        ("EleutherAI/pythia-12b-deduped", "pythia-12b"),
        ("someone/other-7b", None),
        ("", None),
    ],
)
def test_models_by_hub_id_or_by_the_name_of_a_folder(name, preset):
    model = known_model(name)
    assert (model.name if model else None) == preset


def test_a_later_checkpoint_keeps_the_sizes_of_its_model():
    first, later = known_model("Qwen/Qwen3-4B"), known_model("Qwen/Qwen3-4B-Instruct-2507")
    assert first.parameters == later.parameters
    assert (first.rotary_base, later.rotary_base) == (1e6, 5e6)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16", 16),
        ("1e-5", 1e-5),
        ('{"a": 1}', {"a": 1}),
        ("{", "{"),
        ("true", "true"),
        ("nan", "nan"),
    ],
)
def test_values_of_flags(text, value):
    assert typed(text) == value


PLANS = (
    ("fsdp2", "zero=3 recompute=full micro_batch=2"),
    ("fsdp2", "zero=2 precision=pure-bf16"),
    ("fsdp2", "zero=0 precision=amp optimizer=adafactor overlap_param_gather=0"),
    ("fsdp2", "zero=3 offload_optimizer=100 offload_parameters=100 loss=fused-linear"),
    ("deepspeed", "zero=3 offload_optimizer=100 optimizer=lion"),
    ("deepspeed", "zero=2 recompute=full overlap_param_gather=0"),
    ("deepspeed", "zero=3 overlap_grad_reduce=0 overlap_param_gather=0"),
    ("deepspeed", "zero=1 precision=fp16 optimizer=adam-8bit overlap_param_gather=0"),
)


@pytest.mark.parametrize(("version", "plan"), PLANS)
def test_a_plan_is_the_same_after_export_and_import(version, plan, tmp_path, capsys):
    path = str(tmp_path / "run.sh")
    words = ["export", plan, "--to", "accelerate", "--version", version, "-o", path, "--quiet"]
    words += ["--model", "qwen2.5-7b", "--cluster", "h100-sxm", "--gpus", "16"]
    assert main([*words, "--sequence", "4096", "--global-batch", "64"]) == 0
    launch = READERS["trainer-command"]((tmp_path / "run.sh").read_text(), path, ReaderOptions())
    again = plan_of(launch, {})
    wanted = Plan.parse(plan)
    for word in plan.split():
        name = word.partition("=")[0]
        assert getattr(again, name) == getattr(wanted, name), name
    assert (launch.model.name, launch.sequence, launch.launcher_gpus) == ("qwen2.5-7b", 4096, 16)
    assert batch_of(launch, again, 16, None) == 64
    assert notes(launch) == ["sequences"]


def test_a_file_says_who_shards_experts_that_run_in_a_loop(tmp_path, capsys):
    path, seconds, stacks = tmp_path / "run.sh", [], []
    run = "sft.py --model_name_or_path m --max_length 2048 --per_device_train_batch_size 1"
    asked = "--cluster h100-sxm --global-batch 16 --sequence 2048 --model mixtral-8x7b --estimate"
    fsdp = "FSDP\nfsdp_config: {fsdp_version: 2}"
    for top in (fsdp, "DEEPSPEED\ndeepspeed_config: {zero_stage: 3}", ""):
        config = " --config_file a.yaml" if top else ""
        text = f"cat > a.yaml <<'END'\ndistributed_type: {top}\nEND\n" if top else ""
        path.write_text(f"{text}accelerate launch{config} --num_processes 16 {run}\n")
        words = ["import", str(path), *asked.split(), "--json"]
        assert main([*words, *([] if top else ["--with", "zero=3"])]) == 0
        found = json.loads(capsys.readouterr().out)
        seconds.append(found["plans"][0]["step_seconds"])
        stacks.append(found["profile"]["software"])
    assert stacks == ["hf-trainer", "hf-deepspeed", "hf-deepspeed"]
    assert min(seconds[1:]) > 1.5 * seconds[0]


FACTORY = (
    "model_name_or_path: {}\nstage: sft\ndo_train: true\nfinetuning_type: {}\ncutoff_len: 512\n"
)


def factory(more="", name="Qwen/Qwen2.5-7B", kind="full"):
    text = FACTORY.format(name, kind) + more
    return reader(text, "sft.yaml", None)(text, "sft.yaml", ReaderOptions())


def test_switches_that_replace_the_optimizer_or_the_format():
    assert factory("use_muon: true\n").plan["optimizer"] == Optimizer.MUON
    assert "use_galore" in factory("use_galore: true\n").unmodelled["optimizer"]
    assert "fp8" in factory("fp8: true\n").unmodelled["precision"]
    assert not factory("use_badam: false\nfp8: false\n").unmodelled
    with pytest.raises(InputError, match="mixture_of_depths is not modelled; some tokens"):
        factory("mixture_of_depths: convert\n")


@pytest.mark.parametrize("name", ["a/Qwen2.5-7B-Instruct-AWQ", "b/Llama-8B-GPTQ-Int4", "c/x-4bit"])
def test_weights_that_are_stored_in_few_bits_are_refused(name):
    text, options = FACTORY.format(name, "lora"), ReaderOptions(Model.preset("qwen2.5-7b"))
    with pytest.raises(InputError, match="which are not modelled"):
        reader(text, "sft.yaml", None)(text, "sft.yaml", options)


HYPHENS = (
    "python mason.py --gpus 8 -- accelerate launch --num_processes 8 --mixed_precision bf16 {} "
    "--model-name-or-path Qwen/Qwen3-0.6B --per-device-train-batch-size 2 --max-seq-length 2048\n"
)


def test_a_command_in_the_words_of_a_scheduler_is_read():
    text = HYPHENS.format("tune.py")
    found = reader(text, "run.sh", None)(text, "run.sh", ReaderOptions())
    assert (found.launcher_gpus, found.plan["micro_batch"]) == (8, 2)
    assert found.plan["precision"] == Precision.AMP
    with pytest.raises(InputError, match=r"dpo_cache\.py trains by dpo"):
        reader(text, "run.sh", None)(HYPHENS.format("dpo_cache.py"), "run.sh", ReaderOptions())


def test_adapters_of_another_program_are_refused():
    text = HYPHENS.format("tune.py").replace("--max-seq", "--use_lora --lora_rank 64 --max-seq")
    with pytest.raises(InputError, match="adapters of another program"):
        reader(text, "run.sh", None)(text, "run.sh", ReaderOptions())


def test_the_defaults_of_trl_are_not_those_of_the_trainer():
    text = "trl sft --model_name_or_path Qwen/Qwen3-0.6B --num_processes 4\n"
    found = reader(text, "run.sh", None)(text, "run.sh", ReaderOptions())
    assert (found.launcher_gpus, found.sequence, found.plan["micro_batch"]) == (4, 1024, 8)
    assert found.plan["recompute"] == Recompute.FULL
    assert found.plan["precision"] == Precision.AMP


def test_the_plugin_of_megatron_recomputes_and_states_micro_batches():
    text = yaml.safe_dump(
        {
            "distributed_type": "MEGATRON_LM",
            "mixed_precision": "bf16",
            "num_processes": 8,
            "megatron_lm_config": {
                "megatron_lm_tp_degree": 2,
                "megatron_lm_recompute_activations": True,
                "megatron_lm_num_micro_batches": 4,
            },
        }
    )
    found = READERS["accelerate"](text, "a.yaml", ReaderOptions())
    assert found.plan["recompute"] == Recompute.SELECTIVE
    assert (found.accumulation, found.plan["overlap_grad_reduce"]) == (4, False)
    assert "$." not in [setting.place for setting in found.unread]


def test_layers_that_are_spread_over_gpus_of_a_process_are_refused():
    text = "CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 swift sft --model Qwen/Qwen3-0.6B\n"
    with pytest.raises(InputError, match="2 GPUs of CUDA_VISIBLE_DEVICES for each process"):
        reader(text, "run.sh", None)(text, "run.sh", ReaderOptions())


def test_a_decoder_behind_a_tower_is_said_to_be_one():
    text = (
        "deepspeed train.py --model_name_or_path Qwen/Qwen2.5-7B --vision_tower openai/clip "
        "--mm_tunable_parts=mm_mlp_adapter --freeze_backbone False --per_device_train_batch_size 1 "
        "--model_max_length 2048 --bf16 True\n"
    )
    assert read(text, "trainer-command").left_out == [
        "a vision tower, which is left out ($.vision_tower)",
        "frozen parts, which are taken as trained ($.mm_tunable_parts)",
    ]


def test_a_program_that_looks_into_a_model_is_no_training():
    run = "torchrun {} --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1\n"
    assert read(run.format("align.py"), "trainer-command").model
    for program in ("get_hidden_states.py", "split/random_selection.py", "merge_lora.py"):
        with pytest.raises(InputError, match="starts no training"):
            read(run.format(program), "trainer-command")


def test_arguments_without_effect_are_told_from_those_with_one():
    text = (
        "base_model: Qwen/Qwen2.5-7B\nmicro_batch_size: 1\nsequence_len: 2048\nbfloat16: true\n"
        "sample_packing: true\nlearning_rate: 1e-5\nspecial_tokens: {pad_token: x}\n"
        "liger_rope: true\nliger_layer_norm: false\nnobody_knows: 1\ngroup_by_length: true\n"
    )
    found = READERS["axolotl"](text, "a.yml", ReaderOptions())
    effects = {part.place: part.affects_cost or part.why_neutral for part in found.unread}
    assert effects["$.learning_rate"].startswith("hyperparameters")
    assert effects["$.special_tokens.pad_token"] == "data"
    assert (effects["$.liger_rope"], effects["$.liger_layer_norm"]) == (
        True,
        "what is switched off",
    )
    assert (effects["$.nobody_knows"], effects["$.group_by_length"]) == ("", True)
    assert found.plan["precision"] == Precision.PURE_BF16


CHAT = (
    "ZERO=2\ndeepspeed --num_gpus 4 main.py --model_name_or_path facebook/opt-1.3b --offload "
    "--per_device_train_batch_size 8 --max_seq_len 512 --zero_stage $ZERO --deepspeed "
    "--learning_rate 1e-5\n"
)


def test_arguments_of_deepspeed_chat_decide_the_sharding():
    found = read(CHAT, "trainer-command")
    assert (found.sequence, found.launcher_gpus, found.plan["zero"]) == (512, 4, 2)
    assert found.plan["offload_optimizer"] == 100
    assert found.plan["precision"] == Precision.FP16
    assert "offload_param has no effect at ZeRO stage 2" in found.left_out[0]
    assert not found.plan["offload_parameters"]
    assert "its DPO has the same arguments" in found.left_out[1]
    assert (
        read(f"{CHAT[:-1]} --dtype bf16\n", "trainer-command").plan["precision"] == Precision.BF16
    )
    with pytest.raises(InputError, match="preferences or rewards"):
        read(f"{CHAT[:-1]} --num_padding_at_beginning 1\n", "trainer-command")
    with pytest.raises(InputError, match="by preferences"):
        READERS["trainer-command"](CHAT, "step2_dpo_finetuning/run.sh", ReaderOptions())
    rewards = "deepspeed main.py --actor_model_name_or_path x\n"
    with pytest.raises(InputError, match=r"starts DeepSpeed-Chat \(RLHF\), which is not read"):
        reader(rewards, "run.sh", None)


def test_source_and_target_of_qlora_are_one_sequence():
    run = "python qlora.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1"
    found = read(f"{run} --source_max_len 16 --target_max_len 512\n", "trainer-command")
    assert found.sequence == 528
    of_chatglm = f"{run} --max_source_length 64 --max_target_length 128"
    assert read(f"{of_chatglm}\n", "trainer-command").sequence == 192
    with pytest.raises(InputError, match="pre_seq_len makes adapters of another program"):
        read(f"{of_chatglm} --pre_seq_len 128\n", "trainer-command")


def test_an_evaluation_is_no_training():
    run = "python run_clm.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1"
    with pytest.raises(InputError, match="does not train"):
        read(f"{run} --do_eval --block_size 1024\n", "trainer-command")
    assert read(f"{run} --do_eval --max_steps 9 --block_size 1024\n", "trainer-command").model


def test_arguments_of_older_versions_of_the_trainer_are_read():
    assert read(YAML_OF_TRAINER, "trainer", per_gpu_train_batch_size=3).plan["micro_batch"] == 3
    assert fields(read(YAML_OF_TRAINER, "trainer", adafactor=True), "optimizer") == ["adafactor"]


def test_arguments_of_older_versions_of_tools_are_read():
    packed = read(LLAMA_FACTORY, sft_packing=True)
    assert "sequences" not in notes(packed)
    script = "swift sft --model_id_or_path Qwen/Qwen2.5-7B --sft_type lora --batch_size 4 "
    script += "--acc_steps 2 --lora_target_modules ALL --dtype fp16 --lora_dropout_p 0.1\n"
    launch = read(script, "trainer-command")
    assert (launch.plan["micro_batch"], launch.accumulation) == (4, 2)
    assert "--dtype" in notes(launch)
    assert launch.adapters.dropout == 0.1
    assert launch.adapters.targets == TARGETS


def test_optimizers_with_states_in_fewer_bits_are_none_of_their_family():
    launch = read(AXOLOTL, "axolotl", optimizer="flash_adamw")
    assert launch.unmodelled["optimizer"] == "its optimizer is flash_adamw, which is not modelled"


@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        ({}, "pure-bf16"),
        ({"fp16": True}, "fp16"),
        ({"fp16": True, "bf16": "auto"}, "fp16"),
        ({"bf16": False}, "fp32"),
        ({"float16": True}, "pure-bf16"),
    ],
)
def test_axolotl_trains_in_bf16_unless_it_is_told_otherwise(changes, precision):
    plain = {"adapter": None, "load_in_4bit": None, "bf16": None, **changes}
    assert fields(read(AXOLOTL, "axolotl", **plain), "precision") == [precision]


def test_weights_of_axolotl_in_fp16_are_not_modelled():
    plain = {"adapter": None, "load_in_4bit": None, "bf16": False, "float16": True}
    assert "weights in fp16" in read(AXOLOTL, "axolotl", **plain).unmodelled["precision"]


@pytest.mark.parametrize(
    ("changes", "recompute"),
    [
        ({"gradient_checkpointing": False}, "full"),
        ({"disable_gradient_checkpointing": True}, "none"),
        ({"disable_gradient_checkpointing": True, "gradient_checkpointing": True}, "full"),
    ],
)
def test_llama_factory_recomputes_unless_its_own_argument_says_otherwise(changes, recompute):
    assert fields(read(LLAMA_FACTORY, **changes), "recompute") == [recompute]


@pytest.mark.parametrize("key", ["resize_vocab", "add_tokens"])
def test_embeddings_of_new_tokens_are_trained_beside_adapters(key):
    launch = read(LLAMA_FACTORY, finetuning_type="lora", deepspeed=None, **{key: "<a>"})
    assert launch.adapters.modules_to_save == ("embed_tokens", "lm_head")
    assert f"$.{key}" in notes(launch)
    launch = read(LLAMA_FACTORY, finetuning_type="lora", deepspeed=None, **{key: "False"})
    assert not launch.adapters.modules_to_save


def test_packed_samples_of_ms_swift_have_their_own_length():
    script = SWIFT.replace("--max_length 8192", "--max_length 4096 --packing_length 16384")
    assert read(script, "trainer-command").sequence == 16384
    assert read(script.replace("--packing true", ""), "trainer-command").sequence == 4096


@pytest.mark.parametrize(
    ("text", "tool", "changes"),
    [
        (AXOLOTL, "axolotl", {"bnb_config_kwargs": {"bnb_4bit_use_double_quant": False}}),
        (
            SWIFT.strip().replace("full", "lora") + " --quant_method bnb --quant_bits 4"
            " --bnb_4bit_use_double_quant false",
            "trainer-command",
            {},
        ),
    ],
)
def test_scales_of_frozen_weights_may_be_whole_numbers(text, tool, changes):
    assert read(text, tool, **changes).adapters.base == "nf4"


def test_kernels_of_liger_without_that_of_the_loss():
    kernels = {"use_liger_kernel": True, "liger_kernel_config": {"rms_norm": True}}
    assert fields(read(YAML_OF_TRAINER, "trainer", **kernels), "loss") == ["fused-linear"]
    kernels["liger_kernel_config"]["fused_linear_cross_entropy"] = False
    assert fields(read(YAML_OF_TRAINER, "trainer", **kernels), "loss") != ["fused-linear"]


@pytest.mark.parametrize(
    ("text", "tool", "changes", "is_said"),
    [
        (AXOLOTL, "axolotl", {}, True),
        (AXOLOTL, "axolotl", {"sample_packing": False}, True),
        (AXOLOTL, "axolotl", {"sample_packing": False, "pad_to_sequence_len": True}, False),
        (LLAMA_FACTORY, "llama-factory", {"packing": True}, False),
        (LLAMA_FACTORY, "llama-factory", {"packing": True, "neat_packing": True}, True),
        (YAML_OF_TRAINER, "trainer", {"packing": True}, True),
        (YAML_OF_TRAINER, "trainer", {"packing": True, "packing_strategy": "wrapped"}, False),
    ],
)
def test_what_the_lengths_of_samples_change_is_said(text, tool, changes, is_said):
    assert ("sequences" in notes(read(text, tool, **changes))) == is_said


@pytest.mark.parametrize(
    ("text", "tool", "changes"),
    [
        (AXOLOTL, "axolotl", {"dense_mixer": True}),
        (AXOLOTL, "axolotl", {"use_mora": True}),
        (AXOLOTL, "axolotl", {"peft_layer_replication": [[0, 16], [8, 24]]}),
        (AXOLOTL, "axolotl", {"overrides_of_model_config": {"num_hidden_layers": 2}}),
        (LLAMA_FACTORY, "llama-factory", {"use_llama_pro": True}),
        (LLAMA_FACTORY, "llama-factory", {"use_kt": True}),
        (SWIFT.strip() + " --target_regex .*", "trainer-command", {}),
    ],
)
def test_arguments_that_change_the_model_or_what_is_trained_are_refused(text, tool, changes):
    with pytest.raises(InputError, match="is not modelled; "):
        read(text, tool, **changes)


def test_a_longer_rotary_base_is_no_other_model():
    overrides = {"overrides_of_model_config": {"rope_scaling": {"factor": 2}}}
    assert read(AXOLOTL, "axolotl", **overrides).model.name == "llama-3.1-8b"


def test_megatron_core_of_llama_factory_is_refused():
    files = {"run.yaml": LLAMA_FACTORY}
    script = "USE_MCA={} llamafactory-cli train run.yaml\n"
    assert read(script.format(0), "trainer-command", files=files).model
    with pytest.raises(InputError, match="USE_MCA trains by Megatron-Core"):
        read(script.format(1), "trainer-command", files=files)


@pytest.mark.parametrize(
    ("text", "tool", "changes"),
    [
        (LLAMA_FACTORY, "llama-factory", {"use_unsloth_gc": True}),
        (LLAMA_FACTORY, "llama-factory", {"upcast_lmhead_output": True}),
        (AXOLOTL, "axolotl", {"peft_use_dora": True}),
        (AXOLOTL, "axolotl", {"peft_layers_to_transform": [0, 1]}),
        (AXOLOTL, "axolotl", {"layer_offloading": True}),
        (AXOLOTL, "axolotl", {"tiled_mlp": True}),
        (AXOLOTL, "axolotl", {"flex_attention": True}),
        (YAML_OF_TRAINER, "trainer", {"torch_empty_cache_steps": 1}),
        (YAML_OF_TRAINER, "trainer", {"activation_offloading": True}),
        (YAML_OF_TRAINER, "trainer", {"ddp_bucket_cap_mb": 5}),
    ],
)
def test_arguments_that_change_time_or_memory_are_said_to(text, tool, changes):
    assert f"$.{next(iter(changes))}" in notes(read(text, tool, **changes))
    assert f"$.{next(iter(changes))}" not in notes(
        read(text, tool, **dict.fromkeys(changes, False))
    )


def test_the_megatron_plugin_may_be_flags_of_accelerate():
    flags = "--use_megatron_lm --megatron_lm_tp_degree 4 --megatron_lm_recompute_granularity full"
    launch = read(RUN.format(flags, ""), "trainer-command")
    assert (launch.framework, launch.plan["tp"]) == ("megatron", 4)
    assert fields(launch, "recompute") == ["full"]


def test_torch_gathers_keys_and_values_of_split_sequences():
    text = f"{ACCELERATE}parallelism_config:\n  parallelism_config_cp_size: 2\n"
    ring = f"{text}  parallelism_config_cp_comm_strategy: alltoall\n"
    found = [READERS["accelerate"](one, "a.yaml", ReaderOptions()) for one in (text, ring)]
    assert [one.plan["cp_comm"] for one in found] == [ContextComm.ALL_GATHER, ContextComm.P2P]


@pytest.mark.parametrize(
    ("flags", "place"),
    [
        ("--dynamo_backend inductor", "$.dynamo_config.dynamo_backend"),
        ("--use_fsdp --fsdp_forward_prefetch true", "$.fsdp_config.fsdp_forward_prefetch"),
        ("--use_fsdp --fsdp_backward_prefetch NO_PREFETCH", "$.fsdp_config.fsdp_backward_prefetch"),
        ("--cpu", "$.cpu"),
    ],
)
def test_flags_of_accelerate_that_change_time_or_memory_are_said_to(flags, place):
    assert place in notes(read(RUN.format(flags, ""), "trainer-command"))
    assert place not in notes(read(RUN.format("--use_fsdp", ""), "trainer-command"))


def test_sections_of_accelerate_for_another_kind_of_run_have_no_effect():
    text = f"{ACCELERATE}megatron_lm_config: {{megatron_lm_optimizer_cpu_offload: true}}\n"
    assert "$.megatron_lm_config.megatron_lm_optimizer_cpu_offload" not in notes(
        READERS["accelerate"](text, "a.yaml", ReaderOptions())
    )


def test_samples_with_images_are_said_to_be_left_out():
    launch = read(AXOLOTL, "axolotl", processor_type="AutoProcessor")
    assert launch.left_out == ["a vision tower, which is left out ($.processor_type)"]


ENGINE = (
    "deepspeed --num_gpus 8 {} --model_name_or_path Qwen/Qwen2.5-7B --block_size 1024 "
    "--per_device_train_batch_size 2 --deepspeed --deepspeed_config ds.json {}\n"
)
CONFIG = {"ds.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'}


def test_a_configuration_of_the_engine_may_be_a_flag_of_its_own():
    script = ENGINE.format("run_clm_no_trainer.py", "--random_ltd")
    launch = read(script, "trainer-command", files=CONFIG)
    assert (launch.plan["zero"], launch.plan["micro_batch"]) == (2, 2)
    assert "--random_ltd" in notes(launch)
    with pytest.raises(InputError, match="config_overrides is not modelled; give --model"):
        read(script.replace("random_ltd", "config_overrides a=8"), "trainer-command", files=CONFIG)


@pytest.mark.parametrize("program", ["run_glue.py", "run_mlm_no_trainer.py", "run_translation.py"])
def test_tasks_that_train_no_language_model_are_refused(program):
    with pytest.raises(InputError, match=f"{program} trains for "):
        read(ENGINE.format(program, ""), "trainer-command", files=CONFIG)


def test_a_configuration_that_is_written_out_is_read_once():
    launch = read(YAML_OF_TRAINER, "trainer", deepspeed={"zero_optimization": {"stage": 3}})
    assert launch.plan["zero"] == 3
    assert [one for one in launch.unread if one.place.startswith("$.deepspeed")] == []


TRAININGS = """
KIND=$1
RUN="--model_name_or_path Qwen/Qwen2.5-7B --max_length 1024 --per_device_train_batch_size"
if [ $KIND == small ]; then
  torchrun --nproc_per_node 8 a.py $RUN 1 --bf16 true
elif [ $KIND == large ]; then
  torchrun --nproc_per_node 8 a.py $RUN 4 --bf16 true
fi
"""


def trainings(text=TRAININGS, **values):
    options = ReaderOptions(inputs=ScriptInputs((), values, None))
    return READERS["trainer-command"](text, "run.sh", options)


def test_which_of_several_trainings_is_meant_is_asked():
    with pytest.raises(InputError, match=r"KIND \(\$1\) is one of small, large: --set KIND=small"):
        trainings()
    assert trainings(KIND="large").plan["micro_batch"] == 4
    assert not trainings(KIND="small").left_out


def test_a_second_training_that_differs_is_said():
    first, second = (line for line in TRAININGS.splitlines() if "torchrun" in line)
    top = TRAININGS.splitlines()[2]
    found = trainings(f"{top}\n{first}\n{second}\n")
    assert found.plan["micro_batch"] == 1
    assert found.left_out == [
        "the training command in line 3, which differs in --per-device-train-batch-size: the first "
        "one is read"
    ]
    assert not trainings(f"{top}\n{first}\n{first} --learning_rate 1e-5\n").left_out


@pytest.mark.parametrize(
    ("text", "tool", "changes"),
    [
        (AXOLOTL, "axolotl", {}),
        (
            LLAMA_FACTORY,
            "llama-factory",
            {"finetuning_type": "lora", "quantization_bit": 4, "deepspeed": None},
        ),
    ],
)
def test_tools_that_leave_what_is_not_packed_in_16_bits(text, tool, changes):
    """LLaMA-Factory casts nothing, axolotl casts it back."""
    found = read(text, tool, **changes)
    assert found.adapters.format.bitsandbytes
    assert found.software["fp32_beside_packed"] == ()
