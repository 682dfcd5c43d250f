"""Layers with a state: products, scans, memory and communication by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.operators import kernel_times
from plan3d.simulator.operators.layer_parts import expert_gemms
from plan3d.simulator.operators.layer_work import block_work
from plan3d.simulator.operators.linear_attention import (
    SCANS,
    core_work,
    kept_width,
    moved_elements,
    projections,
)
from plan3d.simulator.operators.model_flops import model_flops_per_token
from plan3d.simulator.operators.work import ScanWork, Strategy
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.blocks import (
    GATED_DELTA,
    KIMI_DELTA,
    LIGHTNING,
    MAMBA2,
    NO_ATTENTION,
    Block,
    Experts,
    LinearAttention,
    Mlp,
)
from plan3d.simulator.workload.model import Model

MAMBA = LinearAttention(
    mixer=MAMBA2, heads=64, kv_heads=8, head_dim=128, value_dim=64, conv=4, conv_bias=True
)
"""Of Nemotron 3 Nano."""
DELTA = LinearAttention(
    mixer=GATED_DELTA, heads=32, kv_heads=16, head_dim=128, value_dim=128, conv=4
)
"""Of Qwen3-Next."""
KIMI = LinearAttention(
    mixer=KIMI_DELTA, heads=32, kv_heads=32, head_dim=128, value_dim=128, conv=4, gate_rank=128
)
LIGHT = LinearAttention(mixer=LIGHTNING, heads=64, kv_heads=64, head_dim=128, value_dim=128)
EVERY = [MAMBA, DELTA, KIMI, LIGHT]
HYBRIDS = ["nemotron-3-nano-30b-a3b", "granite-4.0-h-tiny", "qwen3-next-80b-a3b"]
TOKEN = Strategy.of()


def hybrid(layer: LinearAttention, hidden: int = 2048) -> Model:
    """Four layers with a state, each with an MLP."""
    block = Block(attention=layer, mlp=Mlp(ffn=4 * hidden, gated=True))
    return Model(name="hybrid", hidden=hidden, vocabulary=32000, kinds=(block,), order=(0, 0, 0, 0))


def question(model: Model | str, gpus: int = 8, sequence: int = 4096) -> Task:
    return Task(
        Model.preset(model) if isinstance(model, str) else model,
        Cluster.profile("h100-sxm", gpus=gpus),
        sequence=sequence,
        global_batch=16,
    )


@pytest.mark.parametrize(
    ("layer", "flops", "moved"),
    [
        # 2 128 128 8 + 64 (2 128 64 + 4 128 64); 12 64 128 64 / 128 + 6 64 64 + 8 8 (128 + 128)
        (MAMBA, 3_407_872, 90_112),
        # 32 (64 (6 128 + 4 128) + 6 128 128); 32 (4 128 128 / 64 + 26 128 + 12 64)
        (DELTA, 5_767_168, 163_840),
        (KIMI, 5_767_168, 163_840),
        # 2 256 128 64 + 64 (2 256 128 + 4 128 128); 64 128 (12 128 / 256 + 6) + 8 64 (128 + 256)
        (LIGHT, 12_582_912, 294_912),
    ],
    ids=lambda value: getattr(value, "mixer", None),
)
def test_arithmetic_and_bytes_of_a_token(layer: LinearAttention, flops: int, moved: int) -> None:
    work = core_work(layer, TOKEN, 1)
    assert work.flops[0] == flops
    assert work.moved_bytes[0] == moved


@pytest.mark.parametrize("layer", EVERY, ids=lambda layer: layer.mixer)
def test_products_have_the_matrices_of_the_layer(layer: LinearAttention) -> None:
    """All weights but those of the convolution and of decays are multiplied."""
    hidden = 2048
    products = sum(float(np.ravel(g.n * g.k)[0]) for g in projections(layer, hidden, TOKEN, 1))
    mixed = 2 * layer.kv_heads * layer.head_dim + layer.heads * layer.value_dim
    small = mixed * (layer.conv + layer.conv_bias)
    small += {
        MAMBA2: 3 * layer.heads,
        GATED_DELTA: 2 * layer.heads,
        KIMI_DELTA: layer.kv_heads * layer.head_dim + layer.heads,
        LIGHTNING: 0,
    }[layer.mixer]
    assert products == layer.parameters(hidden) - small


@pytest.mark.parametrize("layer", EVERY, ids=lambda layer: layer.mixer)
def test_tensor_and_context_ranks_share_a_scan(layer: LinearAttention) -> None:
    one, four = core_work(layer, TOKEN, 4096), core_work(layer, Strategy.of(tp=2, cp=2), 4096)
    assert four.flops[0] == one.flops[0] / 4
    assert four.moved_bytes[0] == one.moved_bytes[0] / 4


def test_elements_beside_the_scan() -> None:
    """Mamba-2: a convolution of 2 8 128 + 64 64 columns read and written, a norm with its gate;
    delta rules norms of 16 128 queries and keys as well, and copies for 32 heads."""
    assert moved_elements(MAMBA) == 2 * 6144 + 3 * 4096
    assert moved_elements(DELTA) == 2 * 8192 + 3 * 4096 + 4 * 2048 + 4 * 4096
    assert moved_elements(LIGHT) == 3 * 8192


def test_elements_that_are_kept() -> None:
    """What the projection made (with 64 time steps; two numbers of 32 heads), and outputs of the
    scan; delta rules the convolution's, queries and keys of all heads and 64 numbers of a chunk."""
    assert kept_width(MAMBA, 1) == (2 * 1024 + 2 * 4096 + 64) + 2 * 4096
    assert kept_width(DELTA, 1) == (2 * 2048 + 2 * 4096 + 64) + 4096 + 8192 + 32 * (256 + 64)


def test_a_scan_takes_what_was_measured() -> None:
    """79 ns a token of 128 heads of 64, a state of 128 in chunks of 256, on one H100."""
    heads, v, k, q, tokens = 128, 64, 128, 256, 8192
    flops = tokens * (2 * q * k + heads * (2 * q * v + 4 * k * v))
    moved = tokens * (12 * heads * k * v / q + 6 * heads * v + 8 * (k + q))
    work = ScanWork(np.array([flops], float), np.array([moved]), 5, 2.5)
    machine = Cluster.profile("h100-sxm", nodes=1).accelerator
    stack = replace(software_profile("torch"), attention_rate=1.0, memory_bound_rate=1.0)
    forward, backward = kernel_times.scan_seconds(work, machine, RECIPES[Precision.BF16], stack)
    assert forward[0] == pytest.approx(79e-9 * tokens, rel=0.08)
    assert backward[0] == 2.5 * forward[0]


def test_a_scan_grows_with_the_tokens_and_attention_with_their_square() -> None:
    """Of a layer without launches that bind."""
    linear = [
        evaluate(question(hybrid(LIGHT), sequence=s), Plan(dp=8)).row() for s in (65536, 131072)
    ]
    ratio = linear[1].seconds["compute"] / linear[0].seconds["compute"]
    assert ratio == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(("layer", "each"), [(MAMBA, 3.5), (DELTA, 4.0), (KIMI, 4.0), (LIGHT, 2.0)])
def test_model_flops_count_the_state(layer: LinearAttention, each: float) -> None:
    """7 FLOPs an element of Mamba-2's state forward, 4 multiply-adds of a delta rule's: three
    times that with the backward pass, whatever the length."""
    model = hybrid(layer)
    bare = replace(
        model,
        kinds=(replace(model.kinds[0], attention=replace(layer, heads=0, kv_heads=0, conv=0)),),
    )
    matrices = 6.0 * 4 * (layer.parameters(2048) - bare.kinds[0].attention.parameters(2048))
    found = model_flops_per_token(model, 4096) - model_flops_per_token(bare, 4096)
    state = layer.heads * layer.head_dim * layer.value_dim
    assert found - matrices == pytest.approx(6 * 4 * each * state)
    assert model_flops_per_token(model, 4096) == model_flops_per_token(model, 65536, causal=True)


def test_experts_behind_a_latent_projection() -> None:
    """512 experts of 2688 at a width of 1024 on 64 ranks: products of tokens of that width, two
    projections that are whole on every tensor rank, and a router of hidden states."""
    experts = Experts(count=512, top_k=22, ffn=2688, gated=False, latent=1024)
    block = Block(attention=NO_ATTENTION, experts=experts, norms=1)
    counts = block.parameters(4096, 4096)
    assert counts["experts"] == 512 * 2 * 1024 * 2688
    assert counts["router"] == 512 * 4096 + 2 * 4096 * 1024
    s = Strategy.of(ep=64, tp=2, etp=1, sequence_parallel=1)
    each = 1024 * 22 / 2 / 8
    sizes = [
        tuple(float(np.ravel(side)[0]) for side in gemm)
        for gemm in expert_gemms(experts, 4096, s, 1024)
    ]
    assert sizes == [
        (each, 2688, 1024, 8),
        (each, 1024, 2688, 8),
        (512, 512, 4096, 1),
        (512, 1024, 4096, 1),
        (512, 4096, 1024, 1),
    ]


def test_tokens_are_exchanged_at_their_latent_width() -> None:
    def exchanged(latent: int) -> float:
        experts = Experts(count=64, top_k=8, ffn=1024, latent=latent)
        block = Block(attention=MAMBA, experts=experts)
        model = replace(hybrid(MAMBA), kinds=(block,))
        task = replace(question(model, gpus=64), global_batch=64)
        plan = Plan(dp=64, ep=64, expert_dispatch="alltoall")
        return evaluate(task, plan).row().seconds["expert_comm"]

    assert exchanged(512) == pytest.approx(exchanged(0) / 4, rel=0.15)
    assert exchanged(512) < exchanged(1024) < exchanged(0)


def test_a_layer_without_attention_has_its_mlp_alone() -> None:
    block = Block(attention=NO_ATTENTION, mlp=Mlp(ffn=8192, gated=False), norms=1)
    work = block_work(block, 2048, TOKEN, 4096, ())
    assert work.attention is None
    up, down = work.gemms
    assert (float(np.ravel(up.n)[0]), up.k) == (8192, 2048)
    assert (down.n, float(np.ravel(down.k)[0])) == (2048, 8192)


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_is_costed(name: str) -> None:
    """Its step is above what the peak of its GPUs allows, its memory above its states."""
    task = replace(question(name, gpus=64), global_batch=64)
    costs = evaluate(task, Plan(dp=64, ep=8, recompute="full")).row()
    assert 0.02 < costs.mfu < 1
    assert costs.memory_bytes > 16 * task.model.parameters / 64


def test_context_ranks_exchange_heads_whatever_attention_does() -> None:
    """A state is handed on along a whole sequence: two all-to-alls of a layer, whose bytes no
    choice of attention changes."""
    task = question(hybrid(MAMBA))
    sent = {
        how: evaluate(task, Plan(cp=2, dp=4, cp_comm=how)).row().seconds["context_comm"]
        for how in ("p2p", "all-gather", "a2a")
    }
    assert sent["p2p"] > 0
    assert sent["p2p"] == sent["all-gather"] == sent["a2a"]


@pytest.mark.parametrize(
    ("plan", "legal"),
    [
        ({"tp": 8}, True),
        ({"tp": 2, "cp": 4}, True),
        # Eight groups on four context ranks a tensor rank; or each group on two of them.
        ({"tp": 4, "cp": 4}, True),
        ({"tp": 16}, False),
        # 64 heads on 128 ranks.
        ({"tp": 8, "cp": 16}, False),
    ],
)
def test_ranks_have_whole_heads_of_a_state(plan: dict[str, int], legal: bool) -> None:
    task = question(hybrid(MAMBA), gpus=128, sequence=65536)
    given = Plan(**plan, dp=128 // (plan["tp"] * plan.get("cp", 1)))
    task = replace(task, global_batch=128)
    if legal:
        assert evaluate(task, given).row().step_seconds > 0
    else:
        with pytest.raises(InputError, match="Mamba-2 has 64 heads in 8 groups"):
            evaluate(task, given)


def adapted(*targets: str, layer: LinearAttention = MAMBA) -> Task:
    return replace(
        question(hybrid(layer)), adapters=Adapters(rank=8, targets=targets), software=None
    )


def test_adapters_of_a_state() -> None:
    """r (h + n) and r (V a + h) of the projections of four layers; 10,304 columns of Mamba-2."""
    task = adapted("in_proj", "out_proj")
    assert task.trained_parameters == 4 * 8 * ((2048 + 10304) + (4096 + 2048))
    assert adapted("all-linear").trained_parameters == task.trained_parameters + 4 * 8 * 3 * (
        2048 + 8192
    )


def test_adapters_of_queries_leave_a_state_frozen() -> None:
    with pytest.raises(InputError, match="hybrid has none of the matrices q, k, v, o"):
        adapted("attention")
    frozen, own = (
        evaluate(adapted(*names), Plan(dp=8)).row()
        for names in (("mlp",), ("mlp", "in_proj", "out_proj"))
    )
    assert own.seconds["compute"] > frozen.seconds["compute"]
    assert own.memory["activations"] > frozen.memory["activations"]


def test_models_without_a_state_have_no_adapters_of_one() -> None:
    task = replace(question("llama-7b"), adapters=Adapters(targets=("all",)), software=None)
    assert task.adapters is not None
    assert task.adapters.targets == ("q", "k", "v", "o", "gate", "up", "down")
    with pytest.raises(InputError, match="llama-7b has none of the matrices in_proj, out_proj"):
        replace(task, adapters=Adapters(targets=("in_proj", "out_proj")))


@pytest.mark.parametrize("mixer", sorted(SCANS))
def test_a_backward_pass_takes_longer(mixer: str) -> None:
    assert SCANS[mixer].backward >= 2
    assert SCANS[mixer].kernels >= 5
