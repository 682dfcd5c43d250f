"""Seconds of what runs again, of launches, of gradient accumulation and of the optimizer.

Sources: Korthikanti et al. 2022, section 5 and table 4; Chowdhery et al. 2022 (PaLM), appendix B
(MFU and HFU); Narayanan et al. 2021, section 5.1 (FLOPs with a third forward pass); Rajbhandari et
al. 2020, section 5.1 (updates of a shard).
"""

from dataclasses import replace

import pytest
from round_numbers import (
    ACCELERATOR,
    BLOCK,
    cluster,
    costs_of,
    gather,
    group_of,
    of_blocks,
    scatter,
    sparse,
    stack,
    task,
)

from plan3d.simulator.model import Attention, Block
from plan3d.simulator.stages import weight_seconds

# A layer's forward pass of 1024 tokens: 12 h^2 weights twice a token at 100 TFLOP/s; 8 heads of
# 1024 queries against 512 keys, 256 wide; 11 h of norms and residuals, 8 h around attention, 12 h
# of the MLP, two bytes each, at 1 TB/s.
MATMUL = 2 * 1024 * 12 * 1024**2 / 100e12
ATTEND = 2 * 8 * 1024 * 512 * 256 / 100e12
MOVED = 2 * 1024 * (11 + 8 + 12) * 1024 / 1e12
FORWARD = MATMUL + ATTEND + MOVED
HEAD = 2 * 1024 * 1024**2 / 100e12 + (2 * 1024 * 2 * 1024 + 8 * 1024**2) / 1e12
EMBEDDING = 2 * 1024 * 2 * 1024 / 1e12
PARAMETERS = 4 * (12 * 1024**2 + 2 * 1024) + 2 * 1024**2 + 1024


def again(text, question=None):
    """Seconds of recompute in one micro-batch of four layers."""
    costs = costs_of(question or task(4), text)
    return costs.compute_seconds["recompute"] / 4


# Recompute


def test_full_recompute_runs_the_layers_forward_again():
    """Four layers, four micro-batches; the ends are kept."""
    plain, full = (costs_of(task(), f"recompute={r}") for r in ("none", "full"))
    assert plain.compute_seconds["recompute"] == 0
    assert full.compute_seconds["recompute"] == pytest.approx(4 * 4 * FORWARD)
    assert full.step_seconds - plain.step_seconds == pytest.approx(4 * 4 * FORWARD)


def test_full_recompute_sends_the_forward_collectives_again():
    """tp = 2: three passes of two gathers and two scatters, kernels of half a layer."""
    size = 2 * 1024 * 1024
    passes = 2 * gather(size, 2) + 2 * scatter(size, 2)
    plain, full = (costs_of(task(2), f"tp=2 recompute={r}") for r in ("none", "full"))
    assert full.seconds["tensor_comm"] - plain.seconds["tensor_comm"] == pytest.approx(
        4 * 4 * passes
    )
    assert full.step_seconds - plain.step_seconds == pytest.approx(4 * 4 * (FORWARD / 2 + passes))


def test_the_backward_pass_of_a_rank_runs_its_forward_again():
    stages = group_of(task(2), "pp=2 recompute=full").stages
    assert stages.forward[:, 0] == pytest.approx([2 * FORWARD + EMBEDDING, 2 * FORWARD + HEAD])
    backward = 3 * 2 * FORWARD
    assert stages.backward[:, 0] == pytest.approx([backward + 2 * EMBEDDING, backward + 2 * HEAD])


def test_selective_recompute_of_materialised_attention_runs_its_core_again():
    """Section 5: two products over all keys without a causal saving, 4 b s^2 h FLOPs, and a softmax
    of nine bytes a score here; table 4's selective overhead is small because h >> s."""
    software = stack(flash_attention=False, score_bytes=9.0, selective=("core_attn",))
    core = 4 * 1024**2 * 1024 / 100e12 + 9 * 8 * 1024**2 / 1e12
    found = again("recompute=selective", task(4, 16, software=software))
    assert found == pytest.approx(4 * core)


def test_selective_recompute_with_flash_attention_runs_only_what_is_named():
    assert again("recompute=selective", task(4, 16)) == 0
    norms = task(4, 16, software=stack(selective=("layernorm",)))
    # Two norms read and write h elements of two bytes.
    assert again("recompute=selective", norms) == pytest.approx(4 * 2 * 1024 * 2 * 2 * 1024 / 1e12)
    assert again("tp=4 recompute=selective", replace(norms, global_batch=4)) == pytest.approx(
        4 * 2 * 1024 * 2 * 2 * 1024 / 4 / 1e12
    )


def test_selective_recompute_of_the_experts_activation():
    """Two copies a token, three widths of 4 h read and written."""
    question = task(4, 16, sparse(), software=stack(selective=("moe_act",)))
    found = again("recompute=selective", question)
    assert found == pytest.approx(4 * 2 * (2 * 1024) * 3 * 4096 / 1e12)


def test_selective_recompute_of_latent_up_projections():
    """Queries from 256 to 8 x 192, keys and values from 128 to 8 x (128 + 128)."""
    latent = Attention(
        heads=8, kv_heads=8, head_dim=192, value_dim=128, kv_rank=128, q_rank=256, rope_dim=64
    )
    model = of_blocks(Block(attention=latent, mlp=BLOCK.mlp))
    question = task(4, 16, model, software=stack(selective=("mla_up_proj",)))
    flops = 2 * 1024 * (256 * 8 * 192 + 128 * 8 * 256)
    assert again("recompute=selective", question) == pytest.approx(4 * flops / 100e12)


# MFU and HFU


def test_hfu_counts_a_third_of_the_layers_again():
    """PaLM, appendix B: 6 FLOPs a weight and token, 6 a (d + d_v) s of attention, over the window;
    full recompute is one more forward pass of the layers, not of the head."""
    layers = 6 * 4 * (12 * 1024**2 + 8 * 256 * 1024)
    model = layers + 6 * 1024**2
    full = costs_of(task(), "recompute=full")
    seconds = 4 * (4 * 4 * FORWARD + 3 * HEAD + 3 * EMBEDDING) + 30 * PARAMETERS / 1e12
    assert full.mfu == pytest.approx(4 * 1024 * model / (seconds * 100e12))
    assert full.hfu == pytest.approx(4 * 1024 * (model + layers / 3) / (seconds * 100e12))
    plain = costs_of(task(), "recompute=selective")
    assert plain.hfu == plain.mfu


# Launches


def floored(work, floor):
    """The smooth maximum of exponent 8, less the work."""
    return (work**8 + floor**8) ** (1 / 8) - work


@pytest.mark.parametrize("floor", [100e-6, 500e-6, 2e-3])
def test_a_pass_takes_no_less_than_its_launches(floor):
    """The backward's floor is 1.5 times the forward's; the ends have none."""
    costs = costs_of(task(software=stack(layer_floor=floor)), "tp=1")
    each = floored(FORWARD, floor) + floored(2 * FORWARD, 1.5 * floor)
    assert costs.seconds["launch"] == pytest.approx(4 * 4 * each)


def test_full_recompute_launches_the_forward_kernels_again():
    question = task(software=stack(layer_floor=1e-3, backward_floor_ratio=2.0))
    each = 2 * floored(FORWARD, 1e-3) + floored(2 * FORWARD, 2e-3)
    costs = costs_of(question, "recompute=full")
    assert costs.seconds["launch"] == pytest.approx(4 * 4 * each)


def test_measured_launches_are_a_lower_bound_of_the_stacks():
    """1 ms measured, 0.5 ms of the stack."""
    measured = replace(ACCELERATOR, training=replace(ACCELERATOR.training, layer_floor=1e-3))
    question = task(cluster=cluster(1, accelerator=measured), software=stack(layer_floor=0.5e-3))
    each = floored(FORWARD, 1e-3) + floored(2 * FORWARD, 1.5e-3)
    assert costs_of(question, "tp=1").seconds["launch"] == pytest.approx(4 * 4 * each)


@pytest.mark.parametrize(("gpus", "shown"), [(16, True), (8, False)])
def test_a_stack_may_launch_slower_in_pipelines_of_several_nodes(gpus, shown):
    """nanotron: 2 ms a layer and further tensor rank; the last of two ranks has two blocks and the
    head, three layers of 2.5 x 1 + 2 ms."""
    question = task(gpus, 16, software=stack(pipeline_floor=2e-3, layer_floor=1e-3))
    with_ = group_of(question, "tp=2 pp=2").stages
    bare = replace(question, software=replace(question.software, pipeline_floor=0.0))
    without = group_of(bare, "tp=2 pp=2").stages
    added = floored(without.slowest[0], 3 * (2.5e-3 + 2e-3))
    assert with_.slowest[0] - without.slowest[0] == pytest.approx(added * shown)
    assert (with_.forward - without.forward)[1, 0] == pytest.approx(added * shown / 2.5)


# Accumulation, weight gradients and the optimizer


def test_gradients_are_added_into_their_buffers_every_micro_batch():
    """Ten bytes a parameter, four micro-batches."""
    plain, adds = (costs_of(task(software=stack(accumulation_bytes=b)), "tp=1") for b in (0, 10))
    more = adds.compute_seconds["memory_bound"] - plain.compute_seconds["memory_bound"]
    assert more == pytest.approx(4 * 10 * PARAMETERS / 1e12)


def test_gradients_of_experts_are_added_too():
    plain, adds = (
        costs_of(task(model=sparse(), software=stack(accumulation_bytes=b)), "tp=1")
        for b in (0, 10)
    )
    n = 4 * (4 * 1024**2 + 2 * 1024 + 8 * 1024 + 8 * 2 * 1024 * 4096) + 2 * 1024**2 + 1024
    more = adds.compute_seconds["memory_bound"] - plain.compute_seconds["memory_bound"]
    assert more == pytest.approx(4 * 10 * n / 1e12)


def test_weight_gradients_are_a_share_of_the_gemms():
    """Rates of 0.8 and 0.5 of the forward: 1 + 1.25 + 2, of which 2 are weight gradients."""
    slow = replace(ACCELERATOR, training=replace(ACCELERATOR.training, dgrad_rate=0.8))
    question = task(cluster=cluster(1, accelerator=slow), software=stack(wgrad_rate=0.5))
    assert weight_seconds(question, 4.25) == pytest.approx(2.0)
    matmul = 4 * (4 * MATMUL + 2 * 1024 * 1024**2 / 100e12)
    found = costs_of(question, "tp=1").compute_seconds["matmul"]
    assert found == pytest.approx(4.25 * matmul)


@pytest.mark.parametrize(
    ("precision", "optimizer", "moved"),
    [
        # State read and written, a gradient read, a weight written.
        ("bf16", "adam", 2 * 12 + 4 + 2),
        ("bf16", "sgd", 2 * 8 + 4 + 2),
        ("fp16", "adam", 2 * 16 + 2 + 2),
        ("fp32", "adam", 2 * 8 + 4 + 4),
        ("mixed", "adam", 2 * 6 + 2 + 4),
        ("pure-bf16", "adam", 2 * 4 + 2 + 2),
    ],
)
def test_an_update_moves_every_byte_of_state(precision, optimizer, moved):
    text = f"dp=4 precision={precision} optimizer={optimizer}"
    whole, shard = (
        costs_of(task(4), f"{text} zero={zero}").seconds["optimizer"] for zero in (0, 1)
    )
    assert whole == pytest.approx(moved * PARAMETERS / 1e12)
    assert shard == pytest.approx(moved * PARAMETERS / 4 / 1e12)


def test_the_fullest_rank_updates_longest():
    """Two stages: the last holds two layers, the head and its norm."""
    n = 2 * (12 * 1024**2 + 2 * 1024) + 1024**2 + 1024
    assert costs_of(task(2), "pp=2").seconds["optimizer"] == pytest.approx(30 * n / 1e12)


def test_experts_are_updated_by_the_ranks_that_hold_them():
    """ep = 4 of eight: two of eight experts a rank, each shared by two ranks under ZeRO."""
    dense = 4 * (4 * 1024**2 + 2 * 1024 + 8 * 1024) + 2 * 1024**2 + 1024
    experts = 4 * 2 * 2 * 1024 * 4096
    found = costs_of(task(8, 8, sparse()), "dp=8 ep=4 zero=1").seconds["optimizer"]
    assert found == pytest.approx(30 * (dense / 8 + experts / 2) / 1e12)


def test_servers_update_the_weights():
    costs = costs_of(task(4), "dp=4 sync=parameter-server zero=0")
    assert costs.seconds["optimizer"] == 0
