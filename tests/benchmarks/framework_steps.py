"""Training steps of torchtune's and torchtitan's own code on one GPU, and how far off their
predictions are.

python tests/benchmarks/framework_steps.py predict                   # CSV, before measuring
python tests/benchmarks/framework_steps.py measure OUT --seconds 240 # there: both frameworks
python tests/benchmarks/framework_steps.py report FILE               # FILE: OUT/frameworks.csv

Written for torchtune 0.6.1 (with torchao 0.11) and torchtitan 0.2.2. Weights are random and tokens
too: nothing is downloaded. A measurement that was cut off goes on after the setting that it was at.
Rows are not fitted to.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from trainer_steps import predicted_meters, rows_of

LLAMA = {"family": "llama", "kv_heads": 8, "vocab": 128_256}
MOE = {"family": "moe", "hidden": 2048, "ep": 1, "etp": 1}
MODELS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": LLAMA | {"hidden": 4096, "ffn_hidden": 14_336, "heads": 32},
    "llama-3.2-1b": LLAMA | {"hidden": 2048, "ffn_hidden": 8192, "heads": 32, "tied": True},
    "mistral-7b": LLAMA | {"hidden": 4096, "ffn_hidden": 14_336, "heads": 32, "vocab": 32_000},
    "qwen2.5-1.5b": {"family": "llama", "hidden": 1536, "ffn_hidden": 8960, "heads": 12}
    | {"kv_heads": 2, "vocab": 151_936, "biases": "qkv", "tied": True},
    "qwen3-30b-a3b": MOE
    | {"heads": 32, "kv_heads": 4, "head_dim": 128, "qk_norm": True, "vocab": 151_936}
    | {"experts": 128, "experts_per_token": 8, "expert_ffn": 768},
    "deepseek-v2-lite": MOE
    | {"heads": 16, "ffn_hidden": 10_944, "vocab": 102_400, "dense_layers": 1}
    | {"experts": 64, "experts_per_token": 6, "expert_ffn": 1408, "shared_expert_ffn": 2816}
    | {"mla_q_rank": 0, "mla_kv_rank": 512, "mla_nope_dim": 128, "mla_rope_dim": 64}
    | {"mla_value_dim": 128},
}
"""Sizes of the models, as the columns of published runs name them."""
TUNED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-3.1-8b": ("llama3_1", {"max_seq_len": 131_072}),
    "llama-3.2-1b": ("llama3_2", {"max_seq_len": 131_072, "scale_factor": 32}),
    "mistral-7b": ("mistral", {"max_seq_len": 32_768}),
    "qwen2.5-1.5b": ("qwen2", {"max_seq_len": 131_072, "norm_eps": 1e-6, "rope_base": 1e6}),
}
"""torchtune's builders, and what its models of that name give them beside sizes."""
FLAVORS = {
    "llama-3.1-8b": ("llama3", "8B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"),
}
"""torchtitan's models."""
TARGETS = ("q", "v", "o", "gate", "up", "down")
"""Matrices with adapters in torchtune's recipes of LoRA."""


@dataclass(frozen=True)
class Setting:
    """What is trained and how: the first `layers` of a model. torchtune's samples are packed of
    four documents each, or are one; its weights are bf16, torchtitan's are fp32 under autocast."""

    framework: str
    model: str
    layers: int
    sequence: int
    micro_batch: int
    micro_batches: int = 1
    recompute: str = "none"
    compiled: bool = False
    lora_rank: int = 0
    packed: bool = False


TUNE, TITAN = "torchtune", "torchtitan"
SETTINGS = (
    Setting(TITAN, "qwen3-30b-a3b", 3, 4096, 2, 1, "none", True),
    Setting(TUNE, "llama-3.1-8b", 12, 2048, 2, 2, "full", True, 8),
    Setting(TUNE, "llama-3.1-8b", 12, 2048, 2, 2, "full", False, 8),
    Setting(TITAN, "llama-3.1-8b", 6, 4096, 2, 1, "selective", True),
    Setting(TUNE, "llama-3.2-1b", 16, 2048, 4),
    Setting(TITAN, "deepseek-v2-lite", 4, 2048, 4, 1, "selective", True),
    Setting(TITAN, "llama-3.1-8b", 6, 4096, 2, 1, "selective"),
    Setting(TUNE, "llama-3.1-8b", 12, 512, 4, 1, "none", False, 8),
    Setting(TUNE, "llama-3.2-1b", 16, 2048, 4, 1, "none", True),
    Setting(TITAN, "qwen3-30b-a3b", 3, 4096, 2, 1, "full"),
    Setting(TUNE, "llama-3.1-8b", 12, 4096, 2, 1, "full", True, 8, True),
    Setting(TUNE, "llama-3.1-8b", 6, 8192, 1, 1, "full"),
    Setting(TITAN, "llama-3.1-8b", 6, 8192, 1, 1, "full", True),
    Setting(TITAN, "deepseek-v2-lite", 4, 2048, 4, 1, "full"),
    Setting(TUNE, "mistral-7b", 16, 512, 8, 1, "none", True, 16),
    Setting(TUNE, "qwen2.5-1.5b", 28, 1024, 4, 2),
    Setting(TITAN, "llama-3.1-8b", 6, 2048, 2, 1, "none"),
    Setting(TITAN, "qwen3-30b-a3b", 3, 2048, 2, 2, "full", True),
    Setting(TUNE, "mistral-7b", 16, 8192, 1, 1, "full", False, 64),
    Setting(TUNE, "llama-3.2-1b", 16, 4096, 2, 1, "full", True),
)
TRACED = (0, 1, 2, 5)
"""Those whose step is also recorded by torch.profiler, after it was timed."""
DROPPED, TIMED = 4, 8
LONGEST_SECONDS = 75
"""For one setting, its compilation included."""
MOST_LEFT_BYTES = 256 * 2**20
"""Workspaces of libraries; what else an earlier setting leaves is told."""
MEASURED = ("step_seconds", "allocated_bytes", "reserved_bytes", "static_bytes", "device_bytes")
COLUMNS = [one.name for one in fields(Setting)]
COMPARED = ("step_seconds", "allocated_bytes", "reserved_bytes", "device_bytes")


class Clock:
    """Seconds between ends of steps; the profiler starts after those that are timed."""

    def __init__(self, device: str, trace: Path | None) -> None:
        self.cuda, self.trace = device == "cuda", trace
        self.steps = DROPPED + TIMED + (4 if trace else 0)
        self.step, self.ends, self.found = 0, list[float](), dict[str, Any]()
        self.profiler: Any = None

    def tick(self) -> None:
        """A step has ended."""
        import torch

        self.step += 1
        if self.cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self.profiler:
            self.profiler.step()
        elif self.step >= DROPPED:
            self.ends.append(now)
        if self.step == DROPPED + TIMED:
            self.found["step_seconds"] = float(np.median(np.diff(self.ends)))
            if self.cuda:
                free, total = torch.cuda.mem_get_info()
                self.found["allocated_bytes"] = torch.cuda.max_memory_allocated()
                self.found["reserved_bytes"] = torch.cuda.max_memory_reserved()
                self.found["static_bytes"] = torch.cuda.memory_allocated()
                self.found["device_bytes"] = total - free
            if self.trace:
                schedule = torch.profiler.schedule(wait=0, warmup=2, active=2, repeat=1)
                self.profiler = torch.profiler.profile(schedule=schedule)
                self.profiler.start()
        if self.profiler and self.step == self.steps:
            self.profiler.stop()
            self.profiler.export_chrome_trace(str(self.trace))


def measure(out: Path, limit_seconds: float, device: str = "cuda") -> None:
    """Rows of SETTINGS as out/frameworks.csv, those that failed with empty numbers; settings that
    an earlier call began are passed over."""
    start = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    begun, table = out / "begun.txt", out / "frameworks.csv"
    first = len(begun.read_text("utf-8").splitlines()) if begun.exists() else 0
    with table.open("a", newline="") as file, begun.open("a") as log:
        writer = csv.DictWriter(file, [*COLUMNS, *MEASURED, "said"])
        if not table.stat().st_size:
            writer.writeheader()
        for number, setting in list(enumerate(SETTINGS))[first:]:
            if time.monotonic() - start > limit_seconds:
                break
            print(number, file=log, flush=True)
            trace = out / f"trace{number}.json.gz" if number in TRACED else None
            row = asdict(setting) | _measured(setting, trace, out, device)
            writer.writerow(row)
            file.flush()
            print(f"{time.monotonic() - start:6.1f} s", row, flush=True)


def _measured(setting: Setting, trace: Path | None, out: Path, device: str) -> dict[str, Any]:
    """Median seconds of a step, peaks, and bytes between steps."""
    import gc

    import torch

    clock, trained = Clock(device, trace), _tuned if setting.framework == TUNE else _pretrained
    said = "not on a GPU"
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        said = f"{before} bytes of earlier settings; " if before > MOST_LEFT_BYTES else ""
    try:
        with _alarm(LONGEST_SECONDS):
            trained(setting, clock, out, device)
    except Exception as error:  # whatever a framework raises is of one setting
        said += " ".join(f"{type(error).__name__}: {error}".split())[:300]
    torch._dynamo.reset()
    gc.enable()  # torchtitan's trainer turns it off
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return clock.found | {"said": said}


@contextmanager
def _alarm(seconds: int) -> Any:
    """Raise TimeoutError in a block that takes longer."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def _tokens(setting: Setting, steps: int, length: int) -> Any:
    """Random tokens [sample, position] of a run."""
    samples = setting.micro_batch * setting.micro_batches * steps
    vocabulary = MODELS[setting.model]["vocab"]
    return np.random.default_rng(0).integers(0, vocabulary, (samples, length), dtype=np.int64)


def _tuned(setting: Setting, clock: Clock, out: Path, device: str) -> None:
    """torchtune's recipes full_finetune_single_device and lora_finetune_single_device."""
    import torch
    from torchtune import modules, training, utils
    from torchtune.modules.loss import CEWithChunkedOutputLoss
    from torchtune.modules.peft import get_adapter_params, set_trainable_params
    from torchtune.training.lr_schedulers import get_cosine_schedule_with_warmup, get_lr
    from torchtune.training.metric_logging import DiskLogger

    place = torch.device(device)
    with training.set_default_dtype(torch.bfloat16), place:
        model = _tuned_model(setting)
    if setting.lora_rank:
        set_trainable_params(model, get_adapter_params(model))
    if setting.compiled:
        training.compile_model(model, verbose=False)
    if setting.recompute == "full":
        layers = {modules.TransformerSelfAttentionLayer}
        training.set_activation_checkpointing(model, auto_wrap_policy=layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    loss_of = CEWithChunkedOutputLoss()
    if setting.compiled:
        loss_of = training.compile_loss(loss_of, verbose=False)
    model.set_num_output_chunks(loss_of.num_output_chunks)
    schedule = get_cosine_schedule_with_warmup(optimizer, 100, num_training_steps=1000)
    ignored = torch.full((setting.micro_batch, 1), loss_of.ignore_index, device=place)
    logger = DiskLogger(str(out / "unused"))
    running_loss: Any = 0
    num_tokens: Any = 0
    start = time.perf_counter()
    for number, batch in enumerate(_tuned_data(setting, clock.steps), 1):
        utils.batch_to_device(batch, place)
        current = (batch["labels"] != loss_of.ignore_index).sum()
        num_tokens += current
        labels = batch.pop("labels")
        logits = model(**batch)
        labels = torch.hstack((labels[..., 1:], ignored[: labels.shape[0]]))
        loss = loss_of(logits, labels) * current
        del logits
        running_loss += loss
        loss.backward()
        if number % setting.micro_batches:
            continue
        training.scale_grads(model, 1 / num_tokens)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        logged = {
            "loss": running_loss.item() / num_tokens,
            "lr": get_lr(optimizer),
            "tokens_per_second_per_gpu": num_tokens / (time.perf_counter() - start),
        }
        if clock.cuda:
            logged |= training.get_memory_stats(device=place, reset_stats=False)
        logger.log_dict(logged, step=number)
        running_loss = num_tokens = 0
        start = time.perf_counter()
        clock.tick()
    logger.close()


def _tuned_model(setting: Setting) -> Any:
    sizes, (name, further) = MODELS[setting.model], TUNED[setting.model]
    further = dict(further)
    if name in ("llama3_2", "qwen2"):
        further["tie_word_embeddings"] = sizes["tied"]
    if setting.lora_rank:
        further |= {
            "lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
            "apply_lora_to_mlp": True,
            "lora_rank": setting.lora_rank,
            "lora_alpha": 2 * setting.lora_rank,
        }
    builder = getattr(
        import_module(f"torchtune.models.{name}"), "lora_" * bool(setting.lora_rank) + name
    )
    return builder(
        vocab_size=sizes["vocab"],
        num_layers=setting.layers,
        num_heads=sizes["heads"],
        num_kv_heads=sizes["kv_heads"],
        embed_dim=sizes["hidden"],
        intermediate_dim=sizes["ffn_hidden"],
        **further,
    )


def _tuned_data(setting: Setting, steps: int) -> Any:
    """Batches of a recipe's loader."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchtune.data import padded_collate_packed, padded_collate_sft

    tokens, collate = _tokens(setting, steps, setting.sequence), padded_collate_sft
    if setting.packed:
        piece = setting.sequence // 4
        where = {
            "input_pos": torch.arange(setting.sequence) % piece,
            "seq_lens": torch.full((4,), piece),
        }
        lines = map(torch.from_numpy, tokens)
        data = [{"tokens": line, "labels": line, **where} for line in lines]
        collate = padded_collate_packed
    else:
        data = [{"tokens": line, "labels": line} for line in tokens.tolist()]
    return StatefulDataLoader(
        data, batch_size=setting.micro_batch, collate_fn=collate, drop_last=True
    )


def _pretrained(setting: Setting, clock: Clock, out: Path, device: str) -> None:
    """torchtitan's trainer, with data of its own and without the pause at its end."""
    import torch
    from torchtitan.config import JobConfig
    from torchtitan.models.moe import moe
    from torchtitan.protocols.train_spec import get_train_spec, register_train_spec
    from torchtitan.train import Trainer

    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= alone | {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    family, flavor = FLAVORS[setting.model]
    spec = get_train_spec(family)
    cut = deepcopy(spec.model_args[flavor])
    cut.n_layers, cut.attn_type, cut.attn_mask_type = setting.layers, "sdpa", "causal"
    tokens = torch.from_numpy(_tokens(setting, clock.steps, setting.sequence + 1))
    batches = [
        ({"input": some[:, :-1].contiguous()}, some[:, 1:].contiguous())
        for some in tokens.split(setting.micro_batch)
    ]
    name = str(setting)
    register_train_spec(
        name,
        replace(
            spec,
            model_args={"cut": cut},
            build_dataloader_fn=lambda **_: batches,
            build_tokenizer_fn=None,
            state_dict_adapter=None,
        ),
    )
    job = JobConfig()
    job.job.dump_folder = str(out / "unused")
    job.model.name, job.model.flavor = name, "cut"
    job.training.seq_len, job.training.steps = setting.sequence, clock.steps
    job.training.local_batch_size = setting.micro_batch
    job.training.global_batch_size = setting.micro_batch * setting.micro_batches
    job.activation_checkpoint.mode = setting.recompute
    job.activation_checkpoint.selective_ac_option = "op"
    job.compile.enable = setting.compiled
    eager_experts = moe._run_experts_grouped_mm
    try:
        trainer = Trainer(job)
        data = trainer.batch_generator(trainer.dataloader)
        while trainer.should_continue_training():
            trainer.step += 1
            trainer.gc_handler.run(trainer.step)
            trainer.train_step(data)
            clock.tick()
        trainer.close()
    finally:
        moe._run_experts_grouped_mm = eager_experts  # compiled in place


def question_of(setting: Setting) -> Any:
    """The setting as a row of published runs is read, torchtitan's profile changed for torchtune
    and for what is not compiled; or the reason why it has no prediction."""
    from plan3d.simulator.runs.published_runs import PublishedRun
    from plan3d.simulator.runs.run_tasks import questions

    bf16 = {"param_dtype": "bf16", "grad_dtype": "bf16", "optimizer_dtype": "bf16"}
    if setting.framework == TITAN:
        how: dict[str, Any] = {} if setting.compiled else {"loss": "unfused"}
    elif setting.lora_rank:
        how = {"training": "peft", "peft": "lora", "base_format": "bf16", "loss": "chunked"}
        how |= {"lora_rank": setting.lora_rank, "lora_targets": TARGETS}
    else:
        how = {"training": "full", "loss": "chunked", **bf16}
    # torchtitan asks for cuDNN's kernels first (models/attention.py), torchtune for torch's choice.
    kernel = "cudnn" if setting.framework == TITAN else "sdpa"
    cells = {
        **{"stack": setting.framework, "framework": setting.framework, "source": "framework_steps"},
        **{"accelerator": "h100-sxm", "gpus_per_node": 1, "dtype": "bf16"},
        **dict.fromkeys(("gpus", "tp", "pp", "dp", "cp"), 1),
        **{"model": setting.model, "tied": False, **MODELS[setting.model]},
        **{"layers": setting.layers, "sequence": setting.sequence, "packed": setting.packed},
        **{"micro_batch": setting.micro_batch, "recompute": setting.recompute},
        **({"recompute_ops": ("op-sac",)} if setting.recompute == "selective" else {}),
        **{"global_batch": setting.micro_batch * setting.micro_batches},
        **{"attention_kernel": kernel, "compile": setting.compiled, **how},
    }
    return questions([PublishedRun(cells)])[0]


def predicted(setting: Setting, profile: str) -> dict[str, Any]:
    """Seconds of a step with its 80 % interval, and peaks as the meters of MEASURED show them; or
    what is `said` where there is no prediction."""
    from plan3d import Cluster

    asked = question_of(setting)
    if isinstance(asked, str):
        return {"said": asked}
    task = replace(asked.task, cluster=Cluster.profile(profile, gpus=1))
    return predicted_meters(task, asked.plan)


def predict(profile: str) -> None:
    """Predictions of SETTINGS as CSV on stdout."""
    writer = csv.DictWriter(sys.stdout, [*COLUMNS, *COMPARED, "low", "high", "said"])
    writer.writeheader()
    writer.writerows(asdict(setting) | predicted(setting, profile) for setting in SETTINGS)


_READ: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "bool": "True".__eq__}


def setting_of(row: dict[str, str]) -> Setting:
    """What a measured row trained."""
    return Setting(**{one.name: _READ[str(one.type)](row[one.name]) for one in fields(Setting)})


def report(path: Path, profile: str) -> None:
    """Predicted over measured, row by row, and the median error of each framework."""
    ratios: dict[str, list[dict[str, float]]] = {}
    for row in rows_of(path):
        asked = " ".join(row[name] for name in COLUMNS)
        if not row["step_seconds"]:
            print(asked, "not timed:", row["said"])
            continue
        setting = setting_of(row)
        found = predicted(setting, profile)
        if "said" in found:
            print(f"{float(row['step_seconds']):7.4f} s  {asked} not predicted:", found["said"])
            continue
        ratio = {name: found[name] / float(row[name]) for name in COMPARED if row[name]}
        told = "  ".join(f"{name.split('_')[0]} {of:.3f}" for name, of in ratio.items())
        print(f"{float(row['step_seconds']):7.4f} s  {told}  {asked}")
        ratio["held"] = float(found["low"] <= float(row["step_seconds"]) <= found["high"])
        kind = setting.framework + (" compiled" if setting.compiled else " eager")
        ratios.setdefault(kind, []).append(ratio)
    for kind, some in ratios.items():
        held = 100 * np.mean([one.pop("held") for one in some])
        print(f"{kind}: {len(some)} rows, 80 % interval holds {held:.0f} %")
        for name in some[0]:
            off = 100 * np.abs(np.array([one[name] for one in some]) - 1)
            print(f"{kind}: {name} median {np.median(off):.1f} %, largest {off.max():.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "predict", "report"))
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=240)
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
