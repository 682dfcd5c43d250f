"""What trainers print of their steps: one row of patterns for each, and the file it is from."""

from __future__ import annotations

from dataclasses import dataclass, replace

MB, GB, MIB, GIB = 1e6, 1e9, 2.0**20, 2.0**30
DIGITS = r"(\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?)"
NUMBER = DIGITS + r"([KMGBT]?)\b"
"""A number with a suffix of thousands, which nanotron prints: 2.31K."""
VALUE = DIGITS + "()"
"""A number without such a suffix, whatever follows it: the 9.63 of 9.63s/it."""
KEY = r"['\"]:\s*['\"]?"
"""Between a key and its value, in a dict that Python printed or in JSON."""
CLOCK = r"((?:\d+ days?, )?(?:\d+:)+\d\d)"


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """How one trainer prints. Patterns are regular expressions within a line; '' where it does
    not print that. A number is two groups: its digits and its suffix."""

    name: str
    signs: tuple[str, ...]
    """Texts of which one is in each of its logs."""
    iteration: str
    """The number of the last iteration that a line is of: one group."""
    iteration_of_block: bool = False
    """Whether the number stands on a line of its own above the values; else a sign is on each line
    that is read."""
    redrawn: bool = False
    """Whether the line of an iteration may be printed several times."""
    seconds: tuple[str, ...] = ()
    """Parts of the time of a step, all on one line: their sum is the step."""
    step: str = ""
    """The number of the step of which a line is the last micro-batch: one group; '' where no line
    is of a micro-batch."""
    seconds_scale: float = 1.0
    steps_per_second: str = ""
    means_since_start: bool = False
    """Whether seconds and steps per second are means over the run so far."""
    whole_run: str = ""
    """Steps per second of a run that ended, its first steps included."""
    runtime: str = ""
    """Seconds of such a run."""
    run_samples_per_second: str = ""
    """Samples per second of all GPUs over such a run, without its first steps."""
    tokens_per_gpu: str = ""
    """Tokens per second of a GPU."""
    tokens_per_second: str = ""
    """Tokens per second of all GPUs."""
    samples_per_second: str = ""
    clock: str = ""
    """Time since the start, in whole seconds: days, hours, minutes, seconds in one group."""
    total: str = ""
    """Iterations of a progress bar: of several bars that of the training is read."""
    stated_total: str = ""
    """Iterations of the training, where it says so in a line of its own: one group."""
    tokens: str = ""
    """Tokens of a step."""
    batch: str = ""
    """Sequences of a step."""
    consumed: str = ""
    """Sequences since the start: one group."""
    sequence: str = ""
    gpus: str = ""
    allocated: tuple[tuple[str, float], ...] = ()
    """Peaks of allocated memory: patterns and their bytes."""
    reserved: tuple[tuple[str, float], ...] = ()
    """Peaks that the allocator reserved."""


_ARGUMENT = r" \.+\s*"
"""Between an argument and its value where Megatron-LM and DeepSpeed print all."""
_BAR = r"(?:^|\b[Tt]rain(?:ing)?|\b[Ss]teps?|\bEpoch +\d+|Loss: [\d.]+)[: ]*\d+%\|[^|]{0,400}\|\s*"
"""A progress bar of tqdm until its count. Bars with other words before them are of loading."""
_COUNT = r"\d+/\d+ \[[^\]]{0,40}, *"

# Megatron-LM: megatron/training/training.py, training_log, and utils.py, report_memory (MB of 2^20
# bytes; `cached` until 2020). Megatron-Bridge and Megatron-DeepSpeed print the same line (a fork of
# it with `=` and `_`), Primus a second number, the mean, behind a slash.
_MEGATRON = Trainer(
    name="Megatron-LM",
    signs=("elapsed time per iteration (ms):", "elapsed_time_per_iteration_ms="),
    iteration=r"iteration=?\s+(\d+)/",
    seconds=(rf"elapsed[ _]time[ _]per[ _]iteration[ _]\(?ms\)?[:=]\s*{VALUE}",),
    seconds_scale=1e-3,
    tokens_per_gpu=r"tokens(?: per GPU \(tokens/s/GPU\)|/s/GPU inst/harmonic mean"
    rf"| per gpu per second \(tgs\)):\s*{VALUE}",
    batch=rf"global[ _]batch[ _]size(?:[:=]|{_ARGUMENT})\s*{VALUE}",
    consumed=r"consumed[ _]samples[:=]\s*(\d+)\b",
    sequence=rf"(?:\bseq_length{_ARGUMENT}|actual[ _]seqlen[:=]\s*){VALUE}",
    # Of data-parallel ranks where DeepSpeed prints it: "[config.py:904:print]   world_size ... 1".
    gpus=rf"(?<!\]   )world[ _]size(?::|{_ARGUMENT})\s*{VALUE}",
    allocated=((rf"\| max allocated: {VALUE}", MIB),),
    reserved=((rf"\| max (?:reserved|cached): {VALUE}", MIB),),
)
# Megatron-DeepSpeed of BigScience: megatron/training.py, training_log.
_MEGATRON_DEEPSPEED = replace(
    _MEGATRON,
    name="Megatron-DeepSpeed",
    signs=("elapsed time per iteration (s):",),
    seconds=(rf"elapsed time per iteration \(s\): {VALUE}",),
    seconds_scale=1.0,
)

TRAINERS = (
    # nanotron: src/nanotron/trainer.py, train_step_logs; human_format counts in thousands.
    Trainer(
        name="nanotron",
        signs=("time_per_iteration_ms: ",),
        iteration=r"iteration: (\d+)",
        seconds=(rf"time_per_iteration_ms: {NUMBER}",),
        seconds_scale=1e-3,
        tokens_per_gpu=rf"tokens_per_sec_per_gpu: {NUMBER}",
        batch=rf"global_batch_size: {NUMBER}",
        allocated=((rf"Peak allocated:? {VALUE}\s*MiB", MIB),),
        reserved=(
            (rf"Peak reserved:? {VALUE}\s*MiB", MIB),
            (rf"cuda_max_memory_reserved: {NUMBER}", 1.0),
        ),
    ),
    _MEGATRON,
    _MEGATRON_DEEPSPEED,
    # MLPerf Training: mlperf_logging/mllog; the callbacks of NeMo print a line a step, whose number
    # counts tokens, others the mean between evaluations, whose number counts samples.
    Trainer(
        name="MLPerf",
        signs=('"key": "tracked_stats"',),
        iteration=r"\{\"throughput\".{0,300}\"step\": (\d+)",
        seconds=(rf"train_step_timing in s{KEY}{VALUE}",),
        samples_per_second=rf"\"throughput{KEY}{VALUE}",
        batch=rf"\"global_batch_size\", \"value{KEY}{VALUE}",
        sequence=rf"\"max_sequence_length\", \"value{KEY}{VALUE}",
    ),
    # NeMo 1: metrics in the progress bar of Lightning; NeMo 2 and the benchmarks of DGX Cloud:
    # nemo/lightning/pytorch/callbacks/progress_printer.py.
    Trainer(
        name="NeMo",
        signs=("train_step_timing in s",),
        iteration=r"(?:iteration |\|\s*|: )(\d+)(?:/\d|it \[)",
        redrawn=True,
        seconds=(rf"train_step_timing in s[=:]\s*{VALUE}",),
        batch=rf"global_batch_size[=:]\s*{VALUE}",
        consumed=r"consumed_samples[=:]\s*(\d+)(?:\.0+)?(?![\d.eE])",
    ),
    # torchtitan: torchtitan/components/metrics.py (`wps` in 2024).
    Trainer(
        name="torchtitan",
        signs=(" tps: ", " wps: "),
        iteration=r"step:\s*(\d+)",
        tokens_per_gpu=rf"\b(?:tps|wps):\s*{NUMBER}",
        batch=rf"global batch size {NUMBER}",
        sequence=rf"sequence length {NUMBER}",
        reserved=((rf"\bmemory:\s*{VALUE}\s*GiB", GIB),),
    ),
    # DeepSpeed: deepspeed/runtime/pipe/engine.py, train_batch.
    Trainer(
        name="DeepSpeed (pipeline)",
        signs=("iter time (s):",),
        iteration=r"steps: (\d+)",
        seconds=(rf"iter time \(s\): {VALUE}",),
        samples_per_second=rf"samples/sec: {VALUE}",
        batch=rf"train_batch_size{_ARGUMENT}{VALUE}",
        allocated=((rf"Max_MA {VALUE}\s*GB", GIB),),
        reserved=((rf"Max_CA {VALUE}\s*GB", GIB),),
    ),
    # DeepSpeed: deepspeed/utils/timer.py, ThroughputTimer (a mean without Curr until
    # 2022); GB of 2^30 bytes.
    Trainer(
        name="DeepSpeed",
        signs=("SamplesPerSec=",),
        iteration=r"(?:global_step=|\] \d+/)(\d+)",
        samples_per_second=rf"(?<!Avg)SamplesPerSec={NUMBER}",
        batch=rf"train_batch_size{_ARGUMENT}{VALUE}",
        gpus=rf"world_size{_ARGUMENT}{VALUE}",
        allocated=(
            (rf"MaxMemAllocated={VALUE}\s*GB", GIB),
            (rf"Max_MA {VALUE}\s*GB", GIB),
        ),
        reserved=((rf"Max_CA {VALUE}\s*GB", GIB),),
    ),
    # DeepSpeed with wall_clock_breakdown: deepspeed/runtime/engine.py, EngineTimers; the timers
    # of a step, which add up its micro-batches.
    Trainer(
        name="DeepSpeed (timers)",
        signs=("| bwd_inner: ", "| backward_inner: "),
        iteration=r"global_step=(\d+)",
        seconds=(
            rf"\| (?:fwd|forward): {VALUE}",
            rf"\| (?:bwd|backward): {VALUE}",
            rf"\| step: {VALUE}",
        ),
        seconds_scale=1e-3,
        batch=rf"train_batch_size{_ARGUMENT}{VALUE}",
        gpus=rf"world_size{_ARGUMENT}{VALUE}",
        allocated=((rf"Max_MA {VALUE}\s*GB", GIB),),
        reserved=((rf"Max_CA {VALUE}\s*GB", GIB),),
    ),
    # llm-foundry: composer/loggers/console_logger.py, callbacks/speed_monitor.py and
    # memory_monitor.py (GB of 10^9 bytes); its YAML, which it prints, names the sizes.
    Trainer(
        name="llm-foundry",
        signs=("throughput/batches_per_sec",),
        iteration=r"(?:\[batch=|\btime/batch: )(\d+)",
        iteration_of_block=True,
        steps_per_second=rf"throughput/batches_per_sec: {VALUE}",
        tokens_per_gpu=rf"throughput/device/tokens_per_sec: {VALUE}",
        batch=rf"\bglobal_train_batch_size: {VALUE}",
        sequence=rf"\bmax_seq_len: {VALUE}",
        allocated=((rf"memory/peak_allocated_mem: {VALUE}", GB),),
        reserved=((rf"memory/peak_reserved_mem: {VALUE}", GB),),
    ),
    # OLMo-core: src/olmo_core/train/callbacks/console_logger.py, speed_monitor.py and
    # gpu_memory_monitor.py; OLMo: olmo/train.py.
    Trainer(
        name="OLMo-core",
        signs=("throughput/device/BPS=", "throughput/device/batches_per_second="),
        iteration=r"\[step=(\d+)/",
        iteration_of_block=True,
        steps_per_second=rf"throughput/device/(?:BPS|batches_per_second)={VALUE}",
        tokens_per_gpu=rf"throughput/device/(?:TPS|tokens_per_second)={VALUE}",
        allocated=((rf"System/Peak GPU Memory \(MB\)={VALUE}", MB),),
        reserved=((rf"GPU reserved mem \(GiB\)={VALUE}", GIB),),
    ),
    # MaxText: src/MaxText/metric_logger.py, log_metrics, and pyconfig.py.
    Trainer(
        name="MaxText",
        signs=("completed step: ",),
        iteration=r"completed step: (\d+)",
        seconds=(rf"completed step: \d+, seconds: {VALUE}",),
        tokens_per_gpu=rf"Tokens/s/device: {VALUE}",
        batch=rf"Config param global_batch_size_to_train_on: {VALUE}",
        sequence=rf"Config param max_target_length: {VALUE}",
    ),
    # torchtune: torchtune/training/metric_logging.py and memory.py, get_memory_stats (GiB).
    Trainer(
        name="torchtune",
        signs=("tokens_per_second_per_gpu:",),
        iteration=r"\bStep (\d+) \|",
        tokens_per_gpu=rf"tokens_per_second_per_gpu:{VALUE}",
        allocated=((rf"peak_memory_alloc:{VALUE}", GIB),),
        reserved=((rf"peak_memory_reserved:{VALUE}", GIB),),
    ),
    # NeMo AutoModel: nemo_automodel/recipes/llm/train_ft.py, log_train_metrics; its JSON lines.
    Trainer(
        name="NeMo AutoModel",
        signs=('"tps_per_gpu": ', "/gpu) | num_label_tokens "),
        iteration=rf"(?:\bstep |\"step{KEY})(\d+)",
        tokens_per_gpu=rf"(?:\btps [\d.]+\(|\"tps_per_gpu{KEY}){VALUE}",
        tokens=rf"\"num_tokens_per_step{KEY}{VALUE}",
        allocated=((rf"(?:\bmem |\"mem{KEY}){VALUE}", GIB),),
    ),
    # metaseq and fairseq: metaseq/logging/progress_bar/json_progress_bar.py and trainer.py; wpb
    # are tokens of a step, wps tokens a second.
    Trainer(
        name="metaseq",
        signs=('"wpb": ',),
        iteration=rf"\"num_updates{KEY}(\d+)",
        tokens_per_second=rf"\"wps{KEY}{VALUE}",
        tokens=rf"\"wpb{KEY}{VALUE}",
        batch=rf"\"bsz{KEY}{VALUE}",
    ),
    # Levanter: src/levanter/callbacks/_metrics.py; progress by tqdm-loggable, whose rates below 10
    # a second have two digits at most: there the clock is better.
    Trainer(
        name="Levanter",
        signs=("Progress on:train", "throughput/duration"),
        iteration=r"(?:Progress on:train (?=\d+(?:\.0*)?it/)|global_step['\"]?[:=]\s*)(\d+)",
        redrawn=True,
        seconds=(
            rf"(?:Progress on:train .{{0,80}}rate:(?=[\d.,]+s/it)|throughput/duration['\"]?[:=]\s*)"
            rf"{VALUE}",
        ),
        steps_per_second=rf"Progress on:train .{{0,80}}rate:(?=\d\d[\d.,]*it/s){VALUE}",
        clock=rf"Progress on:train .{{0,160}}elapsed:{CLOCK}",
    ),
    # LLaMA-Factory: src/llamafactory/train/callbacks.py, LogCallback (trainer_log.jsonl).
    Trainer(
        name="LLaMA-Factory",
        signs=('"current_steps": ',),
        iteration=rf"\"current_steps{KEY}(\d+)",
        redrawn=True,
        tokens_per_second=rf"\"throughput{KEY}{VALUE}",
        clock=rf"\"elapsed_time{KEY}{CLOCK}",
        allocated=((rf"\"vram_allocated{KEY}{VALUE}", GIB),),
        reserved=((rf"\"vram_reserved{KEY}{VALUE}", GIB),),
    ),
    # ms-swift: swift/trainers (memory is max_memory_reserved), also Megatron-SWIFT.
    Trainer(
        name="ms-swift",
        signs=("train_speed(",),
        iteration=rf"(?:global_step/max_steps\]?|iteration){KEY}(\d+)",
        seconds=(rf"train_speed\(s/it\){KEY}{VALUE}",),
        steps_per_second=rf"train_speed\(iter/s\){KEY}{VALUE}",
        means_since_start=True,
        batch=rf"Total train batch size [^=]{{0,80}}= {VALUE}",
        reserved=((rf"memory\(GiB\){KEY}{VALUE}", GIB),),
    ),
    # nanoGPT: train.py, iter; llm.c: train_gpt2.cu.
    Trainer(
        name="nanoGPT",
        signs=("ms, mfu ",),
        iteration=r"\biter (\d+):",
        seconds=(rf"\btime {VALUE}ms, mfu ",),
        seconds_scale=1e-3,
    ),
    Trainer(
        name="llm.c",
        signs=(" bf16 MFU | ", " tok/s)"),
        iteration=r"\bstep +(\d+)/\d+ \|",
        seconds=(rf"\| {VALUE} ms \|",),
        seconds_scale=1e-3,
        tokens_per_second=rf"\| {VALUE} tok/s",
    ),
    # LitGPT: litgpt/pretrain.py and finetune/*.py, fit; a line is of a micro-batch.
    Trainer(
        name="LitGPT",
        signs=(" | iter time: ",),
        iteration=r"\| iter (\d+) step \d+ \|",
        step=r"\| iter \d+ step (\d+) \|.{0,200} ms \(step\)",
        seconds=(rf"\| iter time: {VALUE} ms",),
        seconds_scale=1e-3,
        batch=rf"\bglobal_batch_size={VALUE}",
        sequence=rf"\bmax_seq_length={VALUE}",
        allocated=((rf"\| - Memory Used +: {VALUE} GB", GB),),
    ),
    # InternEvo: internlm/train/pipeline.py, record_current_batch_training_metrics.
    Trainer(
        name="InternEvo",
        signs=("tgs (tokens/gpu/second)=",),
        iteration=r"\bstep=(\d+),",
        tokens_per_gpu=rf"tgs \(tokens/gpu/second\)={VALUE}",
    ),
    # The FSDP example of awsome-distributed-training: 3.test_cases/pytorch/FSDP/src/train.py.
    Trainer(
        name="FSDP on AWS",
        signs=("samples/sec, lr: ",),
        iteration=r"\bBatch (\d+) ",
        samples_per_second=rf"\bSpeed: {VALUE} samples/sec",
    ),
    # ColossalAI: examples/language/performance_evaluator.py (whose first steps are left out),
    # llama/benchmark.py (MB of 2^20 bytes) and gpt/gemini/train_gpt_demo.py.
    Trainer(
        name="ColossalAI",
        signs=("s, TFLOPS: ", "avg_throughput: "),
        iteration=r"\[(\d+)/\d+\]",
        seconds=(rf"\bStep time: {VALUE}s, TFLOPS: ",),
        run_samples_per_second=rf"\bavg_throughput: {VALUE}",
        allocated=((rf"(?i)\bmax (?:CUDA|device) memory(?: usage)?: {VALUE} MB", MIB),),
    ),
    # Exports of Weights & Biases and TensorBoard, as histories.py makes lines of them.
    Trainer(
        name="Weights & Biases and TensorBoard (CSV)",
        signs=("history: step=",),
        iteration=r"history: step=(\d+)",
        seconds=(rf"\bseconds={VALUE}",),
        steps_per_second=rf"\bsteps_per_second={VALUE}",
        tokens_per_gpu=rf"\btokens_per_gpu={VALUE}",
        reserved=((rf"reserved_gib={VALUE}", GIB), (rf"reserved_gb={VALUE}", GB)),
    ),
    # Progress bars of tqdm: of Hugging Face's Trainer (src/transformers/trainer_callback.py),
    # accelerate, Lightning, Composer; axolotl adds peaks in GiB to the Trainer's dicts.
    Trainer(
        name="Hugging Face's Trainer",
        signs=("s/it", "it/s", "s/ba", "ba/s", "train_steps_per_second", "'loss': ", '"loss": '),
        iteration=rf"{_BAR}(\d+)/\d+ \[",
        redrawn=True,
        seconds=(rf"{_BAR}{_COUNT}{VALUE}s/(?:it|ba)",),
        steps_per_second=rf"{_BAR}{_COUNT}{VALUE}(?:it|ba)/s",
        whole_run=rf"train_steps_per_second{KEY}{VALUE}",
        runtime=rf"train_runtime{KEY}{VALUE}",
        total=rf"{_BAR}\d+/(\d+) \[",
        stated_total=r"Total optimization steps = ([\d,]+)",
        batch=rf"Total train batch size [^=]{{0,80}}= {VALUE}",
        allocated=((rf"(?i)memory/max_\w*alloc\w*(?: ?\(gib\))?{KEY}{VALUE}", GIB),),
        reserved=((rf"(?i)memory/device_\w*reserved(?: ?\(gib\))?{KEY}{VALUE}", GIB),),
    ),
)
"""In order: of the trainers whose signs are in a text, the first whose lines say a step."""
OTHER_WORK = (
    ("|Generate time=", "samples of generation and training (RLHF)"),
    ("perf/rollout_time", "samples of generation and training (RL)"),
    ("timing_s/gen", "samples of generation and training (RL)"),
    ("completions/mean_length", "samples of generation and training (RL)"),
    ("rewards/chosen", "preferences, beside a second model"),
    ("***** Evaluating rewards", "preferences or rewards"),
)
"""Texts of logs whose steps are of more than training, and of what.

Source: DeepSpeed-Chat, dschat/utils/perf.py and step3_rlhf_finetuning/main.py; slime,
slime/observability/rollout_metrics.py; verl, trainer/ppo/metric_utils.py; TRL, DPOTrainer and
GRPOTrainer; DeepSpeed-Chat, step2_reward_model_finetuning/main.py."""
EVALUATIONS = ("***** Running Evaluation *****", "***** Running Prediction *****")
"""Lines before the progress bars of evaluations, from transformers, Trainer.evaluation_loop; in
small letters until 2020."""
TRAININGS = ("***** Running training", "'loss': ", '"loss": ', "train_runtime")
"""Of which one is in the log of a training by the Trainer."""
NAMES = ", ".join(row.name for row in TRAINERS if not row.name.startswith("DeepSpeed "))


def trainers_of(text: str) -> list[Trainer]:
    """The trainers of whose logs a text, without colours, has a sign."""
    return [row for row in TRAINERS if any(sign in text for sign in row.signs)]
