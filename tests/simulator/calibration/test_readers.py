"""The outputs of other tools are read in their documented forms and units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.readers.files import Hints, read
from plan3d.simulator.calibration.readers.measurements import Measurements, read_csv, write_csv
from plan3d.simulator.calibration.readers.training_logs import RunSizes

DEVICES = "\n".join(
    f"#  Rank {i:2d} Group  0 Pid   4711 on  {'node-a' if i < 4 else 'node-b'} device {i % 4:2d} "
    f"[0000:{i:02x}:00] NVIDIA H100 80GB HBM3"
    for i in range(8)
)
HEADER = f"""# nccl-tests version 2.17.2 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_gather_perf
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
{DEVICES}
#
"""
PLAIN = """#       size         count      type   redop    root     time   algbw   busbw #wrong\
     time
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)
     1048576         32768     float    none      -1    41.50   25.27   22.11      0    40.11
     2097152         65536     float    none      -1    62.25   33.69   29.48      0    60.00
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 25.8
"""
ITERATIONS = """#                                                    out-of-place (+ per-iteration)
#       size         count      type   redop    root     time   algbw   busbw #wrong  i_min  i_max\
  i_p99   i_cv%     time   algbw   busbw #wrong  i_min  i_max  i_p99  i_cv%           timestamp
     1048576         32768  bfloat16    none      -1    41.50   25.27   22.11      0  40.0  50.0\
   49.0     3.1    40.11   26.14   22.87      0   39.0   48.0   47.0     2.0 2026-01-02 03:04:05
"""


def reading(folder: Path, name: str, text: str, **known: Any) -> Measurements:
    """The measurements of a text in a file of that name."""
    (folder / name).write_text(text, encoding="utf-8")
    hints = {key: known.pop(key) for key in ("op", "gpu", "nodes") if key in known}
    return read(str(folder / name), Hints(**hints, sizes=RunSizes(**known)))


def test_nccl_text(tmp_path):
    table = reading(tmp_path, "run.txt", HEADER + PLAIN)
    assert table.number("bytes").tolist() == [1048576, 2097152]
    assert table.number("seconds").tolist() == pytest.approx([41.50e-6, 62.25e-6])
    assert set(table.text("op")) == {"all_gather"}
    assert (table.number("ranks") == 8).all()
    assert (table.number("nodes") == 2).all()
    assert table.gpus() == ("NVIDIA H100 80GB HBM3",)


def test_nccl_text_with_timestamp_and_iteration_columns(tmp_path):
    table = reading(tmp_path, "run.txt", HEADER + ITERATIONS)
    assert table.number("seconds").tolist() == pytest.approx([41.50e-6])
    assert table.text("dtype").tolist() == ["bf16"]


def test_nccl_runs_in_one_file_keep_their_own_operation(tmp_path):
    other = HEADER.replace("all_gather_perf", "alltoall_perf")
    skipped = HEADER.replace("all_gather_perf", "broadcast_perf")
    table = reading(tmp_path, "run.txt", "".join(h + PLAIN for h in (HEADER, other, skipped)))
    assert table.text("op").tolist() == ["all_gather"] * 2 + ["all_to_all"] * 2


def test_nccl_text_of_an_old_version_needs_the_operation_and_the_ranks(tmp_path):
    with pytest.raises(InputError, match="--op"):
        reading(tmp_path, "run.txt", PLAIN)
    with pytest.raises(InputError, match="--gpus"):
        reading(tmp_path, "run.txt", PLAIN, op="all_reduce")
    table = reading(tmp_path, "run.txt", PLAIN, op="all_reduce", gpus=8, nodes=2)
    assert table.text("op").tolist() == ["all_reduce"] * 2
    assert table.number("nodes").tolist() == [2, 2]
    named = reading(tmp_path, "reduce_scatter_16.txt", PLAIN, gpus=16)
    assert named.text("op").tolist() == ["reduce_scatter"] * 2
    with pytest.raises(InputError, match="--op 'gather'"):
        reading(tmp_path, "run.txt", PLAIN, op="gather")


def test_nccl_json(tmp_path):
    body = {"time": 41.5, "alg_bw": 25.27, "bus_bw": 22.11, "nwrong": 0.0}
    device = {"rank": 0, "hostname": "a", "device_info": "NVIDIA H200"}
    report = {
        "version": 2,
        "args": ["./build/sendrecv_perf", "-g", "8"],
        "nccl_version": 22809,
        "config": {"nthreads": 1, "ngpus": 8, "devices": [device]},
        "results": [
            {"size": 1048576, "count": 262144, "type": "float", "out_of_place": body},
            {"size": 0, "count": 0, "type": "float", "out_of_place": {"time": 3.0}},
            {"size": 2097152, "count": 1, "type": "float", "out_of_place": None},
        ],
    }
    table = reading(tmp_path, "run.json", json.dumps(report))
    assert table.text("op").tolist() == ["send"]
    assert table.number("ranks").tolist() == [8]
    assert table.number("seconds").tolist() == pytest.approx([41.5e-6])
    assert table.gpus() == ("NVIDIA H200",)


@pytest.mark.parametrize(
    ("hosts", "threads", "ranks", "nodes"),
    [("a", 1, 8, 1), ("aa", 1, 16, 1), ("ab", 1, 16, 2), ("abcb", 2, 64, 3), ("", 1, 8, 1)],
)
def test_a_report_of_nccl_counts_ranks_by_process_and_nodes_by_host(
    tmp_path, hosts, threads, ranks, nodes
):
    report = {
        "args": ["all_reduce_perf"],
        "nccl_version": 22809,
        "config": {"nthreads": threads, "ngpus": 8},
        "devices": [{"hostname": host, "device_info": "x"} for host in hosts],
        "results": [{"size": 1024, "type": "float", "out_of_place": {"time": 1, "nwrong": 0}}],
    }
    table = reading(tmp_path, "run.json", json.dumps(report))
    assert table.number("ranks").tolist() == [ranks]
    assert table.number("nodes").tolist() == [nodes]


def test_a_trace_of_a_profiler_is_for_explain(tmp_path):
    with pytest.raises(InputError, match="--trace FILE"):
        reading(tmp_path, "t.json", json.dumps({"traceEvents": []}))


def lines(template: str, values: list[float]) -> str:
    return "\n".join(template.format(i=i, v=v) for i, v in enumerate(values, 1))


SLOW_START = [9.0] * 10 + [2.0, 2.2, 2.1]
"""Ten warm-up values, then a median of 2.1."""


def test_megatron_log(tmp_path):
    form = (
        " [2026-01-02 03:04:05] iteration {i:8d}/     100 | consumed samples:          128 | "
        "elapsed time per iteration (ms): {v:.1f} | throughput per GPU (TFLOP/s/GPU): 231.9 | "
        "learning rate: 4.0E-07 | global batch size:   128 | lm loss: 2.0E+00 |"
    )
    memory = (
        "[Rank {r}] (after 1 iterations) memory (MB) | allocated: 100.0 | "
        "max allocated: {a:.1f} | reserved: 300.0 | max reserved: {b:.1f}\n"
    )
    text = memory.format(r=0, a=1000, b=2000) + memory.format(r=1, a=1024, b=2048)
    text += lines(form, [v * 1e3 for v in SLOW_START])
    table = reading(tmp_path, "train.log", text, sequence=2048, gpus=16)
    assert table.number("seconds").tolist() == pytest.approx([2.1])
    assert table.number("repeats").tolist() == [3]
    assert table.number("tokens").tolist() == [128 * 2048]
    assert table.number("memory_bytes").tolist() == [2**30]
    assert table.number("reserved_bytes").tolist() == [2**31]
    rate = table.number("tokens_per_second_per_gpu")
    assert rate.tolist() == pytest.approx([128 * 2048 / 2.1 / 16])


def test_a_log_of_another_batch_is_refused(tmp_path):
    """nanotron rounds: 1.02K are 1,024; Megatron-LM prints them all."""
    form = (
        "iteration: {i} / 20 | elapsed_time_per_iteration_ms: {v}K | "
        "tokens_per_sec_per_gpu: 4.1K | global_batch_size: 1.02K | lm_loss: 11.1"
    )
    text = lines(form, SLOW_START)
    assert reading(tmp_path, "nano.log", text, global_batch=1024).number("batch") == [1024]
    with pytest.raises(InputError, match="steps have a batch of 1,020, not 512"):
        reading(tmp_path, "nano.log", text, global_batch=512)


def test_a_log_of_another_length_is_refused(tmp_path):
    text = "global batch size 8, sequence length 8192, total steps 20\n"
    text += lines("step: {i}  tps: {v}", SLOW_START)
    with pytest.raises(InputError, match="steps have a sequence length of 8,192, not 4,096"):
        reading(tmp_path, "titan.log", text, gpus=8, sequence=4096)


def test_torchtitan_log(tmp_path):
    start = (
        "[titan] - root - INFO - Training starts at step 1, with local batch size 1, "
        "global batch size 8, sequence length 8192, total steps 20\n"
    )
    form = (
        "[rank0]:[titan] 2026-01-02 03:04:05,678 - root - INFO - \x1b[31mstep: {i:2d}  "
        "\x1b[32mloss:  7.6258  \x1b[38;2;180;60;0mgrad_norm: 26.6  \x1b[33mmemory: 66.50GiB"
        "(37.51%)  \x1b[34mtps: {v:,.0f}  \x1b[36mtflops: 314.71  \x1b[35mmfu: 13.99%\x1b[39m"
    )
    rates = [8192 / v for v in SLOW_START]
    alone = reading(tmp_path, "titan.log", start + lines(form, rates))
    assert alone.text("seconds").tolist() == [""]
    assert alone.number("tokens_per_second_per_gpu").tolist() == pytest.approx([3901])
    assert alone.number("reserved_bytes").tolist() == [int(66.5 * 2**30)]
    table = reading(tmp_path, "titan.log", start + lines(form, rates), gpus=8)
    assert table.number("seconds").tolist() == pytest.approx([2.1], rel=1e-3)


def test_deepspeed_log(tmp_path):
    form = (
        "[2026-01-02 03:04:05,123] [INFO] [timer.py:258:stop] epoch=0/micro_step={i}/"
        "global_step={i}, RunningAvgSamplesPerSec=16.1, CurrSamplesPerSec={v}, "
        "MemAllocated=0.02GB, MaxMemAllocated=9.5GB"
    )
    text = lines(form, [64 / v for v in SLOW_START])
    with pytest.raises(InputError, match="--global-batch"):
        reading(tmp_path, "ds.log", text)
    table = reading(tmp_path, "ds.log", text, global_batch=64)
    assert table.number("seconds").tolist() == pytest.approx([2.1])
    assert table.number("memory_bytes").tolist() == [9.5 * 2**30]


def test_nanotron_log(tmp_path):
    memory = (
        "01/02/2026 03:04:05 [INFO|DP=0|PP=0|TP=0]:  Memory usage: 100.00MiB. "
        "Peak allocated 2048.00MiB. Peak reserved: 4096.00MiB\n"
    )
    form = (
        "01/02/2026 03:04:05 [INFO|DP=0|PP=0|TP=0]: iteration: {i} / 100 | consumed_tokens: 85.8G "
        "| elapsed_time_per_iteration_ms: {v}K | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: "
        "11.4K | global_batch_size: 64 | lm_loss: 2.38 | model_tflops_per_gpu: 38.3"
    )
    table = reading(tmp_path, "nano.log", memory + lines(form, SLOW_START))
    assert table.number("seconds").tolist() == pytest.approx([2.1])
    assert table.number("tokens_per_second_per_gpu").tolist() == pytest.approx([11400])
    assert table.number("memory_bytes").tolist() == [2**31]
    assert table.number("reserved_bytes").tolist() == [2**32]


def test_a_short_log_is_refused(tmp_path):
    text = lines("elapsed time per iteration (ms): {v} |", [1.0] * 10)
    with pytest.raises(InputError, match=r"10 iterations.*at least 11"):
        reading(tmp_path, "short.log", text)


MEGATRON = " iteration {i:8d}/ 2000 | elapsed time per iteration (ms): {v} |\n"


def sparse(numbers, slow=1):
    """Lines of Megatron with these numbers, the first `slow` of 9 s, the others of 2.1."""
    return "".join(
        MEGATRON.format(i=n, v=9000 if at < slow else 2100) for at, n in enumerate(numbers)
    )


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [
        ((100, 200, 300), 2),  # --log-interval 100: the first line holds the warm-up
        ((5100, 5200), 1),  # a run that goes on from a checkpoint
        ((5, 10, 15), 1),
        ((1, 10, 20, 30), 2),  # torchtitan's first step has a line of its own
    ],
)
def test_a_line_counts_for_its_iterations(tmp_path, numbers, kept):
    table = reading(tmp_path, "train.log", sparse(numbers, slow=len(numbers) - kept))
    assert table.number("repeats").tolist() == [kept]
    assert table.number("seconds").tolist() == pytest.approx([2.1])


def test_a_run_that_began_anew_warms_up_again(tmp_path):
    table = reading(tmp_path, "train.log", sparse((100, 200)) + sparse((100, 200)))
    assert table.number("repeats").tolist() == [2]
    assert table.number("seconds").tolist() == pytest.approx([2.1])


@pytest.mark.parametrize("numbers", [(100,), (8, 16), (1, 2, 12)])
def test_lines_that_hold_the_warm_up_say_nothing(tmp_path, numbers):
    with pytest.raises(InputError, match=r"(each of its . lines|its one line) tells of some"):
        reading(tmp_path, "train.log", sparse(numbers))


def test_unknown_formats_name_the_known_ones(tmp_path):
    for name, text in (("a.txt", "hello"), ("b.json", "{}"), ("c.csv", "a,b\n1,2\n")):
        with pytest.raises(InputError, match=r"nccl-tests.*torchtitan"):
            reading(tmp_path, name, text)
    with pytest.raises(InputError, match="malformed"):
        reading(tmp_path, "e.json", json.dumps({"results": [{}], "nccl_version": 1}))
    with pytest.raises(InputError, match="not JSON"):
        reading(tmp_path, "d.json", "{")
    with pytest.raises(InputError, match="cannot be read"):
        read(str(tmp_path / "none"), Hints())


def test_csv_round_trip(tmp_path):
    text = write_csv([{"suite": "gemm", "op": "forward", "m": 128, "seconds": 1.5e-5}])
    table = reading(tmp_path, "m.csv", "# a comment\n" + text)
    assert table.number("m").tolist() == [128]
    assert table.number("seconds").tolist() == [1.5e-5]
    assert write_csv(table.rows) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("suite,op\n", "no header"),
        ("suite,seconds,colour\n", "unknown column 'colour'"),
        ("suite,seconds\ngemm\n", "line 2: 1 cells, not 2"),
    ],
)
def test_malformed_csv(text, problem):
    with pytest.raises(InputError, match=problem):
        read_csv(Path("m.csv"), text)


def test_a_cell_that_is_no_number():
    table = read_csv(Path("m.csv"), "suite,seconds\ngemm,1.0\ngemm,fast\n")
    with pytest.raises(InputError, match="line 3: seconds 'fast'"):
        table.number("seconds")


@pytest.mark.parametrize(
    "prefix", ["0: ", "[1,0]<stdout>: ", "[pod/worker-0/main] ", "worker-0  | ", "[default0]:"]
)
def test_a_launchers_prefixes_are_left_out(tmp_path, prefix):
    """mpirun --tag-output, srun --label, kubectl --prefix, Compose, torchrun."""
    text = "".join(f"{prefix}{line}\n" for line in (HEADER + PLAIN).splitlines())
    plain = reading(tmp_path, "plain.txt", HEADER + PLAIN)
    found = reading(tmp_path, "tagged.txt", text)
    columns = ("op", "ranks", "nodes", "bytes", "seconds", "gpu")
    for column in columns:
        assert found.text(column).tolist() == plain.text(column).tolist()


def test_of_several_ranks_the_times_of_one_are_taken(tmp_path):
    """All ranks of torchtitan print: 12 steps are not 24, and memory is the fullest rank's."""
    lines = [
        f"{rank}: step: {i} loss: 1.0 memory: {40 + rank}.00GiB(50%) tps: {1000 + rank} mfu: 30%"
        for i in range(12)
        for rank in (0, 1)
    ]
    table = reading(
        tmp_path, "t.log", "\n".join(lines) + "\n", gpus=2, sequence=1000, global_batch=2
    )
    assert table.number("repeats").tolist() == [2]
    assert table.number("seconds").tolist() == pytest.approx([1.0])
    assert table.number("reserved_bytes").tolist() == [41 * 2**30]


def test_rows_with_wrong_values_are_refused(tmp_path):
    broken = PLAIN.replace("22.11      0", "22.11     17")
    with pytest.raises(InputError, match="17 wrong values at 1048576 bytes"):
        reading(tmp_path, "run.txt", HEADER + broken)
    unchecked = PLAIN.replace("22.11      0", "22.11    N/A")
    assert len(reading(tmp_path, "run.txt", HEADER + unchecked)) == 2
    body = {"time": 41.5, "nwrong": 3.0}
    report = {
        "args": ["all_reduce_perf", "-g", "8"],
        "nccl_version": 22809,
        "config": {"nthreads": 1, "ngpus": 8, "devices": [{"hostname": "a", "device_info": "x"}]},
        "results": [{"size": 1024, "type": "float", "out_of_place": body}],
    }
    with pytest.raises(InputError, match="3 wrong values"):
        reading(tmp_path, "run.json", json.dumps(report))
