"""Fine-tuning steps of the Hugging Face Trainer on one GPU, and how far off their predictions are.

python tests/benchmarks/trainer_steps.py predict                   # CSV on stdout, before measuring
python tests/benchmarks/trainer_steps.py measure OUT --seconds 300 # there: transformers, peft
python tests/benchmarks/trainer_steps.py report FILE               # FILE: OUT/trainer.csv

Weights are random and tokens too: nothing is downloaded. Rows are not fitted to.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from dataclasses import asdict, dataclass, fields
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
    bf16=True computes under autocast."""

    model: str
    sequence: int
    micro_batch: int
    micro_batches: int = 1
    checkpointing: bool = False
    weights: str = "bf16"
    lora_rank: int = 0
    lora_dropout: float = 0.0
    lora_targets: str = "q k v o gate up down"


SETTINGS = (
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
TRACED = (1, 2, 4)
"""Those whose step is also recorded by torch.profiler, after it was timed."""
DROPPED, TIMED = 4, 8
MEASURED = ("step_seconds", "allocated_bytes", "reserved_bytes", "static_bytes", "device_bytes")
COLUMNS = [one.name for one in fields(Setting)]


def measure(out: Path, limit_seconds: float, device: str = "cuda") -> None:
    """Rows of SETTINGS as out/trainer.csv, those that ran out of memory with empty numbers."""
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with (out / "trainer.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS, *MEASURED, "said"])
        writer.writeheader()
        for number, setting in enumerate(SETTINGS):
            if time.monotonic() - start > limit_seconds:
                break
            trace = out / f"trace{number}.json.gz" if number in TRACED else None
            row = asdict(setting) | _measured(setting, trace, out, device)
            writer.writerow(row)
            file.flush()
            print(f"{time.monotonic() - start:6.1f} s", row, flush=True)


def _measured(setting: Setting, trace: Path | None, out: Path, device: str) -> dict[str, Any]:
    """Median seconds of a step, peaks, and bytes between steps."""
    import gc

    import torch

    try:
        return _trained(setting, trace, out, device)
    except (torch.OutOfMemoryError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        return {"said": " ".join(str(error).split())[:300]}
    finally:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def _trained(setting: Setting, trace: Path | None, out: Path, device: str) -> dict[str, Any]:

    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    cuda = device == "cuda"
    config = dict(CONFIGS[setting.model])
    config |= {"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "use_cache": False}
    made = AutoConfig.for_model(config.pop("model_type"), **config)
    formats = {"bf16": torch.bfloat16, "fp32": torch.float32}
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            made, dtype=formats[setting.weights], attn_implementation="sdpa"
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
    steps = DROPPED + TIMED + (4 if trace else 0)
    samples = setting.micro_batch * setting.micro_batches * steps
    tokens = np.random.default_rng(0).integers(
        0, made.vocab_size, (samples, setting.sequence), dtype=np.int64
    )
    data = [{"input_ids": line, "labels": line} for line in map(torch.from_numpy, tokens)]
    seconds: list[float] = []
    found: dict[str, Any] = {}

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Seconds between ends of steps; the profiler starts after those that are timed."""

        profiler: Any = None

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if cuda:
                torch.cuda.synchronize()
            now = time.perf_counter()
            if state.global_step >= DROPPED and not self.profiler:
                seconds.append(now)
            if state.global_step == DROPPED + TIMED:
                if cuda:
                    free, total = torch.cuda.mem_get_info()
                    found["allocated_bytes"] = torch.cuda.max_memory_allocated()
                    found["reserved_bytes"] = torch.cuda.max_memory_reserved()
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
        use_cpu=not cuda,
    )
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[clock]).train()
    if clock.profiler:
        clock.profiler.stop()
        clock.profiler.export_chrome_trace(str(trace))
    found["step_seconds"] = float(np.median(np.diff(seconds)))
    found["said"] = "" if cuda else "not on a GPU"
    return found


def predicted(setting: Setting, profile: str) -> dict[str, float]:
    """Seconds of a step with its 80 % interval, peaks as the meters of MEASURED show them, and
    bytes between steps."""
    from dataclasses import replace

    from plan3d import Adapters, Cluster, Model, Plan, Task, evaluate, software_profile
    from plan3d.simulator.uncertainty.forecast import step_interval
    from plan3d.simulator.validation.predict_runs import rank_memory

    adapters = None
    if setting.lora_rank:
        targets = tuple(setting.lora_targets.split())
        adapters = Adapters(rank=setting.lora_rank, targets=targets, dropout=setting.lora_dropout)
    stack = software_profile("hf-trainer")
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
    )
    costs = evaluate(task, plan)
    low, high = (float(np.ravel(end)[0]) for end in step_interval(costs))
    counted = replace(task, software=replace(stack, context_bytes=0.0))
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
    """As launch files of the Trainer are read: amp is autocast over fp32 weights."""
    if setting.lora_rank:
        return "bf16"
    return "amp" if setting.weights == "fp32" else "pure-bf16"


def predict(profile: str) -> None:
    """Predictions of SETTINGS as CSV on stdout."""
    rows = [asdict(setting) | predicted(setting, profile) for setting in SETTINGS]
    writer = csv.DictWriter(sys.stdout, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)


def rows_of(path: Path) -> list[dict[str, str]]:
    """Measured rows, texts by column."""
    lines = path.read_text("utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def setting_of(row: dict[str, str]) -> Setting:
    """What a measured row trained."""
    return Setting(
        model=row["model"],
        sequence=int(row["sequence"]),
        micro_batch=int(row["micro_batch"]),
        micro_batches=int(row["micro_batches"]),
        checkpointing=row["checkpointing"] == "True",
        weights=row["weights"],
        lora_rank=int(row["lora_rank"]),
        lora_dropout=float(row["lora_dropout"]),
        lora_targets=row["lora_targets"],
    )


def report(path: Path, profile: str) -> None:
    """Predicted over measured, row by row, and the median error of full fine-tuning and LoRA."""
    ratios: dict[str, list[dict[str, float]]] = {"full": [], "lora": []}
    for row in rows_of(path):
        if not row["step_seconds"]:
            print(" ".join(row[name] for name in COLUMNS), "not timed:", row["said"])
            continue
        setting = setting_of(row)
        found = predicted(setting, profile)
        names = ("step_seconds", "allocated_bytes", "reserved_bytes", "device_bytes")
        ratio = {name: found[name] / float(row[name]) for name in names}
        ratio["held"] = float(found["low"] <= float(row["step_seconds"]) <= found["high"])
        ratio["half_width"] = float(np.log(found["high"] / found["low"]) / 2)
        ratios["lora" if setting.lora_rank else "full"].append(ratio)
        told = "  ".join(f"{name.split('_')[0]} {ratio[name]:.3f}" for name in names)
        asked = " ".join(row[name] for name in COLUMNS)
        print(f"{float(row['step_seconds']):7.4f} s  {told}  {asked}")
    for kind, some in ratios.items():
        for name in some[0] if some else ():
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
    parser.add_argument("--base", default="h100-sxm")
    args = parser.parse_args()
    if args.what == "predict":
        predict(args.base)
    elif args.what == "measure":
        measure(args.path, args.seconds)
    else:
        report(args.path, args.base)


if __name__ == "__main__":
    main()
