"""Traces of profilers are read piece by piece; what is broken is one line, or what can be trusted
with what was left out."""

import gzip
import json

import numpy as np
import pytest

from plan3d.simulator.base.documents import JsonStream
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.traces.breakdown import break_down
from plan3d.simulator.calibration.traces.intervals import (
    common,
    covered,
    gaps,
    length,
    lies_within,
    union,
    without,
)
from plan3d.simulator.calibration.traces.job import traced_job
from plan3d.simulator.calibration.traces.kernels import class_of_name, short_name
from plan3d.simulator.calibration.traces.reader import read_trace, read_traces

GEMM, NORM, NCCL = "nvjet_tst_128x256", "vectorized_layer_norm_kernel", "ncclDevKernel_AllReduce"
CORE = "flash_fwd_kernel"


def event(name, start, length, category="kernel", tid=7, **args):
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": start, "dur": length,
        "args": args,
    }  # fmt: skip


def write(path, events, **head):
    path.write_text(json.dumps({**head, "traceEvents": events}))
    return path


def seconds(events, tmp_path, **head):
    """Parts and gaps of a trace in microseconds, those of nothing left out."""
    (trace,) = read_trace(write(tmp_path / "t.json", events, **head))
    found = break_down(trace, [name for name, *_ in trace.steps])
    both = {**found.seconds, **found.gaps}
    assert sum(both.values()) == pytest.approx(found.wall, rel=1e-9)
    return {name: round(1e6 * s, 6) for name, s in both.items() if s > 1e-12}


def test_union_overlap_and_rest():
    one = union([0, 1, 5, 8], [2, 4, 6, 8])
    assert one.tolist() == [[0, 5], [4, 6]]
    assert length(one) == 5
    assert covered(np.array([-1, 0, 3, 4.5, 5.5, 9]), one).tolist() == [0, 0, 3, 4, 4.5, 5]
    assert lies_within(np.array([-1, 0, 3.9, 4, 5, 6]), one).tolist() == [0, 1, 1, 0, 1, 0]
    assert gaps(one, -1, 7).tolist() == [[-1, 4, 6], [0, 5, 7]]
    other = union([3], [5.5])
    assert common(one, other).tolist() == [[3, 5], [4, 5.5]]
    assert without(one, other).tolist() == [[0, 5.5], [3, 6]]


@pytest.mark.parametrize("seed", range(5))
def test_intervals_add_up(seed):
    draw = np.random.default_rng(seed)
    one, other = (union(s, s + draw.exponential(3, s.size)) for s in draw.uniform(0, 90, (2, 30)))
    both = length(common(one, other))
    assert both + length(without(one, other)) == pytest.approx(length(one))
    assert (one[1, :-1] < one[0, 1:]).all()


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_a_stream_of_json_is_what_json_says(size):
    document = {"a": [1, {"b": "]}"}], "traceEvents": [{"x": "\u00e9\\n"}, -1.5e3, 17], "z": None}
    text = json.dumps(document, indent=1)
    pieces = (text[i : i + size] for i in range(0, len(text), size))
    stream = JsonStream(pieces, "t.json", "traceEvents")
    assert list(stream) == document.pop("traceEvents")
    assert (stream.head, stream.broken) == (document, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("nothing", "is not a JSON object or list"),
        ("{}", "has no list 'traceEvents'"),
        ('{"traceEvents": 3}', "has no list 'traceEvents'"),
        ('{"traceEvents": [', "ends early"),
        ('{"traceEvents": [{"ph"', "breaks off"),
        ('{"traceEvents": []', "breaks off"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_a_stream_that_holds_nothing_is_refused(text, message):
    with pytest.raises(InputError, match=rf"t\.json: .*{message}"):
        list(JsonStream(iter([text]), "t.json", "traceEvents"))


@pytest.mark.parametrize("packed", [False, True])
def test_what_comes_before_a_break_is_used(tmp_path, packed):
    names = (event(f"gemm_{i}", 10 * i, 5, tid=str(i * 7919)) for i in range(8_000))
    whole = json.dumps({"traceEvents": [*names]}).encode()
    path = tmp_path / ("t.json.gz" if packed else "t.json")
    path.write_bytes(gzip.compress(whole)[:-20_000] if packed else whole[: len(whole) // 2])
    (trace,) = read_trace(path)
    assert 1_000 < trace.start.size < 8_000
    assert any(f"{trace.start.size:,} events before that are used" in t for t in trace.left_out)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "holds no events"),
        ([event("aten::mm", 0, 5, "cpu_op")], "no GPU kernels among 1 events: profile with"),
        ([event("gemm", 0, -5)], "no GPU kernels"),
        ([{"ph": "X", "cat": "kernel"}], "no GPU kernels"),
        ([3, None, "kernel"], "holds no events"),
        ([event(GEMM, 3, 0), event(NORM, 5, 0)], "all of its 2 kernels take no time"),
    ],
)
def test_traces_without_kernels_are_refused(tmp_path, events, message):
    path = write(tmp_path / "t.json", events)
    with pytest.raises(InputError, match=message):
        traced_job(read_traces([str(path)]))


def test_a_row_of_no_number_leaves_none_behind(tmp_path):
    """Of a kernel, a launch, an operator and a step."""
    events = [
        *(event(GEMM, 0, 10, correlation="x"), event(GEMM, 20, 10, correlation=1)),
        event("cudaLaunchKernel", None, 1, "cuda_runtime", 1, correlation=1),
        event("cudaLaunchKernel", 15, 1, "cuda_runtime", 1, correlation=1),
        event("aten::mm", 0, 1, "cpu_op", 1, **{"External id": "x", "Input Dims": [[1]]}),
        event("ProfilerStep#1", 0, 1e300, "user_annotation", 1),
    ]
    (trace,) = read_trace(write(tmp_path / "t.json", events))
    assert [*trace.start, *trace.launched] == pytest.approx([20e-6, 15e-6])
    assert (trace.steps, trace.left_out) == ((), ("3 events without name or time",))


def test_bad_events_are_left_out_and_said(tmp_path):
    events = [
        *(event(GEMM, 50, 10), event(GEMM, 0, 10), event(GEMM, 0, 10), event(NORM, 20, -3)),
        *(event(NORM, 30, 1e300), event(NORM, 40, None), {"ph": "X", "cat": "kernel"}, 5),
    ]
    (trace,) = read_trace(write(tmp_path / "t.json", events))
    assert trace.start.tolist() == pytest.approx([0, 50e-6])
    assert list(trace.left_out) == [
        "2 events of negative or endless length",
        "3 events without name or time",
        "1 events that stand twice",
    ]


def test_every_moment_is_of_one_part(tmp_path):
    """Kernels on two streams, a collective half hidden, a copy, then nothing."""
    events = [
        *(event(GEMM, 0, 100), event(NORM, 80, 40, tid=8), event(NCCL, 110, 30, tid=9)),
        *(event("Memcpy HtoD (Pinned -> Device)", 130, 20, "gpu_memcpy"), event("x1", 160, 40)),
    ]
    assert seconds(events, tmp_path) == {
        "matmul": 100, "memory_bound": 20, "unassigned_comm": 20, "host_comm": 10, "other": 40,
        "unknown": 10,
    }  # fmt: skip


def test_the_slowest_layer_is_of_one_pass(tmp_path):
    """Of two layers of a forward pass the second, 30 busy: more lie around the backward pass."""
    node = "autograd::engine::evaluate_function: MmBackward0"
    kernels = [
        *((CORE, 0, 10, 1), (GEMM, 10, 10, 1), (CORE, 20, 10, 1), (GEMM, 35, 20, 1)),
        *((CORE, 55, 10, 1), (GEMM, 70, 90, 2), (CORE, 200, 10, 1)),
    ]
    events = [
        one
        for i, (name, start, length, thread) in enumerate(kernels)
        for one in (
            event(name, start, length, correlation=i),
            event("cudaLaunchKernel", start - 1, 1, "cuda_runtime", thread, correlation=i),
        )
    ]
    (trace,) = read_trace(write(tmp_path / "t.json", [*events, event(node, 60, 40, "cpu_op", 2)]))
    layer = break_down(trace, []).slowest_layer
    assert (1e6 * layer).round(6).tolist() == [[30], [65]]
    assert not break_down(
        read_trace(write(tmp_path / "t.json", events[:2]))[0], []
    ).slowest_layer.size


def test_gaps_by_what_the_gpu_waits_for(tmp_path):
    """A kernel launched late, one that was queued, one behind the loading of data."""
    events = [
        *(event(GEMM, 0, 10, correlation=i) for i in (1,)),
        *(event(GEMM, 50, 10, correlation=2), event(GEMM, 70, 10, correlation=3)),
        event(GEMM, 200, 10, correlation=4),
        *(event("cudaLaunchKernel", at, 2, "cuda_runtime", 1, correlation=i)
          for i, at in ((1, -5), (2, 40), (3, 41), (4, 190))),
        event("enumerate(DataLoader)#_Iter.__next__", 100, 60, "user_annotation", 1),
    ]  # fmt: skip
    assert seconds(events, tmp_path) == {
        "matmul": 40, "host": 30 + 50, "queued": 10 + 10 + 10, "data loading": 60
    }  # fmt: skip


def test_passes_follow_what_launched_a_kernel(tmp_path):
    """Forward, backward, what a checkpoint runs again (reentrant or by hooks), the optimizer."""
    node, records = "autograd::engine::evaluate_function: ", {"Fwd thread id": 0}
    launches = {1: (5, 1), 2: (105, 2), 3: (125, 2), 4: (205, 1), 5: (206, 1), 6: (161, 2)}
    events = [
        *(event(GEMM, 10 * i, 10, correlation=i) for i in (1, 2, 3, 6)),
        *(event(NORM, 40, 10, correlation=4), event("multi_tensor_apply", 50, 10, correlation=5)),
        *(event("cudaLaunchKernel", at, 1, "cuda_runtime", tid, correlation=i)
          for i, (at, tid) in launches.items()),
        event(node + "CheckpointFunctionBackward", 100, 50, "cpu_op", 2),
        event(node + "MmBackward0", 120, 10, "cpu_op", 2),
        event(node + "ReluBackward0", 155, 10, "cpu_op", 2),
        event("aten::linear", 4, 3, "cpu_op", 1, **records, **{"Sequence number": 3}),
        event("aten::relu", 160, 3, "cpu_op", 2, **records, **{"Sequence number": 9}),
        event("Optimizer.step#AdamW.step", 200, 50, "user_annotation", 1),
    ]  # fmt: skip
    found = seconds(events, tmp_path)
    assert found == {"matmul": 20, "recompute": 20, "optimizer": 20}


def test_a_step_ends_when_what_it_launched_has_run(tmp_path):
    """Two steps; the host runs ahead of the GPU, whose kernels of an earlier step come first."""
    launches = {1: -50, 2: 10, 3: 60}
    starts = {1: (0, 30), 2: (30, 70), 3: (100, 80)}
    events = [
        *(event(GEMM, at, long, correlation=i) for i, (at, long) in starts.items()),
        *(event("cudaLaunchKernel", at, 1, "cuda_runtime", 1, correlation=i)
          for i, at in launches.items()),
        event("ProfilerStep#7", 5, 45, "user_annotation", 1),
        event("ProfilerStep#8", 50, 45, "user_annotation", 1),
    ]  # fmt: skip
    (trace,) = read_trace(write(tmp_path / "t.json", events))
    found = traced_job([trace])
    assert (found.steps, found.wall) == (2, pytest.approx(75e-6))
    assert found.seconds["matmul"] == pytest.approx(75e-6)


def test_kernels_launched_before_the_recording_are_of_no_step(tmp_path):
    """As the test above, but the profiler was started after the first launch: that kernel runs in
    the first step as the host marks it, and nothing says what launched it."""
    events = [
        *(event(GEMM, at, long, correlation=i) for i, at, long in ((1, 8, 22), (2, 30, 70))),
        event(GEMM, 100, 80, correlation=3),
        *(event("cudaLaunchKernel", at, 1, "cuda_runtime", 1, correlation=i)
          for i, at in ((2, 10), (3, 60))),
        event("ProfilerStep#7", 5, 45, "user_annotation", 1),
        event("ProfilerStep#8", 50, 45, "user_annotation", 1),
    ]  # fmt: skip
    (trace,) = read_trace(write(tmp_path / "t.json", events))
    assert traced_job([trace]).wall == pytest.approx(75e-6)


def test_operators_lend_kernels_their_shapes(tmp_path):
    shapes = [[4096, 1024], [1024, 512]]
    call = {"Collective name": "_allgather_base", "Group size": 8}
    events = [
        event(GEMM, 0, 10, **{"External id": 3}),
        event("ncclDevKernel_Generic_1", 20, 10, **{"External id": 4}),
        event("aten::mm", 0, 5, "cpu_op", 1, **{"External id": 3, "Input Dims": shapes}),
        event("record_param_comms", 0, 5, "cpu_op", 1, **{"External id": 4, **call}),
    ]
    (trace,) = read_trace(write(tmp_path / "t.json", events))
    by_name = {kind.name: kind for kind in trace.kinds}
    assert (by_name[GEMM].operator, by_name[GEMM].shapes) == ("aten::mm", str(shapes))
    assert by_name["ncclDevKernel_Generic_1"].collective.group_size == 8
    (use,) = break_down(trace, []).collectives
    assert use.operation == "all_gather"


def test_profiles_of_others_are_refused_by_name(tmp_path):
    (tmp_path / "t.nsys-rep").write_bytes(b"x")
    with pytest.raises(
        InputError,
        match=r"is of Nsight Systems, not read: convert it: nsys export --type sqlite t\.nsys-rep",
    ):
        read_traces([str(tmp_path / "t.nsys-rep")])


def test_ranks_are_told_apart(tmp_path):
    def rank(number, step, name="r{}.json"):
        marks = event(f"ProfilerStep#{step}", 0, 50, "user_annotation")
        about = {"rank": number, "world_size": 2}
        path = tmp_path / name.format(number)
        return write(path, [event(GEMM, 0, 10), marks], distributedInfo=about)

    rank(1, 3), rank(0, 3)
    assert [one.rank for one in read_traces([str(tmp_path)])] == [0, 1]
    rank(1, 4)
    with pytest.raises(InputError, match=r"r1.json: marks ProfilerStep#4 and r0.json"):
        traced_job(read_traces([str(tmp_path)]))
    write(tmp_path / "job_rank-1.pt.trace.json", [event(GEMM, 0, 10)])
    with pytest.raises(InputError, match="are both of rank 1"):
        read_traces([str(tmp_path)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="the folder holds no trace"):
        read_traces([str(tmp_path / "empty")])


@pytest.mark.parametrize(
    ("name", "wanted", "part"),
    [
        ("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "gemm", "matmul"),
        ("void cutlass::device_kernel<ns::GemmUniversal<int>>()", "gemm", "matmul"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32", "gemm", "matmul"),
        ("ck_tile::kentry<GemmKernel>", "gemm", "matmul"),
        ("triton_tem_fused_mm_3", "gemm", "matmul"),
        ("triton_tem_fused_flex_attention_1", "attention", "attention"),
        ("triton_poi_fused_add_gelu_mul_4", "activation", "memory_bound"),
        ("triton_red_fused__to_copy_mean_pow_rsqrt_7", "triton", "memory_bound"),
        ("void cudnn::cnn::implicit_convolve_sgemm<float>", "convolution", "matmul"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", "attention", "attention"),
        ("void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention_backward",
         "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma", "attention", "attention"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>", "attention_backward", "attention"),
        ("aiter::fmha_bwd_hd128_bf16_causal_a32_psskddv", "attention_backward", "attention"),
        ("void transformer_engine::cast_transpose_kernel<float>", "cast", "memory_bound"),
        ("void multi_tensor_apply_kernel<AdamFunctor<float>>", "optimizer", "optimizer"),
        ("void at::native::vectorized_layer_norm_kernel<float>", "norm", "memory_bound"),
        ("void deep_ep::internode::dispatch<false, 8>", "all_to_all", "communication"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter", "communication"),
        ("ncclKernel_AllReduce_TREE_LL128_Sum_half(ncclWorkElem)", "all_reduce", "communication"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send_recv", "communication"),
        ("mscclKernel_Sum_half_Simple_false", "collective", "communication"),
        ("some_kernel_of_ones_own", "unknown", "other"),
    ],
)  # fmt: skip
def test_classes_of_kernels(name, wanted, part):
    found = class_of_name(name)
    assert (found.name, found.part) == (wanted, part)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("void flash::flash_fwd_kernel<A<64>>(B)", "flash::flash_fwd_kernel"),
        ("void cutlass::device_kernel<a::b::GemmKernel>(C)", "b::GemmKernel"),
        ("nvjet_tst_128x256", "nvjet_tst_128x256"),
    ],
)
def test_short_names(name, wanted):
    assert short_name(name) == wanted
