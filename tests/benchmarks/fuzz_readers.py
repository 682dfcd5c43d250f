"""The readers that fuzz.py tries, each with files that it takes."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from plan3d.answers.traced_step import TracedStep
from plan3d.cli.arguments import plan_arguments
from plan3d.cli.evidence import calibrate_steps
from plan3d.cli.main import main as command_line
from plan3d.launch_files.exporter import launch_text
from plan3d.launch_files.registry import EXPORTERS
from plan3d.simulator.base.documents import parse_json
from plan3d.simulator.base.errors import LONGEST_QUESTION, InputError
from plan3d.simulator.base.files import read_text
from plan3d.simulator.calibration.measure.recording import RowFile
from plan3d.simulator.calibration.readers.files import Hints, read
from plan3d.simulator.calibration.readers.training_logs import RunSizes, outcome
from plan3d.simulator.calibration.traces.memory_events import read_memory_timeline
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.gossip_graphs import Graph
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.plan.stage_layout import read_layout
from plan3d.simulator.runs.published_runs import read_origins, read_runs
from plan3d.simulator.runs.run_tasks import questions
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model
from plan3d.tuning.session import resume_session
from plan3d.web.questions import ENDPOINTS, question

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Reader:
    """Something that reads files."""

    ending: str
    """Of the file's name."""
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], object]


def site_of(told: str) -> str:
    """Where a traceback ends."""
    found = re.findall(r'File "([^"]*)", line (\d+)', told)
    others = ("site-packages", "/lib/python", "benchmarks")
    inside = [(file, line) for file, line in found if not any(part in file for part in others)]
    return f"{'/'.join(Path(inside[-1][0]).parts[-2:])}:{inside[-1][1]}" if inside else told[-200:]


@cache
def _task(model: str = "llama-3.1-8b") -> Task:
    cluster = Cluster.profile("h100-sxm", gpus=8)
    return Task(Model.preset(model), cluster, sequence=2048, global_batch=64)


def _shipped(*names: str) -> list[bytes]:
    return [files("plan3d.hardware_profiles").joinpath(name).read_bytes() for name in names]


def _exported(framework: str, *plans: str, model: str = "llama-3.1-8b") -> list[bytes]:
    form = EXPORTERS[framework].form()
    return [launch_text(_task(model), resolve(Plan.parse(p), 8), form).encode() for p in plans]


def _data(*patterns: str) -> list[bytes]:
    """Small files of the tests."""
    found = [path for pattern in patterns for path in sorted(ROOT.glob(f"tests/{pattern}"))]
    return [path.read_bytes() for path in found if path.stat().st_size < 30_000]


def _head(name: str, rows: int) -> list[bytes]:
    """The first rows of a table that comes with the package, a few at a time."""
    lines = files("plan3d.simulator.runs").joinpath(name).read_bytes().split(b"\n")
    top = [line for line in lines[:20] if line.startswith(b"#")]
    header, *rest = lines[len(top) :]
    return [b"\n".join([header, *rest[at : at + 3], b""]) for at in range(0, rows, 40)]


def _imports(path: Path) -> None:
    """A launch file as the command line reads it."""
    words = ["import", str(path), "--cluster", "h100-sxm", "--gpus", "8", "--json", "--traceback"]
    whole = path.suffix != ".json" or b"cat >" in path.read_bytes()
    _command(words if whole else [*words, "--model", "llama-3.1-8b"])


def _script(path: Path) -> None:
    """A script with arguments and a template beside it."""
    path.with_name("t.json").write_bytes(TEMPLATE)
    words = ["import", str(path), "--cluster", "h100-sxm", "--json", "--traceback", "--set", "T=2"]
    _command([*words, "--", "--model", "a"] if b"$#" in path.read_bytes() else words)


def _flags(path: Path) -> None:
    """Flags in YAML with the program that they are of."""
    words = ["import", str(path), "--cluster", "h100-sxm", "--vocabulary", "1000", "--traceback"]
    _command([*words, "--gpus", "8", "--set", "PROGRAM=pretrain_gpt.py", "--set", "T=2"])


def _trained(path: Path) -> None:
    """A script of a trainer with what its arguments leave open."""
    words = ["import", str(path), "--cluster", "h100-sxm", "--gpus", "8"]
    _command([*words, "--traceback"])


def _titan_command(path: Path) -> None:
    """A command with its job beside it."""
    path.with_name("job.toml").write_bytes(TITAN_JOB)
    _imports(path)


def _accelerate(path: Path) -> None:
    """A configuration with what it leaves open."""
    words = ["import", str(path), "--cluster", "h100-sxm", "--gpus", "8", "--model", "llama-7b"]
    _command([*words, "--global-batch", "64", "--with", "micro_batch=1", "--traceback"])


def _command(words: list[str]) -> None:
    out, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        code = command_line(words)
    if code == 70:
        raise AssertionError(site_of(told.getvalue()))
    line = told.getvalue().rstrip("\n")
    if code == 2 and ("\n" in line or not line.isprintable() or len(line) > LONGEST_QUESTION + 100):
        raise AssertionError("the error is not one printable line of bounded length")
    if code in (2, 3, 4):
        raise InputError(line)


ESTIMATE = {
    "--model": "gpt3-1.3b",
    "--cluster": "h100-sxm",
    "--gpus": "8",
    "--sequence": "1024",
    "--global-batch": "8",
    "--plan": "dp=8",
}


def _estimates(option: str) -> Callable[[Path], None]:
    """A prediction with a file as the value of an option, as JSON."""

    def estimate(path: Path) -> None:
        asked = {**ESTIMATE, option: str(path)}
        if path.name.startswith("net."):
            del asked["--sequence"]
        words = [word for pair in asked.items() for word in pair]
        _command(["estimate", *words, "--json", "--traceback"])

    return estimate


def _texts(read: Callable[[str], object]) -> Callable[[Path], object]:
    """A reader of text that the command line hands on."""
    return lambda path: read(path.read_bytes().decode("utf-8", "replace"))


def _plan_words(text: str) -> None:
    plan = Plan.parse(text)
    evaluate(_task("gpt3-1.3b"), plan)


@cache
def _rows_of_a_sweep() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        words = ["sweep", "--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--sequence", "2048"]
        words += ["--global-batch", "8", "--gpus", "8", "--over", "tp=1,2,3", "--plan", "pp=2"]
        _command([*words, "--csv", str(path)])
        return path.read_bytes()


def _continued(path: Path) -> None:
    """A sweep that goes on from a file."""
    words = ["sweep", "--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--sequence", "2048"]
    words += ["--global-batch", "8", "--gpus", "8", "--over", "tp=1,2,3", "--plan", "pp=2"]
    _command([*words, "--csv", str(path), "--resume", "--json", "--traceback"])


@cache
def _result() -> bytes:
    out = io.StringIO()
    words = ["estimate", "--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--gpus", "8"]
    words += ["--sequence", "2048", "--global-batch", "8", "--plan", "tp=2 pp=2", "--json"]
    with contextlib.redirect_stdout(out):
        command_line(words)
    return out.getvalue().encode()


def _calibration() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.toml"
        words = ["calibrate", "steps", "--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--gpus"]
        words += ["8", "--sequence", "2048", "--global-batch", "8", "--plan", "tp=2", "--seconds"]
        _command([*words, "1.2", "--out", str(path)])
        return [path.read_bytes()]


@cache
def _session() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["tune", "--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--gpus", "8", "--logs"]
        words += [folder, "--framework", "megatron", "--global-batch", "8", "--next", "2"]
        _command(words)
        return [(Path(folder) / "tune.json").read_bytes()]


def _resumed(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tune.json").write_bytes(path.read_bytes())
        resume_session(Path(folder), json.loads(_session()[0])["question"])


def _configs() -> list[bytes]:
    """A config.json of every family."""
    path = ROOT / "tests" / "simulator" / "workload" / "class_defaults.json"
    families = json.loads(path.read_text(encoding="utf-8")).values()
    texts = [*_config_texts(), *(json.dumps(family["config"]) for family in families)]
    return [text.encode() for text in texts]


def _config_texts() -> Iterator[str]:
    yield (
        '{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "vocab_size": 1000,'
        ' "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1024,'
        ' "max_position_embeddings": 2048, "rope_theta": 10000.0, "tie_word_embeddings": false,'
        ' "attention_bias": false, "mlp_bias": false, "head_dim": 64}'
    )
    yield (
        '{"model_type": "deepseek_v3", "hidden_size": 512, "num_hidden_layers": 4, "vocab_size": '
        '1000, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1024,'
        ' "moe_intermediate_size": 128, "n_routed_experts": 8, "num_experts_per_tok": 2,'
        ' "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 2,'
        ' "topk_group": 1, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_rope_head_dim": 16,'
        ' "qk_nope_head_dim": 32, "v_head_dim": 32, "num_nextn_predict_layers": 1,'
        ' "max_position_embeddings": 4096, "tie_word_embeddings": false}'
    )
    yield (
        '{"model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 1024,'
        ' "n_inner": null, "vocab_size": 50257, "activation_function": "gelu_new"}'
    )
    yield (
        '{"model_type": "gemma3_text", "hidden_size": 256, "num_hidden_layers": 6, "vocab_size":'
        ' 1000, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "sliding_window'
        '": 512, "sliding_window_pattern": 6, "intermediate_size": 512, "layer_types": null}'
    )


LAYERS = (
    b"# a network\n"
    b"name,parameters,forward_flops,activation_bytes,boundary_bytes,efficiency,repeat\n"
    b"a,1000000,2e9,1e6,1e5,0.5,3\nb,200,4e6,2e5,1e4,,\n"
)
LAYERS_JSON = (
    b'{"name": "net", "source": "me", "layers": [{"name": "a", "parameters": 100, "forward_flops":'
    b' 1e9, "activation_bytes": 5, "boundary_bytes": 7, "repeat": 2, "efficiency": 0.4}]}'
)
PLANS = (
    b"tp=2 pp=2 micro_batch=1 recompute=full zero=1 schedule=interleaved virtual_stages=2",
    b"pp=4 layers_per_stage=6,6,7,5 schedule=zb-h1 offload_optimizer=50",
    b"pp=2 segments=12:recompute=full|12 dp=4",
    b"dp=8 sync=gossip topology=ring",
)
LAYOUTS = (b"Et*3|(tt|)*9|m|L", b"11,12,12,11", b"E(t|)*4tL")
TRAINERS = (
    b"model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
    b"lora_target: q_proj,v_proj\nquantization_bit: 4\ndeepspeed: ds_z3_offload_config.json\n",
    b"base_model: Qwen/Qwen3-8B\nmicro_batch_size: 2\nsequence_len: 4096\nbf16: auto\n"
    b"fsdp: [full_shard]\nfsdp_config: {fsdp_offload_params: true}\n",
    b"model: Qwen/Qwen2.5-7B\ntuner_type: full\nmax_length: 2048\ndeepspeed: zero2\n"
    b"gradient_accumulation_steps: 4\nper_device_train_batch_size: 1\n",
)
TRAINER_COMMANDS = (
    b"NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --max_length 4096 --tuner_type lora \\\n"
    b' --gradient_accumulation_steps $(expr 16 / 8) --deepspeed \'{"zero_optimization": '
    b'{"stage": 3}}\' --packing true\n',
    b"cat > a.yaml <<'END'\ndistributed_type: FSDP\nmixed_precision: bf16\nEND\n"
    b"accelerate launch --config_file a.yaml sft.py --model_name_or_path Qwen/Qwen3-8B "
    b"--max_length 2048 --per_device_train_batch_size 1\n",
)
PRIMUS = (
    b"work_group: ${TEAM:amd}\nmodules:\n  pre_trainer:\n    framework: megatron\n"
    b"    model: ${MODEL:qwen3_30B_A3B}.yaml\n    overrides: {micro_batch_size: 2, fp8: hybrid,\n"
    b"      global_batch_size: 64, seq_length: 4096, expert_model_parallel_size: 4, fp4: null,\n"
    b"      use_torch_fsdp2: true, recompute_granularity: full, recompute_num_layers: 1,\n"
    b"      pipeline_model_parallel_layout: [[embedding, decoder], [decoder, loss]]}\n"
)
TORCHTUNE = b"""max_seq_len: 2048
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: "${max_seq_len}"}
model: {_component_: torchtune.models.llama3_1.qlora_llama3_1_8b, lora_rank: 8, lora_dropout: 0.1,
  lora_attn_modules: [q_proj, output_proj], apply_lora_to_mlp: true}
dataset: {packed: true}
batch_size: 2
gradient_accumulation_steps: 4
optimizer: {_component_: torch.optim.AdamW, fused: true}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
compile: true
enable_activation_checkpointing: true
tensor_parallel_dim: 2
data_parallel_shard_dim: 4
custom_sharded_layers: [tok_embeddings, output]
dtype: bf16
"""
AUTOMODEL = (
    b"recipe: TrainFinetuneRecipeForNextTokenPrediction\nrng: {seed: 1}\nstep_scheduler:\n"
    b"  global_batch_size: 64\n  local_batch_size: 4\nmodel:\n  _target_: nemo_automodel."
    b"NeMoAutoModelForCausalLM.from_pretrained\n  pretrained_model_name_or_path: meta-llama/"
    b"Llama-3.1-8B\n  torch_dtype: bf16\ndistributed: {strategy: fsdp2, tp_size: 2, dp_size: 4, "
    b"cp_size: null, pp_size: 1, activation_checkpointing: true, dp_replicate_size: 1}\npeft: {dim:"
    b" 8, target_modules: '*_proj'}\noptimizer: {_target_: torch.optim.AdamW}\nloss_fn: {_target_: "
    b"a.MaskedCrossEntropy}\npacked_sequence: {packed_sequence_size: 2048}\n"
)
RECIPE = b"""import argparse, nemo_run as run
from nemo.collections import llm

SIZES = {("a", 1): [2, 4], "b": 1}

def recipe(args, tp=2, *, length: int = 2048, **more):
    r = llm.llama3_8b.pretrain_recipe(num_nodes=args.nodes, num_gpus_per_node=8)
    r.trainer.strategy.tensor_model_parallel_size = SIZES[("a", 1)][0] if tp > 1 else 1
    for name, size in [("context_parallel_size", 1)]:
        setattr(r.trainer.strategy, name, size)
    if args.fp8:
        r.trainer.plugins = bf16_with_fp8_mixed()
    r.data.global_batch_size = min(64 * 2, int(f"{args.nodes}28"))
    r.trainer.callbacks.append(run.Config(llm.Overlap, tp_comm_overlap=not args.fp8))
    return r

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--fp8", action="store_true")
    run.run(recipe(parser.parse_args()))
"""
TRAINER_SCRIPTS = (
    b"import os, torch\nfrom peft import LoraConfig, get_peft_model\nfrom transformers import "
    b"AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments\n\n"
    b"def main(rank=int(os.environ.get('R', 8))):\n"
    b"    bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)\n"
    b"    model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B', quantization_config=bits)\n"
    b"    model = get_peft_model(model, LoraConfig(r=rank, target_modules=['q_proj']))\n"
    b"    args = TrainingArguments('o', per_device_train_batch_size=2, bf16=True,\n"
    b"        gradient_accumulation_steps=4, gradient_checkpointing=not None)\n"
    b"    Trainer(model=model, args=args).train()\n\nmain()\n",
    b"from trl import SFTConfig, SFTTrainer\nmore = dict(max_length=2048, packing=True)\n"
    b"SFTTrainer(model='Qwen/Qwen3-8B', args=SFTConfig(output_dir='o', **more)).train()\n",
)
TITAN_RECIPES = (
    b"from torchtitan.components.optimizer import default_adamw\n"
    b"from torchtitan.components.quantization import Float8LinearConverter\n"
    b"from torchtitan.config import ParallelismConfig, TrainingConfig\n"
    b"from torchtitan.distributed.activation_checkpoint import FullAC\n"
    b"from torchtitan.models.llama3 import model_registry\n"
    b"from torchtitan.trainer import Trainer\n\ndef mine():\n    config = Trainer.Config(\n"
    b"        model_spec=model_registry('8B', converters=[\n"
    b"            Float8LinearConverter.Config(recipe_name='rowwise')]),\n"
    b"        optimizer=default_adamw(lr=3e-4), activation_checkpoint=FullAC.Config(),\n"
    b"        training=TrainingConfig(local_batch_size=2, seq_len=4096, global_batch_size=64),\n"
    b"        parallelism=ParallelismConfig(tensor_parallel_degree=2))\n"
    b"    config.training.local_batch_size = 1\n    return config\n",
    b"from torchtitan.models.llama3.config_registry import llama3_70b\n\ndef mine():\n"
    b"    config = llama3_70b()\n    config.training.seq_len //= 2\n    return config\n",
)
TUNE_RUN = (
    b"N=4\ntune run --nproc_per_node $N lora_finetune_distributed --config llama3_1/8B_lora "
    b"tokenizer.max_seq_len=4096 model.lora_attn_modules=[q_proj,k_proj] ~clip_grad_norm\n"
)
KEPT = (
    b"_wandb: {desc: null, value: {cli_version: 0.19}}\nnum_layers: {value: 2}\n"
    b"hidden_size: {value: 64}\nnum_attention_heads: {value: 4}\nmicro_batch_size: {value: 1}\n"
    b"seq_length: {value: 64}\nmax_position_embeddings: {value: 64}\nspec: {value: null}\n"
    b"tensor_model_parallel_size: {value: 2}\nworld_size: {value: 4}\nvocab_size: {value: 99}\n",
    b"_wandb: {value: {}}\nmodel_type: {value: qwen2}\nhidden_size: {value: 64}\n"
    b"intermediate_size: {value: 128}\nnum_hidden_layers: {value: 2}\nbf16: {value: true}\n"
    b"num_attention_heads: {value: 4}\nnum_key_value_heads: {value: 2}\nfsdp: {value: []}\n"
    b"vocab_size: {value: 512}\nper_device_train_batch_size: {value: 2}\n"
    b"max_length: {value: 64}\nfsdp_config: {value: {min_num_params: 0}}\n"
    b"max_position_embeddings: {value: 64}\n",
)
"""Settings that Weights & Biases keeps, of Megatron-LM and of the Trainer."""
MEGATRON_SWIFT = (
    b"NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-14B --tensor_model_parallel_size 4 "
    b"--packing true --recompute_granularity full --max_length 8192 --sequence_parallel true\n"
)
NEMO = (
    b"trainer: {num_nodes: 1, devices: 8, precision: bf16}\nmodel:\n  micro_batch_size: 2\n"
    b"  global_batch_size: 64\n  encoder_seq_length: 2048\n  num_layers: 24\n"
    b"  hidden_size: 2048\n  ffn_hidden_size: ${multiply:4, ${.hidden_size}}\n"
    b"  num_attention_heads: 16\n  tokenizer: {library: megatron}\n"
)
BRIDGE = (
    b"model:\n  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B\n"
    b"  activation_func: {_call_: false, _target_: torch.nn.functional.silu}\n"
    b"  num_layers: 4\n  hidden_size: 512\n  num_attention_heads: 8\n  num_query_groups: 4\n"
    b"  gated_linear_unit: true\n  ffn_hidden_size: 1024\n  seq_length: 512\n  vocab_size: 1000\n"
    b"  position_embedding_type: rope\n  moe_layer_freq: [0, 1, 1, 1]\n  num_moe_experts: 4\n"
    b"  add_bias_linear: false\n  bf16: true\n  tensor_model_parallel_size: 2\n"
    b"  sequence_parallel: true\n  moe_token_dispatcher_type: alltoall\n"
    b"ddp: {use_distributed_optimizer: true, overlap_grad_reduce: true, bucket_size: null}\n"
    b"train: {global_batch_size: 64, micro_batch_size: 1}\noptimizer: {optimizer: adam}\n"
)
LOGS = (
    b"---- arguments ----\n num_layers ... 4\n hidden_size ... 512\n num_attention_heads ... 8\n"
    b" bf16 ... True\n micro_batch_size ... 1\n seq_length ... 512\n world_size ... 8\n"
    b" max_position_embeddings ... 512\n cp_comm_type ... ['p2p']\n---- end of arguments ----\n"
    b" padded vocab (size: 32000) with 0 dummy tokens\n",
    b'[titan] Running with configs: {"model": {"name": "llama3", "flavor": "8B"}, "training": '
    b'{"seq_len": 2048}, "activation_checkpoint": {"mode": "full"}}\n',
    b"[INFO:swift] args: SftArguments(model='Qwen/Qwen3-8B', max_length=2048, "
    b"gradient_accumulation_steps=2)\n",
    b"------- Task Configuration -------\n_target_: megatron.bridge.training.config."
    b"ConfigContainer\n" + BRIDGE + b"\n",
)
BRIDGE_OVERRIDES = (
    b"torchrun --nproc-per-node 8 run_recipe.py --recipe llama32_1b_pretrain_config "
    b"model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=1 "
    b"model.context_parallel_size=1 train.micro_batch_size=1 train.global_batch_size=64 "
    b"dataset.sequence_length=512 mixed_precision=bf16_with_fp8_current_scaling_mixed "
    b"model.recompute_modules=[core_attn]\n"
)
TITAN_COMMAND = (
    b"torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file job.toml "
    b"--parallelism.tensor_parallel_degree=2 --compile.enable\n"
)
TITAN_JOB = (
    b'[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 2048\n'
    b'[activation_checkpoint]\nmode = "full"\n'
)
ACCELERATE = (
    b"compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 8\n"
    b"deepspeed_config: {zero_stage: 3, offload_param_device: cpu}\nmixed_precision: bf16\n"
)
GRAPHS = (b"0 1\n1 2\n2 0\n", b"# ring\n0-1\n1,2\n2;3\n3 0\n")
STEPS = b"plan,seconds,gpus,global_batch\ntp=2 pp=1,1.2,8,8\ntp=4,1500ms,8,8\n"
ORIGINS = b"source,origin\nmegatron,nvidia\nmine,me\n"


def _published(path: Path) -> None:
    """Runs, and what each of them asks."""
    for asked in questions(read_runs(path)):
        if not isinstance(asked, str):
            evaluate(asked.task, asked.plan)


SIX = b"""
base = "h100-sxm"
[accelerator]
name = "H100-PCIe"
memory = { value = 79.1, unit = "GiB", source = "sheet", kind = "datasheet" }
[accelerator.peak]
bf16 = { value = 756, unit = "TFLOP/s", source = "sheet", kind = "datasheet" }
[node]
gpus = { value = 4, unit = "GPUs", source = "sheet", kind = "datasheet" }
[links.network]
bandwidth = { value = 12.5, unit = "GB/s", source = "sheet", measured = false }
[sources]
sheet = "the datasheet of a card"
"""
GEMMS = (
    b"# GEMM seconds\npeak,9.89e+14\nmemory_bandwidth,3.35e+12\nn,k,128,512,1024,4096\n"
    b"1024,1024,5.1,6.2,9.5,21.4\n1024,4096,8.1,11.2,19.5,51.4\n4096,1024,9.1,16.2,,81.4\n"
    b"4096,4096,19.1,36.2,69.5,281.4\n"
)
DEVICE = "#  Rank  {i} Group  0 Pid   4711 on  node-a device  {i} [0000:0{i}:00] NVIDIA H100\n"
NCCL = (
    "# nccl-tests version 2.17.2 nccl-headers=22809 nccl-library=22809\n"
    "# Collective test starting: all_gather_perf\n# Using devices\n"
    + "".join(DEVICE.format(i=i) for i in range(2))
    + "#\n#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n"
    "     1048576         32768     float    none      -1    41.50   25.27   22.11      0\n"
    "     2097152         65536     float    none      -1    62.25   33.69   29.48      0\n"
)
NCCL_JSON = (
    b'{"version": 2, "args": ["./build/sendrecv_perf", "-g", "8"], "nccl_version": 22809, "config"'
    b': {"nthreads": 1, "ngpus": 8, "devices": [{"rank": 0, "hostname": "a", "device_info": "NVIDIA'
    b' H200"}]}, "results": [{"size": 1048576, "count": 262144, "type": "float", "out_of_place":'
    b' {"time": 41.5, "alg_bw": 25.27, "bus_bw": 22.11, "nwrong": 0.0}}]}'
)
REPORT = """
CREATE TABLE StringIds (id, value);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid,
    demangledName, shortName);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId);
CREATE TABLE NVTX_EVENTS (start, end, text, textId, globalTid);
INSERT INTO StringIds VALUES (1, 'void flash_fwd_kernel');
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 9000, 0, 7, 3, 16777216, 1, 1);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (500, 600, 16777217, 3);
INSERT INTO NVTX_EVENTS VALUES (0, 10000, 'step 3', NULL, 16777217);
"""
TRACE = (
    b'{"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 0,'
    b' "dur": 900}, {"ph": "X", "cat": "kernel", "name": "void flash_fwd_kernel", "ts": 0, "dur":'
    b' 40}, {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ts":'
    b' 0, "dur": 30}, {"ph": "M", "name": "process_name"}], "deviceProperties": [{"id": 0, "name":'
    b' "NVIDIA H100"}]}'
)
MEMORY = (
    b"[[-1, 1, 400, 0], [2000, 2, 600, 4], [3000, 3, -600, 4], [3000, 3, 600, 5], [4, 4, -9, 7]]",
    b"[[1, 2], [[0, 9, 0, 0, 0, 5, 0, 0, 0], [0, 9, 0, 0, 0, 7, 1.5, 0, 0]]]",
)
LOG_LINES = {
    "megatron": " iteration {i:8d}/ 100 | elapsed time per iteration (ms): {v:.1f} | global batch "
    "size:    64 | lm loss: 2.0E+00 |\n[Rank 1] (after {i} iterations) memory (MB) | allocated: "
    "100.0 | max allocated: 1000.0 | reserved: 300.0 | max reserved: 2000.0\n",
    "torchtitan": "[titan] - INFO - Training starts at step 1, with local batch size 1, global "
    "batch size 64, sequence length 2048\n\x1b[31mstep: {i:2d}  \x1b[32mloss:  7.6  memory: "
    "66.50GiB(37.51%)  \x1b[34mtps: {v:,.0f}  \x1b[36mtflops: 314.71\n",
    "deepspeed": "[INFO] [timer.py:258:stop] epoch=0/micro_step={i}, RunningAvgSamplesPerSec=16.1, "
    "CurrSamplesPerSec={v}, MemAllocated=0.02GB, MaxMemAllocated=9.5GB\n",
    "nanotron": "[INFO|DP=0|PP=0|TP=0]:  Memory usage: 100.00MiB. Peak allocated 2048.00MiB. Peak "
    "reserved: 4096.00MiB\niteration: {i} / 100 | elapsed_time_per_iteration_ms: {v}K | "
    "tokens_per_sec_per_gpu: 11.4K | global_batch_size: 64\n",
    "nemo": "Epoch 0: :  47%|###| {i}/15 [06:19<07:13, train_step_timing in s={v}]\n",
    "swift": "{{'memory(GiB)': 58.3, 'train_speed(iter/s)': {v}, 'iteration': '{i}/83'}}\n",
    "tqdm": "\r  1%|###| {i}/834 [01:{i}<2:12:00,  {v}s/it]\n{{'loss': '1.23', 'epoch': '0.1'}}\n",
    "llama-factory": '{{"current_steps": {i}, "elapsed_time": "1 day, 0:{i}:{v}"}}\n',
    "foundry": "[batch={i}/1000]:\n\t Train time/batch: {i}\n\t "
    "Train throughput/batches_per_sec: {v}\n\t Train memory/peak_reserved_mem: 63.1\n",
    "metaseq": '| {{"wps": "{v}", "wpb": "1.31072e+05", "bsz": "64", "num_updates": "{i}"}}\n',
    "levanter": "Progress on:train {i}.0it/834it rate:1.4it/s elapsed:{i}:15 postfix:-\n",
    "pipeline": "steps: {i} loss: 3.12 iter time (s): {v}\n",
}
HISTORIES = (
    b"Wall time,Step,Value\n" + b"".join(b"%d,%d,3.1\n" % (2 * i, i) for i in range(30)),
    b'"Step","a - iteration-time","a - iteration-time__MAX","a - memory/max_reserved(GiB)"\n'
    + b"".join(b'"%d","2.%d","3","61.5"\n' % (i, i) for i in range(30)),
)
SCRIPTS = (
    b"#SBATCH <OPTIONS> --nodes=2 --ntasks-per-node=8\nset -e -- 2 64\n"
    b"IFS=, read -ra A <<< '8,bf16'\nread L H << EOF\n2 64\nEOF\n"
    b"let 'U = L * 2' M+=1; unset M; printf -v V %d-%s 1 x; mapfile -t F < f\n"
    b'K=`expr 2 \\* 2`; S=$(echo $H:8 | cut -d: -f2); B=$(bc <<< "$S * 8"); typeset -i X=1\n'
    b'srun sh -c "python pretrain_gpt.py --num-layers $1 --hidden-size $2 --seq-length $S \\\n'
    b"  --num-attention-heads $K --vocab-file <PATH TO v.json> --micro-batch-size $T \\\n"
    b'  --max-position-embeddings ${A[0]} --global-batch-size $B --pad-vocab-size-to 512 --fp16"\n',
    b"set -e\nMODEL=; declare -A M=([a]=2 [b]=4)\nwhile [[ $# -gt 0 ]]; do case $1 in\n"
    b"  --model) MODEL=$2; shift 2 ;; *) exit 1 ;; esac; done\n"
    b"f() { local k=${1%.*}; shift; for i in $@; do [ $i = 2 ] && continue; N=$((N + i)); done; }\n"
    b'N=0; f 1.x 1 2 3; until [ ${#L} -ge 4 ]; do L+=ab; done; X=(1 "2 3"); Y=${X[1]/2/4}\n'
    b"while getopts 'n:' o; do T=$OPTARG; done; Z=$(basename /a/b.c .c)$(seq 2)\n"
    b'C="torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers ${M[b]} --hidden-size 64"\n'
    b'eval "$C --num-attention-heads 4 --seq-length 8 --max-position-embeddings 8 --bf16" \\\n'
    b"  --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size $T\n",
    b"#SBATCH -N 2\n#SBATCH --gpus-per-node=4\n"
    b'Q=l-8b; [[ $Q == l*b && $Q =~ ^l-[0-9]b$ ]] && T=2; : "${T:=4}" ${U=$(expr 8 / 2)}\n'
    b"g() { local T=9; (T=8; V=1 export W=2); T=7 h; }; h() { T=6 true; }; g\n"
    b'sed "s/A/64/" t.json | sed "s/B/${Z:-1}/g" > d.json\n'
    b'srun bash -c "deepspeed pretrain_gpt.py --deepspeed --deepspeed_config d.json --num-layers 2 '
    b"--hidden-size 64 --num-attention-heads 4 --seq-length 8 --max-position-embeddings 8 "
    b"--micro-batch-size 1 --global-batch-size 64 --fp16 --num-experts 2 4 --expert-interval 1 "
    b'--sequence-parallel --tensor-model-parallel-size $T"\n',
)
"""Loops, functions, options, expansions and templates."""
TEMPLATE = b'{"train_batch_size": A, "zero_optimization": {"stage": B}, "fp16": {"enabled": true}}'
COMMANDS = (
    "estimate gpt3-1.3b h100 8 --sequence 1024 --global-batch 64 --plan 'tp=2 pp=2' --tokens 300B",
    "estimate llama-7b --cluster a100-80gb-sxm --nodes 2 --global-batch-tokens 4194304 --plan tp=8",
    "estimate mixtral-8x7b h200 8 --plan ep=8 --expert-imbalance 1.2 --price 2 --tokens 1T",
    "estimate llama-3.1-8b h100 8 --plan 'dp=8' --adapter lora --lora-rank 16 --documents 512,1024",
    "estimate llama-7b h100 64 --plan tp=2 --tokens 2T --failures-per-gpu-day 1e-5 "
    "--checkpoint-time 12s --restart-time 180s",
    "estimate llama-7b h100 64 --plan tp=2 --inter-node-bandwidth 200Gb/s --network-latency 5us "
    "--memory '70 GiB' --software megatron-core --network efa",
    "explain gpt3-1.3b h100 8 --sequence 2048 --global-batch 64 --plan tp=2 --against tp=4",
    "explain gpt3-1.3b h100 8 --global-batch 64 --plan tp=2 --precision fp8",
    "fits llama-3.1-8b rtx-4090 1 --sequence 2048 --lora-targets all-linear --lora-base nf4",
    "textbook llama-7b h100-sxm 8 --tokens 1T --took 34days",
    "models meta-llama/Llama-3.1-8B",
    "clusters h100",
    "software torch",
    "systems gpipe",
    "help words",
    "completion bash",
)
"""Commands that write no file."""


def _logs() -> list[bytes]:
    """A log of every framework, and one that ran out of memory."""
    times = [9000.0] * 10 + [2000.0, 2200.0]
    logs = [
        "".join(form.format(i=i, v=v) for i, v in enumerate(times, 1))
        for form in LOG_LINES.values()
    ]
    return [log.encode() for log in logs] + [b"torch.OutOfMemoryError: CUDA out of memory."]


def _log(path: Path) -> None:
    outcome(read_text(path, errors="replace"), RunSizes(8, 2048, 64), path.name)


def _measured(path: Path) -> object:
    return read(str(path), Hints(sizes=RunSizes(8, 2048, 64), nodes=1))


def _traced(path: Path) -> object:
    """A trace of a profiler with all that is said of it, but for what edits would save: seconds of
    forecasts, whatever the file."""
    costs = _traced_plan()
    said = TracedStep.of(costs, [str(path)])
    json.dumps(said.record, allow_nan=False)
    return said.learned, evaluate(said.task, costs.plans)


@cache
def _traced_plan() -> Costs:
    """The plan that traces are of."""
    cluster = Cluster.profile("h100-sxm", gpus=8)
    task = Task(Model.preset("llama-7b"), cluster, sequence=2048, global_batch=64)
    return evaluate(task, Plan(tp=2))


def _report() -> bytes:
    """A report of Nsight Systems of one kernel, its launch and a step."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.executescript(REPORT)
        return database.serialize()


def _rows_to_fit() -> list[bytes]:
    """A few rows of the tests' measurements."""
    lines = [one.split(b"\n") for one in _data("simulator/calibration/data/n*_h100.csv")]
    lines += [one.split(b"\n") for one in _data("simulator/calibration/data/attention_h100.csv")]
    return [b"\n".join([*rows[:3], *rows[3 :: len(rows) // 30], b""]) for rows in lines]


def _fitted(path: Path) -> None:
    """Measurements that a profile is fitted to."""
    _command(["calibrate", "fit", str(path), "--base", "h100-sxm", "--json", "--traceback"])


def _with_table(section: str, stack: str) -> Callable[[Path], None]:
    """A profile with a table beside it; of a name of its own, as tables are read once."""

    def estimate(path: Path) -> None:
        table = path.with_name(f"{zlib.crc32(path.read_bytes()):08x}.csv")
        path.rename(table)
        leaf = f'{{ file = "{table.name}", source = "mine", measured = true }}'
        text = f'base = "a100-80gb-sxm"\n[{section}]\ntable = {leaf}\n[sources]\nmine = "me"\n'
        profile = path.with_name("mine.toml")
        profile.write_text(text, encoding="utf-8")
        asked = {**ESTIMATE, "--cluster": str(profile), "--software": stack}
        try:
            words = [word for pair in asked.items() for word in pair]
            _command(["estimate", *words, "--json", "--traceback"])
        finally:
            table.unlink()

    return estimate


def _grown(path: Path) -> None:
    """A file of rows that a measurement goes on from; its caller takes a ValueError."""
    try:
        RowFile(path, ("suite", "op", "seconds"))
    except ValueError as error:
        raise InputError(str(error)) from None


def _result_again(path: Path) -> None:
    plan_arguments.read_plan(f"{path}", "--plan")
    _command(["export", f"{path}#1", "--to", "megatron", "--traceback"])


def _typed(text: str) -> None:
    """A command line; where its words end is no concern of plan3d."""
    try:
        words = [word for word in shlex.split(text) if "\0" not in word]
    except ValueError:
        words = text.split()
    if words and words[0] not in {command.split()[0] for command in COMMANDS}:
        words = ["estimate", *words]
    _command([*words, "--traceback"])


REQUESTS = (
    b'{"model": "llama-7b", "cluster": "h100-sxm", "gpus": 64, "fix": {"tp": [2]}, "top": 3}',
    b'{"model": {"model_type": "llama"}, "what_if": {"memory": 6e10}, "plan": {"tp": 2}}',
    b'{"launch_file": {"name": "a.sh", "text": "x"}, "files": {"b": ""}, "over": ["gpus=1..8"]}',
)


def _asked(path: Path) -> None:
    """A request, of every question."""
    body = parse_json(read_text(path), "the request")
    for name in ENDPOINTS:
        with contextlib.suppress(InputError):
            question(name, body, 2**20)


FLAGS = b"""MODE: &x pretraining
MODEL_ARGS: &args
  --num-layers: 4
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 128
  --max-position-embeddings: 128
  --micro-batch-size: 2
  --global-batch-size: 32
  --tensor-model-parallel-size: ${T}
  --swiglu: true
  --moe-layer-freq: ([0]*1+[1]*3)
  --rampup-batch-size: "[8 8 100]"
  --bf16: true
MODEL_ARGS_2: {<<: *args, --lr: 1.0e-4, --wandb-exp-name: "a $T `b`"}
"""
READERS = {
    "config": Reader("config.json", _configs, _estimates("--model")),
    "layers-csv": Reader("net.csv", lambda: [LAYERS], _estimates("--model")),
    "layers-json": Reader("net.json", lambda: [LAYERS_JSON], _estimates("--model")),
    "profile": Reader(
        "p.toml", lambda: [*_shipped("h100-sxm.toml", "gb200.toml"), SIX], _estimates("--cluster")
    ),
    "software": Reader(
        "s.toml",
        lambda: _shipped("software/megatron-core.toml", "software/fsdp.toml"),
        _estimates("--software"),
    ),
    "flags": Reader("f.yaml", lambda: [FLAGS], _flags),
    "megatron": Reader(
        "run.sh",
        lambda: (
            _exported("megatron", "tp=2 pp=2 zero=1", "pp=4 layers_per_stage=6,6,10,10")
            + _exported("megatron", "tp=2 ep=4", model="mixtral-8x7b")
        ),
        _imports,
    ),
    "deepspeed": Reader(
        "ds.json",
        lambda: _exported(
            "deepspeed", "zero=3", "tp=2 pp=2 zero=0 overlap_grad_reduce=0 overlap_param_gather=0"
        ),
        _imports,
    ),
    "torchtitan": Reader(
        "t.toml", lambda: _exported("torchtitan", "tp=2 zero=3", "pp=2 zero=2"), _imports
    ),
    "nanotron": Reader(
        "n.yaml", lambda: _exported("nanotron", "tp=2 pp=2 overlap_param_gather=0"), _imports
    ),
    "trainer": Reader("t.yaml", lambda: [*TRAINERS], _imports),
    "trainer-command": Reader("r.sh", lambda: [*TRAINER_COMMANDS], _imports),
    "megatron-swift": Reader("m.sh", lambda: [MEGATRON_SWIFT], _imports),
    "printed-settings": Reader("p.log", lambda: [*LOGS], _imports),
    "nemo": Reader("n.yaml", lambda: [NEMO], _imports),
    "primus": Reader("p.yaml", lambda: [PRIMUS], _imports),
    "automodel": Reader("a.yaml", lambda: [AUTOMODEL], _imports),
    "torchtune": Reader("t.yaml", lambda: [TORCHTUNE], _imports),
    "torchtune-command": Reader("t.sh", lambda: [TUNE_RUN], _imports),
    "wandb": Reader("config.yaml", lambda: [*KEPT], _imports),
    "recipe": Reader("r.py", lambda: [RECIPE], _imports),
    "trainer-script": Reader("t.py", lambda: [*TRAINER_SCRIPTS], _trained),
    "torchtitan-recipe": Reader("t.py", lambda: [*TITAN_RECIPES], _imports),
    "bridge": Reader("run_config.yaml", lambda: [BRIDGE], _imports),
    "bridge-overrides": Reader("r.sh", lambda: [BRIDGE_OVERRIDES], _imports),
    "torchtitan-command": Reader("t.sh", lambda: [TITAN_COMMAND], _titan_command),
    "accelerate": Reader("a.yaml", lambda: [ACCELERATE], _accelerate),
    "plan-words": Reader("plan.txt", lambda: [*PLANS], _texts(_plan_words)),
    "layout": Reader("layout.txt", lambda: [*LAYOUTS], _texts(read_layout)),
    "result": Reader(
        "result.json",
        lambda: [_result()],
        _result_again,
    ),
    "request": Reader("r.json", lambda: [*REQUESTS], _asked),
    "graph": Reader("g.txt", lambda: [*GRAPHS], _texts(Graph.parse)),
    "runs": Reader("runs.csv", lambda: _head("published_runs.csv", 400), _published),
    "origins": Reader("origins.csv", lambda: [ORIGINS], read_origins),
    "measurements": Reader(
        "m.csv",
        lambda: _data("simulator/data/*.csv", "simulator/calibration/data/**/*"),
        lambda path: read(str(path), Hints()),
    ),
    "steps": Reader(
        "steps.csv", lambda: [STEPS], lambda path: calibrate_steps._rows(str(path), read_text(path))
    ),
    "calibration": Reader("c.toml", _calibration, _estimates("--calibration")),
    "tune": Reader("tune.json", _session, _resumed),
    "sweep": Reader("rows.csv", lambda: [_rows_of_a_sweep()], _continued),
    "logs": Reader("run.log", _logs, _log),
    "history": Reader("h.csv", lambda: [*HISTORIES], _measured),
    "script": Reader("s.sh", lambda: [*SCRIPTS], _script),
    "nccl-tests": Reader("all.txt", lambda: [NCCL.encode(), NCCL_JSON], _measured),
    "trace": Reader("trace.json", lambda: [TRACE], _traced),
    "nsys": Reader("report.sqlite", lambda: [_report()], _traced),
    "memory-timeline": Reader("m.json", lambda: [*MEMORY], lambda p: read_memory_timeline(str(p))),
    "fit": Reader("m.csv", _rows_to_fit, _fitted),
    "gemm-table": Reader(
        "gemms.csv", lambda: [GEMMS], _with_table("kernels.gemm.16bit", "megatron-core")
    ),
    "layer-table": Reader(
        "layers.csv",
        lambda: _shipped("measurements/a100-vtrain-layers.csv"),
        _with_table("kernels.layer.vtrain", "vtrain"),
    ),
    "rows": Reader("rows.csv", lambda: [b"suite,op,seconds\ngemm,gemm,0.1\n"], _grown),
    "documents": Reader(
        "lengths.txt", lambda: [b"512,1024 7\n64", b"1\n2\n3\n" * 20], _estimates("--documents")
    ),
    "command": Reader(
        "words.txt", lambda: [command.encode() for command in COMMANDS], _texts(_typed)
    ),
}
"""What reads files, by name."""
