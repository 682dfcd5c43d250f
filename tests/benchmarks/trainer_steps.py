"""Fine-tuning steps of the Hugging Face Trainer on one GPU, and how far off their predictions are.

python tests/benchmarks/trainer_steps.py predict                   # CSV on stdout, before measuring
python tests/benchmarks/trainer_steps.py measure OUT --seconds 300 # there: transformers, peft
python tests/benchmarks/trainer_steps.py report FILE               # FILE: OUT/trainer.csv

`--settings new` (the default: QLoRA, which needs bitsandbytes, and DeepSpeed), old, or all.
Weights are random and tokens too: nothing is downloaded. Rows are not fitted to.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import socket
import sys
import time
import traceback
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

LLAMA = {"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128_256}
QWEN = {"vocab_size": 151_936, "num_hidden_layers": 28}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": LLAMA
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    | {"num_attention_heads": 32, "head_dim": 64, "tie_word_embeddings": True},
    "llama-3.2-3b": LLAMA
    | {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28}
    | {"num_attention_heads": 24, "head_dim": 128, "tie_word_embeddings": True},
    "llama-3.1-8b": LLAMA
    | {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "tie_word_embeddings": False},
    "mistral-7b": {"model_type": "mistral", "vocab_size": 32_000, "sliding_window": None}
    | {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False},
    "qwen2.5-0.5b": QWEN
    | {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864}
    | {"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
    | {"tie_word_embeddings": True},
    "qwen2.5-1.5b": QWEN
    | {"model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960}
    | {"num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2.5-7b": QWEN
    | {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18_944}
    | {"vocab_size": 152_064, "num_attention_heads": 28, "num_key_value_heads": 4}
    | {"tie_word_embeddings": False},
    "qwen3-4b": QWEN
    | {"model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728}
    | {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
    | {"head_dim": 128, "tie_word_embeddings": True},
}
"""Numbers of the models' config.json on the Hugging Face hub."""


@dataclass(frozen=True)
class Setting:
    """What is trained and how; `weights` is the format that the model is loaded in, beside which
    bf16=True computes under autocast; `zero` is DeepSpeed's stage, 0 where it is not used."""

    model: str
    sequence: int
    micro_batch: int
    micro_batches: int = 1
    checkpointing: bool = False
    weights: str = "bf16"
    lora_rank: int = 0
    lora_dropout: float = 0.0
    lora_targets: str = "q k v o gate up down"
    zero: int = 0


OLD = (
    Setting("llama-3.1-8b", 2048, 1, lora_rank=16),
    Setting("llama-3.1-8b", 2048, 1, lora_rank=16, lora_dropout=0.05),
    Setting("llama-3.2-1b", 2048, 4),
    Setting("llama-3.1-8b", 2048, 4, 1, True, lora_rank=16, lora_dropout=0.05),
    Setting("llama-3.2-1b", 4096, 2, 1, True),
    Setting("llama-3.2-1b", 2048, 4, weights="fp32"),
    Setting("llama-3.2-3b", 2048, 2),
    Setting("llama-3.1-8b", 512, 1, lora_rank=16),
    Setting("qwen2.5-7b", 4096, 2, 2, True, lora_rank=64),
    Setting("qwen2.5-1.5b", 1024, 8),
    Setting("llama-3.1-8b", 1024, 4, 1, True, lora_rank=8, lora_dropout=0.1, lora_targets="q v"),
    Setting("mistral-7b", 8192, 1, 1, True, lora_rank=16, lora_targets="q k v o"),
    Setting("qwen3-4b", 2048, 2, 1, True),
    Setting("llama-3.2-3b", 4096, 2, 2, True),
    Setting("qwen2.5-0.5b", 512, 8, weights="fp32"),
    Setting("llama-3.2-1b", 4096, 2, 2, True, weights="fp32"),
    Setting("llama-3.2-3b", 2048, 1, 1, True, weights="fp32"),
    Setting("mistral-7b", 2048, 1, lora_rank=16, lora_dropout=0.05, lora_targets="q v"),
)
NEW = (
    Setting("llama-3.1-8b", 2048, 1, weights="nf4", lora_rank=16),
    Setting("llama-3.2-1b", 2048, 4, zero=2),
    Setting("llama-3.2-1b", 2048, 4, zero=3),
    Setting("llama-3.1-8b", 2048, 4, 1, True, "nf4", lora_rank=16),
    Setting("llama-3.1-8b", 2048, 1, lora_rank=16, zero=2),
    Setting("llama-3.1-8b", 2048, 1, lora_rank=16, zero=3),
    Setting("qwen2.5-7b", 512, 1, weights="nf4", lora_rank=16),
    Setting("llama-3.2-1b", 2048, 4, 4, zero=2),
    Setting("llama-3.2-1b", 2048, 4, 4, zero=3),
    Setting("mistral-7b", 1024, 4, 1, True, "nf4", lora_rank=64, lora_dropout=0.1),
    Setting("llama-3.2-3b", 2048, 2, weights="nf4", lora_rank=16),
    Setting("qwen2.5-1.5b", 2048, 4, 1, True, zero=2),
    Setting("qwen2.5-1.5b", 2048, 4, 1, True, zero=3),
    Setting("llama-3.1-8b", 8192, 1, 1, True, "nf4", lora_rank=16),
    Setting("llama-3.1-8b", 2048, 1, weights="nf4", lora_rank=16, lora_targets="q v"),
    Setting("llama-3.2-3b", 1024, 1, 4, weights="nf4", lora_rank=16, lora_dropout=0.05),
)
SETTINGS = {"new": NEW, "old": OLD, "all": NEW + OLD}
TRACED = {OLD[1], OLD[2], OLD[4], *NEW[:3]}
"""Those whose step is also recorded by torch.profiler, after it was timed."""
DROPPED, TIMED = 4, 8
LONGEST = 75.0
"""Seconds after which a setting is given up."""
MEASURED = ("step_seconds", "allocated_bytes", "reserved_bytes", "static_bytes", "device_bytes")
ADDED = ("timed_bytes", "model_bytes")
"""Peak of the timed steps alone, and bytes before the Trainer starts; not in the first file."""
COLUMNS = fields(Setting)


def measure(
    out: Path, settings: tuple[Setting, ...], limit_seconds: float, device: str = "cuda"
) -> None:
    """Rows of settings as out/trainer.csv, those that failed with empty numbers."""
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    methods = ["fork", "spawn"]
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # What takes long to import and leaves the GPU to forks.
    import transformers.models.llama.modeling_llama  # noqa: F401

    with (out / "trainer.csv").open("w", newline="") as file:
        names = [one.name for one in COLUMNS]
        writer = csv.DictWriter(file, [*names, *MEASURED, *ADDED, "said"])
        writer.writeheader()
        for number, setting in enumerate(settings):
            left = limit_seconds - (time.monotonic() - start)
            if left <= 0:
                break
            trace = out / f"trace{number}.json.gz" if setting in TRACED else None
            row = asdict(setting) | _measured(
                (setting, trace, out, device), methods, min(left, LONGEST)
            )
            writer.writerow(row)
            file.flush()
            print(f"{time.monotonic() - start:6.1f} s", row, flush=True)


def _measured(
    asked: tuple[Setting, Path | None, Path, str], methods: list[str], seconds: float
) -> dict[str, Any]:
    """Median seconds of a step, peaks, and bytes between steps, of a process that has the GPU for
    itself and takes with it what DeepSpeed leaves in its environment. Of methods to start one,
    those that find the GPU taken are dropped."""
    context: Any = multiprocessing.get_context(methods[0])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, *asked))
    process.start()
    sender.close()
    try:
        row = receiver.recv() if receiver.poll(seconds) else {"said": f"over {seconds:.0f} s"}
    except EOFError:
        row = {"said": "the process ended"}
    process.kill()
    process.join()
    if "forked subprocess" in row["said"] and len(methods) > 1:
        del methods[0]
        return _measured(asked, methods, seconds)
    return row


def _send(sender: Any, setting: Setting, trace: Path | None, out: Path, device: str) -> None:
    """What was found of a setting, to where it failed."""
    found: dict[str, Any] = {"said": "" if device == "cuda" else "not on a GPU"}
    try:
        _train(setting, trace, out, device, found)
    except Exception as error:
        traceback.print_exc()
        found["said"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    sender.send(found)


def _model(setting: Setting, device: str) -> Any:
    """Random weights, in 4 bits as transformers packs those of a checkpoint, with adapters."""
    import gc

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

    config = dict(CONFIGS[setting.model])
    config |= {"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "use_cache": False}
    made = AutoConfig.for_model(config.pop("model_type"), **config)
    dtype = torch.float32 if setting.weights == "fp32" else torch.bfloat16
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(made, dtype=dtype, attn_implementation="sdpa")
    if setting.weights == "nf4":
        from peft import prepare_model_for_kbit_training

        model = type(model).from_pretrained(
            None,
            config=made,
            state_dict=model.state_dict(),
            dtype=dtype,
            attn_implementation="sdpa",
            device_map={"": 0 if device == "cuda" else device},
            quantization_config=BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.bfloat16,
            ),
        )
        model = prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=setting.checkpointing
        )
    if setting.lora_rank:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model,
            LoraConfig(
                r=setting.lora_rank,
                lora_alpha=2 * setting.lora_rank,
                lora_dropout=setting.lora_dropout,
                target_modules=[f"{name}_proj" for name in setting.lora_targets.split()],
                task_type="CAUSAL_LM",
            ),
        )
        if setting.checkpointing:
            model.enable_input_require_grads()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return model


def _engine(stage: int) -> dict[str, Any]:
    """A configuration of DeepSpeed as the Trainer's documentation has it, without offload; the
    optimizer is the Trainer's."""
    sizes = {"reduce_bucket_size": "auto"}
    if stage == 3:
        names = ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
        sizes |= dict.fromkeys(names, "auto")
    batches = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return {
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
        | sizes,
        "gradient_clipping": "auto",
        **dict.fromkeys(batches, "auto"),
    }


def _be_the_only_rank() -> None:
    """What a launcher tells a process."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def _train(
    setting: Setting, trace: Path | None, out: Path, device: str, found: dict[str, Any]
) -> None:
    """Steps of the Trainer; numbers are added to `found`, the trace is written to its file."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    cuda = device == "cuda"
    model = _model(setting, device)
    steps = DROPPED + TIMED + (4 if trace else 0)
    samples = setting.micro_batch * setting.micro_batches * steps
    tokens = np.random.default_rng(0).integers(
        0, model.config.vocab_size, (samples, setting.sequence), dtype=np.int64
    )
    data = [{"input_ids": line, "labels": line} for line in map(torch.from_numpy, tokens)]
    seconds: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Seconds between ends of steps; the profiler starts after those that are timed."""

        profiler: Any = None

        def read_peaks(self) -> None:
            """Of the steps since they were last read, and of all."""
            found["timed_bytes"] = torch.cuda.max_memory_allocated()
            peaks = {"allocated_bytes": found["timed_bytes"]}
            peaks["reserved_bytes"] = torch.cuda.max_memory_reserved()
            found.update({name: max(found.get(name, 0), peak) for name, peak in peaks.items()})
            torch.cuda.reset_peak_memory_stats()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if cuda:
                torch.cuda.synchronize()
                if state.global_step == DROPPED:
                    self.read_peaks()
            now = time.perf_counter()
            if state.global_step >= DROPPED and not self.profiler:
                seconds.append(now)
            if state.global_step == DROPPED + TIMED:
                found["step_seconds"] = float(np.median(np.diff(seconds)))
                if cuda:
                    free, total = torch.cuda.mem_get_info()
                    self.read_peaks()
                    found["static_bytes"] = torch.cuda.memory_allocated()
                    found["device_bytes"] = total - free
                if trace:
                    self.profiler = torch.profiler.profile(
                        schedule=torch.profiler.schedule(wait=0, warmup=2, active=2, repeat=1)
                    )
                    self.profiler.start()
            elif self.profiler:
                self.profiler.step()

    clock = Clock()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        found["model_bytes"] = torch.cuda.memory_allocated()
    engine: dict[str, Any] = {}
    if setting.zero:
        _be_the_only_rank()
        engine = {"deepspeed": _engine(setting.zero), "optim": "adamw_torch"}
    arguments = TrainingArguments(
        output_dir=str(out / "unused"),
        max_steps=steps,
        per_device_train_batch_size=setting.micro_batch,
        gradient_accumulation_steps=setting.micro_batches,
        gradient_checkpointing=setting.checkpointing,
        bf16=True,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not cuda and not setting.zero,
        **engine,
    )
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[clock]).train()
    if clock.profiler:
        clock.profiler.stop()
        clock.profiler.export_chrome_trace(str(trace))


def predicted(setting: Setting, profile: str) -> dict[str, float]:
    """Seconds of a step with its 80 % interval, and peaks as the meters of MEASURED show them.

    ZeRO shards nothing on one GPU, where DeepSpeed's engine runs all the same; its settings ask for
    adamw_torch. So are launch files read.
    """
    from dataclasses import replace

    from plan3d import Adapters, Cluster, Model, Plan, Task, software_profile

    adapters = None
    if setting.lora_rank:
        targets = tuple(setting.lora_targets.split())
        base = "nf4-dq" if setting.weights == "nf4" else "bf16"
        adapters = Adapters(
            rank=setting.lora_rank, targets=targets, base=base, dropout=setting.lora_dropout
        )
    stack = software_profile("hf-deepspeed" if setting.zero else "hf-trainer")
    if setting.zero:
        stack = replace(stack, fused_update=False)
    task = Task(
        Model.preset(setting.model),
        Cluster.profile(profile, gpus=1),
        sequence=setting.sequence,
        global_batch=setting.micro_batch * setting.micro_batches,
        software=stack,
        adapters=adapters,
    )
    plan = Plan(
        micro_batch=setting.micro_batch,
        recompute="full" if setting.checkpointing else "none",
        precision=_precision(setting),
        zero=setting.zero,
    )
    return predicted_meters(task, plan)


def predicted_meters(task: Any, plan: Any) -> dict[str, float]:
    """Seconds of a step with its 80 % interval, and peaks as the meters of MEASURED show them."""
    from dataclasses import replace

    from plan3d import evaluate
    from plan3d.simulator.uncertainty.forecast import step_interval
    from plan3d.simulator.validation.predict_runs import rank_memory

    costs = evaluate(task, plan)
    low, high = (float(np.ravel(end)[0]) for end in step_interval(costs))
    counted = replace(task, software=replace(task.software, context_bytes=0.0))
    memory = rank_memory(evaluate(counted, plan), "max")
    return {
        "step_seconds": float(costs.step_seconds),
        "low": low,
        "high": high,
        "allocated_bytes": float(memory["allocated"][0]),
        "reserved_bytes": float(memory["reserved"][0]),
        "device_bytes": float(rank_memory(costs, "max")["device"][0]),
    }


def _precision(setting: Setting) -> str:
    """As launch files of the Trainer are read: amp is autocast over fp32 weights, and DeepSpeed
    keeps fp32 copies of trained weights in 16 bits."""
    if setting.lora_rank or setting.zero:
        return "bf16"
    return "amp" if setting.weights == "fp32" else "pure-bf16"


def predict(settings: tuple[Setting, ...], profile: str) -> None:
    """Predictions as CSV on stdout."""
    rows = [asdict(setting) | predicted(setting, profile) for setting in settings]
    writer = csv.DictWriter(sys.stdout, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)


def rows_of(path: Path) -> list[dict[str, str]]:
    """Measured rows, texts by column."""
    lines = path.read_text("utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def setting_of(row: dict[str, str]) -> Setting:
    """What a measured row trained; columns that its file does not have are at their defaults."""
    read: dict[Any, Any] = {"int": int, "float": float, "str": str, "bool": "True".__eq__}
    return Setting(
        **{one.name: read[one.type](row[one.name]) for one in COLUMNS if one.name in row}
    )


def kind_of(setting: Setting) -> str:
    """Rows that are reported together."""
    adapters = ("qlora" if setting.weights == "nf4" else "lora") if setting.lora_rank else "full"
    return "DeepSpeed" if setting.zero else adapters


def report(path: Path, profile: str) -> None:
    """Predicted over measured, row by row, and the median error of every kind."""
    ratios: dict[str, list[dict[str, float]]] = {}
    for row in rows_of(path):
        if not row["step_seconds"]:
            print(*astuple(setting_of(row)), "not timed:", row["said"])
            continue
        setting = setting_of(row)
        found = predicted(setting, profile)
        names = ("step_seconds", "allocated_bytes", "reserved_bytes", "device_bytes")
        ratio = {name: found[name] / float(row[name]) for name in names}
        ratio["held"] = float(found["low"] <= float(row["step_seconds"]) <= found["high"])
        ratio["half_width"] = float(np.log(found["high"] / found["low"]) / 2)
        ratios.setdefault(kind_of(setting), []).append(ratio)
        told = "  ".join(f"{name.split('_')[0]} {ratio[name]:.3f}" for name in names)
        print(f"{float(row['step_seconds']):7.4f} s  {told} ", *astuple(setting))
    for kind, some in ratios.items():
        for name in some[0]:
            of = np.array([one[name] for one in some])
            if name == "held":
                print(f"{kind}: 80 % interval holds {100 * of.mean():.0f} %")
            elif name == "half_width":
                print(f"{kind}: half-width {of.mean():.2f} (log)")
            else:
                off = 100 * np.abs(of - 1)
                print(f"{kind}: {name} median {np.median(off):.1f} %, largest {off.max():.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "predict", "report"))
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--settings", choices=tuple(SETTINGS), default="new")
    parser.add_argument("--skip", type=int, default=0, help="settings measured before")
    parser.add_argument("--base", default="h100-sxm")
    args = parser.parse_args()
    if args.what == "predict":
        predict(SETTINGS[args.settings], args.base)
    elif args.what == "measure":
        measure(args.path, SETTINGS[args.settings][args.skip :], args.seconds)
    else:
        report(args.path, args.base)


if __name__ == "__main__":
    main()
