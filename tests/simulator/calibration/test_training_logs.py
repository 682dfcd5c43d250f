"""Every trainer's log says its step, its sizes and its peak; small logs in the form of each."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.readers.files import Hints, read
from plan3d.simulator.calibration.readers.trainers import GB, GIB, MIB, NAMES
from plan3d.simulator.calibration.readers.training_logs import (
    RunSizes,
    outcome,
    read_log,
    stated_batch,
)

STEPS = [(i, 9.0 if i <= 10 else 2.1) for i in range(1, 41)]
"""Iterations and their seconds: ten of warm-up, thirty of 2.1 s."""
SIZES = RunSizes(8, 2048, 64)
RATE = 64 * 2048 / 8
"""Tokens of a step of a GPU."""
Line = Callable[[int, float], str]


def log(line: Line, head: str = "", every: int = 1) -> str:
    return head + "".join(line(i, v) + "\n" for i, v in STEPS if i % every == 0)


def elapsed(i: int) -> int:
    """Seconds of a run until its iteration."""
    return round(sum(v for n, v in STEPS if n <= i))


def clock(i: int) -> str:
    hours, rest = divmod(elapsed(i), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


def megatron(unit: str) -> Line:
    """megatron/training/training.py of Megatron-LM; seconds: Megatron-DeepSpeed."""
    scale = 1e3 if unit == "ms" else 1.0
    return lambda i, v: (
        f" iteration {i:8d}/     100 | consumed samples: {64 * i:12d} | elapsed time per iteration "
        f"({unit}): {v * scale:.2f} | learning rate: 6.000E-05 | global batch size:    64 | lm loss"
    )


def megatron_2019(i: int, v: float) -> str:
    """Megatron-LM's pretrain_gpt2.py of 2019."""
    return f" iteration {i:8d}/     100 | elapsed time per iteration (ms): {v * 1e3:.1f} | lm loss"


def primus(i: int, v: float) -> str:
    """primus/modules/trainer/megatron/trainer.py: the second number is a mean."""
    return (
        f"[20260102 09:12:08][rank-7/8][INFO ] [trainer.py:2560] :  iteration {i:8d}/     100 | "
        f"consumed samples: {64 * i} | elapsed time per iteration (ms): {v * 1e3:.1f}/5000.0 | hip "
        f"mem usage/free/total/usage_ratio: 63.94GB/224.04GB/287.98GB/22.20% | tokens per GPU "
        f"(tokens/s/GPU): {RATE / v:.1f}/9.0 | global batch size:    64 | lm loss: 6.5E+00 |"
    )


def megatron_fork(i: int, v: float) -> str:
    """argonne-lcf/Megatron-DeepSpeed: megatron/training_log.py."""
    return (
        f"[2026-01-02][INFO][training_log:661] -  iteration= {i:7d}/     100 | consumed_samples="
        f"{64 * i:12d} | elapsed_time_per_iteration_ms={v * 1e3:.1f} | global_batch_size=   64 |"
    )


def nemo_1(i: int, v: float) -> str:
    """NeMo 1: Lightning's progress bar, with metrics of megatron_gpt_model.py."""
    return (
        f"\rEpoch 0: :  47%|████▋     | {i}/100 [06:19<07:13, reduced_train_loss=11.50, "
        f"global_step={i - 1:.3f}, consumed_samples={64.0 * i}, train_step_timing in s={v:.3g}]"
    )


def nemo_2(i: int, v: float) -> str:
    """NeMo 2: nemo/lightning/pytorch/callbacks/progress_printer.py."""
    return (
        f"Training epoch 0, iteration {i - 1}/99 | lr: 1.499e-07 | global_batch_size: 64 | "
        f"global_step: {i - 1} | reduced_train_loss: 12.71 | train_step_timing in s: {v} | "
        f"consumed_samples: {64 * i}"
    )


def nanotron(i: int, v: float) -> str:
    """nanotron: src/nanotron/trainer.py, train_step_logs."""
    return (
        f"[INFO|DP=0|PP=0|TP=0]: iteration: {i} / 100 | consumed_tokens: 1.05M | "
        f"elapsed_time_per_iteration_ms: {v:.2f}K | tokens_per_sec_per_gpu: {RATE / v / 1e3:.2f}K |"
        " global_batch_size: 64 | cuda_memory_allocated: 13.8G | cuda_max_memory_reserved: 45.1G"
    )


def titan_2024(i: int, v: float) -> str:
    """torchtitan's train.py of 2024: words per second."""
    return f"step: {i:2d}  loss: 7.6  memory: 66.50GiB(70.00%)  wps: {RATE / v:,.0f}  mfu: 40.00%"


def deepspeed_pipeline(i: int, v: float) -> str:
    """deepspeed/runtime/pipe/engine.py, train_batch."""
    return f"steps: {i} loss: 3.1234 iter time (s): {v:.3f} samples/sec: {64 / v:.3f}"


def deepspeed_2021(i: int, v: float) -> str:
    """deepspeed/utils/timer.py of 2021."""
    return f"[INFO] [timer.py:157:stop] 0/{i}, SamplesPerSec={64 / v}"


def deepspeed_timers(i: int, v: float) -> str:
    """deepspeed/utils/timer.py with wall_clock_breakdown."""
    parts = [v * share * 1e3 for share in (0.3, 0.6, 0.5, 0.1, 0.1)]
    return (
        "[INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd_microstep: 1.00 | bwd_microstep: "
        "1.00 | bwd_inner_microstep: 1.00 | bwd_allreduce_microstep: 1.00 | step_microstep: 1.00\n"
        "[INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: {:.2f} | bwd: {:.2f} | "
        "bwd_inner: {:.2f} | bwd_allreduce: {:.2f} | step: {:.2f}".format(*parts)
    )


def swift(i: int, v: float) -> str:
    """swift/trainers/mixin.py: the speed is the mean since the start."""
    speed = i / sum(seconds for n, seconds in STEPS if n <= i)
    return (
        f"{{'loss': 1.23, 'learning_rate': 1e-05, 'memory(GiB)': 58.3, 'train_speed(iter/s)': "
        f"{speed:.6f}, 'epoch': 0.1, 'global_step/max_steps': '{i}/834'}}"
    )


def megatron_swift(i: int, v: float) -> str:
    """swift/megatron/trainers: logging.jsonl, seconds of an iteration since the start."""
    mean = sum(seconds for n, seconds in STEPS if n <= i) / i
    return json.dumps(
        {"loss": 1.2, "iteration": f"{i}/834", "memory(GiB)": 58.3, "train_speed(s/it)": mean}
    )


def tqdm(i: int, v: float) -> str:
    """src/transformers/trainer_callback.py: the bar of the Trainer, beside other bars."""
    return (
        f"\r {i}%|▏         | {i}/834 [{clock(i)}<2:12:00,  {v:.2f}s/it]\n"
        f"{{'loss': '1.23', 'grad_norm': '0.5', 'learning_rate': '1e-05', 'epoch': '0.1'}}\n"
        f"\r 50%|█████     | 4/8 [00:05<00:05,  1.30it/s]\n"
        f"\rLoading shards: 50%|█████     | 1{i}/2000 [00:05<00:05, 130.00it/s]"
    )


def axolotl(i: int, v: float) -> str:
    """axolotl: peaks of src/axolotl/utils/callbacks in the Trainer's dict."""
    return (
        f"{i}%|▏ | {i}/834 [{clock(i)}<2:12:00, {v:.2f}s/it]\n{{'loss': 1.23, 'memory/max_allocated"
        " (GiB)': 50.0, 'memory/device_reserved (GiB)': 61.5, 'epoch': 0.1}"
    )


def llama_factory(i: int, v: float) -> str:
    """src/llamafactory/train/callbacks.py, LogCallback: trainer_log.jsonl."""
    record = {"current_steps": i, "total_steps": 834, "loss": 1.2, "elapsed_time": clock(i)}
    return json.dumps(record | {"throughput": 9.5, "total_tokens": 99, "vram_reserved": 58.3})


def foundry(i: int, v: float) -> str:
    """composer/loggers/console_logger.py, speed_monitor.py, memory_monitor.py."""
    return (
        f"[batch={i}/1000]:\n\t Train time/batch: {i - 1}\n\t Train throughput/batches_per_sec: "
        f"{1 / v:.4f}\n\t Train throughput/device/tokens_per_sec: {RATE / v:.4f}\n\t Train "
        "memory/peak_reserved_mem: 63.1000"
    )


def composer_bar(i: int, v: float) -> str:
    """composer/loggers/progress_bar_logger.py: batches are `ba`."""
    return (
        f"\rtrain          Epoch   0:   1%|▏   | {i}/1251 [{clock(i)}<1:16:18,  {v:.2f}s/ba, loss/"
        f"train/total=2.9341]\reval           Epoch   0:   9%|▏   | {i}/49 [01:43<00:00,  1.95s/ba]"
    )


def olmo_core(i: int, v: float) -> str:
    """src/olmo_core/train/callbacks/console_logger.py."""
    return (
        f"2026-01-02 olmo_core.train INFO [step={i}/1000,epoch=1,eta=1:00:00]\n    train/CE "
        f"loss=11.1\n    gpu_memory/GPU reserved mem (GiB)=61.5\n    throughput/device/TPS="
        f"{RATE / v:,.0f}\n    throughput/device/TPS (actual avg)=1\n    throughput/device/BPS="
        f"{1 / v:.4f}\n    throughput/device/BPS (actual avg)=1.000"
    )


def maxtext(i: int, v: float) -> str:
    """src/MaxText/metric_logger.py, log_metrics."""
    return (
        f"completed step: {i - 1}, seconds: {v:.3f}, TFLOP/s/device: 451.2, Tokens/s/device: "
        f"{RATE / v:.3f}, total_weights: 393216, loss: 6.765"
    )


def torchtune(i: int, v: float) -> str:
    """torchtune/training/metric_logging.py, StdoutLogger."""
    return (
        f"Step {i} | loss:1.5 lr:2e-05 tokens_per_second_per_gpu:{RATE / v} "
        "peak_memory_active:40.5 peak_memory_alloc:40.0 peak_memory_reserved:61.5 "
    )


def automodel(i: int, v: float) -> str:
    """nemo_automodel/recipes/llm/train_ft.py, log_train_metrics."""
    return (
        f"step {i} | epoch 0 | loss 1.5000 | grad_norm 0.9000 | lr 1.00e-05 | mem 40.50 GiB | "
        f"tps {64 * RATE / v:.2f}({RATE / v:.2f}/gpu) | num_label_tokens 267"
    )


def nano_gpt(i: int, v: float) -> str:
    """nanoGPT, train.py."""
    return f"iter {i}: loss 3.1234, time {1e3 * v:.2f}ms, mfu 38.12%"


def llm_c(i: int, v: float) -> str:
    """llm.c, train_gpt2.cu."""
    rate = f"{1e3 * v:.2f} ms | 60.1% bf16 MFU | {64 * 2048 / v:.0f} tok/s"
    return f"step {i:4d}/19560 | loss 7.1 (+1.2z)| norm 1.1 (+0.1z)| lr 6.00e-04 | {rate}"


def litgpt(i: int, v: float) -> str:
    """litgpt/pretrain.py: two micro-batches a step."""
    form = "Epoch 1 | iter {} step {} | loss train: 2.310, val: n/a | iter time: {:.2f} ms{}"
    first = form.format(2 * i - 1, i - 1, 400 * v, "") + " remaining time: 1:02:03\n"
    return first + form.format(2 * i, i, 600 * v, " (step)") + " remaining time: 1:02:03"


def colossal(i: int, v: float) -> str:
    """examples/language/gpt/gemini/train_gpt_demo.py of ColossalAI."""
    return f"[{i}/40] Loss:9.310, Step time: {v:.3f}s, TFLOPS: 61.2, FWD time: 0.4s, BWD time: 1.2s"


def metaseq(i: int, v: float) -> str:
    """metaseq/logging/progress_bar/json_progress_bar.py."""
    stats = {"update": 0.1, "wps": f"{64 * 2048 / v:.1f}", "ups": "0.48", "wpb": f"{64 * 2048}"}
    record = json.dumps(stats | {"bsz": "64", "num_updates": str(i), "gb_free": "9.3"})
    return f"2026-01-02 12:32:33 | INFO | train_inner | {record}"


def levanter(i: int, v: float) -> str:
    """src/levanter/callbacks/_metrics.py: tqdm-loggable's lines."""
    return (
        f"2026-01-02 INFO tqdm_loggable.tqdm_logging: Progress on:train {i:.1f}it/834it rate:"
        f"{v:.1f}s/it remaining:1:05:15 elapsed:{clock(i)[2:]} postfix:loss=5.95"
    )


def levanter_slow(i: int, v: float) -> str:
    """Its rate has one digit: the clock says more."""
    return levanter(i, v).replace(f"{v:.1f}s/it", "0.5it/s")


def mlperf(key: str, value: object, step: int = 0) -> str:
    """mlperf_logging/mllog of MLCommons."""
    record = {"namespace": "", "key": key, "value": value, "metadata": {"lineno": 9, "step": step}}
    return f":::MLLOG {json.dumps(record)}"


def mlperf_nemo(i: int, v: float) -> str:
    """custom_callbacks.py of NVIDIA's submissions of GPT-3."""
    return mlperf("tracked_stats", {"train_step_timing in s": v}, 64 * 2048 * i)


def internevo(i: int, v: float) -> str:
    """internlm/train/pipeline.py."""
    return f"INFO -- tflops=63.27,step={i},loss=1.6,tgs (tokens/gpu/second)={RATE / v:.2f},lr=4e-07"


def fsdp_of_aws(i: int, v: float) -> str:
    """3.test_cases/pytorch/FSDP/src/train.py."""
    return f"0: I [train.py:103] Batch {i} Loss: 1.61653, Speed: {64 / v:.2f} samples/sec, lr: 0.1"


LOGS: dict[str, tuple[str, float | None, float | None]] = {
    "Megatron-LM": (log(megatron("ms")), 64, None),
    "Megatron-LM of 2019": (
        "(after 1 iterations) memory (MB) | max allocated: 9.0 | cached: 1.0 | max cached: 1024.0\n"
        + log(megatron_2019),
        None,
        2**30,
    ),
    "Primus": (log(primus), 64, None),
    "Megatron-DeepSpeed in ms, with DeepSpeed's peak": (
        log(lambda i, v: megatron("ms")(i, v) + "\n[Rank 0] MA 1.0 GB Max_MA 2.0 GB Max_CA 3 GB")
        + "SamplesPerSec=1.0\n",
        64,
        3 * GIB,
    ),
    "Megatron-DeepSpeed in s": (log(megatron("s")), 64, None),
    "Megatron-DeepSpeed of Argonne": (log(megatron_fork), 64, None),
    "NeMo 1": (log(nemo_1), 64, None),
    "NeMo 2": (log(nemo_2), 64, None),
    "torchtitan of 2024": (log(titan_2024), None, 66.5 * GIB),
    "nanotron": (log(nanotron), 64, 45.1 * GB),
    "DeepSpeed (pipeline)": (log(deepspeed_pipeline), 64, None),
    "DeepSpeed of 2021": (log(deepspeed_2021), None, None),
    "DeepSpeed (timers)": (log(deepspeed_timers), None, None),
    "ms-swift": (log(swift, every=5), None, 58.3 * GIB),
    "Megatron-SWIFT": (log(megatron_swift, every=5), None, 58.3 * GIB),
    "Hugging Face's Trainer": (
        log(tqdm, "  Total train batch size (w. parallel, distributed & accumulation) = 64\n"),
        64,
        None,
    ),
    "axolotl": (log(axolotl), None, 61.5 * GIB),
    "LLaMA-Factory": (log(llama_factory, every=2), None, 58.3 * GIB),
    "llm-foundry": (log(foundry, "global_train_batch_size: 64\n"), 64, 63.1 * GB),
    "llm-foundry's bar": (log(composer_bar), None, None),
    "OLMo-core": (log(olmo_core), None, 61.5 * GIB),
    "MaxText": (log(maxtext, "Config param global_batch_size_to_train_on: 64\n"), 64, None),
    "nanoGPT": (log(nano_gpt), None, None),
    "llm.c": (log(llm_c), None, None),
    "torchtune": (log(torchtune), None, 61.5 * GIB),
    "NeMo AutoModel": (log(automodel), None, None),
    "metaseq": (log(metaseq), 64, None),
    "Levanter": (log(levanter), None, None),
    "LitGPT": (
        log(litgpt, "'train': TrainArgs(global_batch_size=64, micro_batch_size=4)\n")
        + "| Memory Usage\n| - Memory Used   : 61.50 GB\n",
        64,
        None,
    ),
    "ColossalAI": (log(colossal), None, None),
    "ColossalAI's evaluator": (
        "num_samples: 32, flop: 1, avg_duration: 8.4, avg_throughput: 30.476190476190474\n"
        "Throughput: 30.48 samples/sec, TFLOPS per GPU: 167.43\nMax CUDA memory usage: 9.00 MB\n",
        None,
        None,
    ),
    "Levanter, fast": (log(levanter_slow), None, None),
    "MLPerf": (log(mlperf_nemo, mlperf("global_batch_size", 64) + "\n"), 64, None),
    "MLPerf, means between evaluations": (
        mlperf("global_batch_size", 64)
        + "\n"
        + "\n".join(mlperf("tracked_stats", {"throughput": 64 / 2.1}, 640 * i) for i in (1, 2, 3)),
        64,
        None,
    ),
    "InternEvo": (log(internevo), None, None),
    "FSDP on AWS": (log(fsdp_of_aws), None, None),
}
"""Logs, each with the batch that it states and its reserved bytes."""


@pytest.mark.parametrize("name", LOGS)
def test_every_trainer_says_its_step(tmp_path, name):
    text, batch, reserved = LOGS[name]
    path = tmp_path / "run.log"
    path.write_text(text)
    row = read(str(path), Hints(sizes=SIZES))
    assert len(row) == 1
    close = 1e-2 if name in ("LLaMA-Factory", "Levanter, fast") else 5e-3
    assert row.number("seconds").tolist() == pytest.approx([2.1], rel=close)
    assert row.number("tokens_per_second_per_gpu").tolist() == pytest.approx(
        [RATE / 2.1], rel=close
    )
    assert stated_batch(text) == batch
    expected = [""] if reserved is None else [str(int(reserved))]
    assert row.text("reserved_bytes").tolist() == expected
    assert outcome(text, SIZES, name).peak == (reserved and int(reserved))


def answer(text: str) -> str:
    """What a log came to, or why that is not known."""
    try:
        return str(outcome(text, SIZES, "run.log"))
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("name", LOGS)
def test_truncated_logs_are_read_or_refused_in_a_line(name):
    text = LOGS[name][0]
    for share in (1, 4, 7, 11):
        cut = text[: len(text) * share // 12]
        for part in (cut, text[len(cut) :], cut.replace("1", "9" * 30), cut.replace(": ", ":")):
            assert "\n" not in answer(part)


def test_sizes_that_a_log_states_are_those_of_the_run(tmp_path):
    """Megatron-LM prints its arguments: megatron/training/arguments.py, _print_args."""
    head = "  seq_length ...................... 4096\n  world_size ...................... 16\n"
    path = tmp_path / "run.log"
    path.write_text(log(megatron("ms"), head))
    table = read(str(path), Hints())
    assert table.number("sequence").tolist() == [4096]
    assert table.number("ranks").tolist() == [16]
    for sizes, problem in (
        (RunSizes(8, 4096, 64), "ran on 16 GPUs, not 8"),
        (RunSizes(16, 2048, 64), "a sequence length of 4,096, not 2,048"),
        (RunSizes(16, 4096, 32), "a batch of 64, not 32"),
    ):
        with pytest.raises(InputError, match=problem):
            read(str(path), Hints(sizes=sizes))


def test_steps_of_a_smaller_batch_are_left_out():
    """A ramp: the last batch is that of the run."""
    ramp = log(megatron("ms")).replace("2100.00", "900.00").replace("size:    64", "size:    16")
    later = "".join(megatron("ms")(i, 2.1) + "\n" for i in range(41, 80))
    assert outcome(ramp + later, SIZES, "run.log").seconds == pytest.approx(2.1)


def test_a_whole_run_says_its_mean_where_the_trainer_logs_no_bar():
    """src/transformers/trainer_utils.py, speed_metrics."""
    text = "{'loss': 1.2, 'epoch': 0.1}\n{'train_runtime': 1000.0, 'train_steps_per_second': 0.5}\n"
    assert outcome(text, SIZES, "run.log").seconds == pytest.approx(2.0)
    short = text.replace("1000.0", "100.0")
    for log_text in (short, text.split("\n")[0]):
        with pytest.raises(InputError, match="Hugging Face's Trainer, hold no time of a step"):
            outcome(log_text, SIZES, "run.log")


def test_one_record_is_a_log_too(tmp_path):
    path = tmp_path / "trainer_log.jsonl"
    path.write_text(llama_factory(1, 2.0))
    with pytest.raises(InputError, match="its clock does not run 50 s after the first 10"):
        read(str(path), Hints(sizes=SIZES))
    path.write_text("{\n" + llama_factory(1, 2.0)[1:] + "\n" + llama_factory(2, 2.0))
    with pytest.raises(InputError, match="not JSON"):
        read(str(path), Hints(sizes=SIZES))


def test_bars_of_loading_are_no_steps():
    text = "".join(f"Loading shards: 9%|▏ | {i}/99 [00:01<00:09, 2.00it/s]\n" for i in range(99))
    with pytest.raises(InputError, match="no time of a step"):
        outcome(text, SIZES, "run.log")


def test_rates_alone_ask_for_the_sizes():
    for text in (LOGS["torchtune"][0], LOGS["torchtitan of 2024"][0]):
        with pytest.raises(InputError, match="--sequence and --global-batch"):
            outcome(text, RunSizes(), "run.log")


def test_a_step_of_which_micro_batches_are_not_printed_is_no_step():
    """litgpt/pretrain.py prints the last micro-batch of a step, where it has several."""
    text = "".join(line + "\n" for line in LOGS["LitGPT"][0].splitlines() if "(step)" in line)
    with pytest.raises(InputError, match="leave out micro-batches of every step"):
        outcome(text, SIZES, "run.log")


def test_what_litgpt_held_stands_at_its_end(tmp_path):
    path = tmp_path / "run.log"
    path.write_text(LOGS["LitGPT"][0])
    row = read(str(path), Hints(sizes=SIZES))
    assert row.number("memory_bytes").tolist() == [61.5 * GB]


def test_steps_that_generate_are_no_steps_of_training():
    """dschat/utils/perf.py of DeepSpeed-Chat, in its third step."""
    text = (
        "|E2E latency=3.9s |Generate time=2.8s (71%) |Training time=.8s |CurSamplesPerSec=16.35\n"
    )
    with pytest.raises(InputError, match="its steps are of samples of generation and training"):
        outcome(text * 40, SIZES, "run.log")


def test_names_of_trainers_and_units():
    assert "llm-foundry" in NAMES
    assert MIB < GB < GIB


def test_bars_of_an_evaluation_are_no_steps() -> None:
    """Of one inside a training, which Trainer.evaluation_loop begins with the same line, too."""
    log = "***** Running Evaluation *****\n  Num examples = 640\n"
    log += "".join(f" {i}%|# | {i}/40 [00:{i:02}<01:00,  3.00s/it]\n" for i in range(1, 31))
    with pytest.raises(InputError, match="evaluates a model and trains none"):
        read_log(log, RunSizes(8, 4096, 64), "eval.log")
    trained = f"{log}***** Running training *****\n"
    assert read_log(trained, RunSizes(8, 4096, 64), "train.log")[0]["seconds"] == 3.0


def test_a_table_of_rates_is_no_log() -> None:
    table = "backend  BS  tok/s/GPU  MFU%\ntitan  64  5,543  14.9%\n"
    with pytest.raises(InputError, match="no line of a trainer that is read here"):
        read_log(table, RunSizes(8, 4096, 64), "speed.txt")
