"""What a layer holds on a tensor rank is its share of what it holds whole.

With sequence parallelism every tensor of a layer is split over its t tensor ranks, so that each has
a t-th of what one rank keeps, drops and reads again; norms and routers are whole. (Korthikanti et
al. 2022, equation 4.)
"""

from dataclasses import replace

import pytest
from round_numbers import ATTENTION, BLOCK, kind, local, of_blocks, stack, task

from plan3d.simulator.hardware.software import OP_LIST
from plan3d.simulator.layers.block_activations import block_activations
from plan3d.simulator.layers.frozen_weights import frozen_weights, spare_inputs
from plan3d.simulator.layers.layer_seconds import summing_seconds
from plan3d.simulator.layers.memory_footprint import inputs_of_modules, stored_parameters
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.blocks import Block, Experts, Mlp

GATED = replace(BLOCK, mlp=Mlp(ffn=4096, gated=True))
ROUTED = Block(
    attention=ATTENTION,
    experts=Experts(count=8, top_k=2, ffn=4096, gated=True, shared_ffn=2048),
)
BLOCKS = {"plain": BLOCK, "gated": GATED, "routed": ROUTED}
STACKS = [
    {},
    {"selective": ("layernorm", "out_proj")},
    {"selective": ("mlp", "shared_experts")},
    {"selective": ("gelu", "moe_act")},
    {"selective": ("moe",)},
    {"selective": ("core_attn", "dropout"), "flash_attention": False, "dropout": True},
    {"selective": (OP_LIST,)},
    {"fused_activation": False, "packed_qkv": True},
    {"fused_norm": False},
    {"keeps_expert_output": True},
]


def seen(block, changes, text, adapters=None):
    """What a layer of four such blocks sees of a plan."""
    question = task(8, model=of_blocks(block), software=stack(**changes), adapters=adapters)
    return local(question, text)


@pytest.mark.parametrize("text", ["etp=1", "etp=1 precision=fp8", "etp=1 micro_batch=2"])
@pytest.mark.parametrize("changes", STACKS, ids=str)
@pytest.mark.parametrize(
    ("name", "adapters"),
    [
        *((name, adapters) for name in BLOCKS for adapters in (None, Adapters(rank=8))),
        *((name, Adapters(rank=8, targets=("all",))) for name in ("plain", "gated")),
    ],
)
def test_activations_are_split(name, changes, text, adapters):
    """But for what adapters keep of their own width, r of each on every rank, and for the outputs
    of norms that they read, which are gathered."""
    asked = [seen(BLOCKS[name], changes, f"tp={tp} {text}", adapters) for tp in (1, 2)]
    whole, half = (block_activations(BLOCKS[name], one) for one in asked)
    spare, selective = spare_inputs(BLOCKS[name], asked[0]), changes.get("selective", ())
    narrow = 2 * asked[0].tokens * spare.adapter_widths
    gathered = 2 * asked[0].tokens * 1024 * spare.gathered
    assert half[0] == pytest.approx(whole[0] / 2 + narrow / 2 + gathered / 2)
    if OP_LIST not in selective:
        dropped = gathered * ("layernorm" in selective)
        assert half[1] == pytest.approx(whole[1] / 2 + dropped / 2)
    else:
        assert half[0] - half[1] == pytest.approx((whole[0] - whole[1]) / 2)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("base", ["bf16", "nf4", "gptq4"])
@pytest.mark.parametrize("unpacks", [False, True])
def test_frozen_weights_are_split(name, base, unpacks):
    """Norms of 1,024 each and a router of 8 x 1,024 stay whole, in 16 bits."""
    adapters = Adapters(rank=8, base=base)
    changes = {"unpacks_by_operators": unpacks}
    found = []
    for tp in (1, 2):
        context = seen(BLOCKS[name], changes, f"tp={tp} etp={tp}", adapters)
        one = kind(of_blocks(BLOCKS[name]), "block 0")
        found.append(frozen_weights(one, context, sum(stored_parameters(one, context))))
    whole = 2 * 1024 + 8 * 1024 * (name == "routed")
    one, two = found
    assert two.adapter_parameters == pytest.approx(one.adapter_parameters / 2)
    assert two.packed_parameters == pytest.approx(one.packed_parameters / 2)
    assert two.held_bytes - 2 * whole == pytest.approx((one.held_bytes - 2 * whole) / 2)
    assert two.unpacked_bytes == pytest.approx(one.unpacked_bytes / 2)
    assert two.waiting_bytes == pytest.approx(one.waiting_bytes / 2)
    waits = base == "gptq4" and unpacks
    widest = max(1024, 4096)
    assert one.unpacked_bytes == (2 * 1024 * widest if base != "bf16" and not waits else 0)
    assert (one.waiting_bytes > 0) == waits


@pytest.mark.parametrize(
    ("block", "widest"),
    [
        (replace(BLOCK, mlp=Mlp(ffn=512, gated=False)), 1024),
        (replace(BLOCK, attention=replace(ATTENTION, heads=64)), 8192),
        (replace(ROUTED, experts=replace(ROUTED.experts, ffn=1536)), 2048),
        (replace(ROUTED, experts=replace(ROUTED.experts, ffn=1536, shared_ffn=256)), 1536),
    ],
)
def test_the_widest_matrix_is_unpacked(block, widest):
    """Of queries, of the MLP, of experts and of those that see every token."""
    context = seen(block, {}, "tp=1", Adapters(rank=8, base="nf4"))
    one = kind(of_blocks(block), "block 0")
    found = frozen_weights(one, context, sum(stored_parameters(one, context)))
    assert found.unpacked_bytes == 2 * 1024 * widest


@pytest.mark.parametrize("name", ["embedding", "head"])
@pytest.mark.parametrize("tp", [1, 2])
def test_trained_copies_of_ends_are_split(name, tp):
    """A table of 1,024 by 1,024."""
    model, module = of_blocks(BLOCK), {"embedding": "embed_tokens", "head": "lm_head"}[name]
    context = seen(BLOCK, {}, f"tp={tp}", Adapters(rank=8, modules_to_save=(module,)))
    one = kind(model, name)
    found = frozen_weights(one, context, sum(stored_parameters(one, context)))
    assert found.adapter_parameters == 1024**2 / tp
    assert found.held_bytes == 2 * (1024**2 / tp + 1024 * (name == "head"))


@pytest.mark.parametrize("modules", ["attn_norm", "qkv_linear", "core_attn", "attn_proj"])
@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_inputs_on_the_host_are_split(modules, flash, precision):
    changes = {"offload_modules": (modules,), "flash_attention": flash}
    one = kind(of_blocks(ROUTED), "block 0")
    whole, half = (
        inputs_of_modules(one, seen(ROUTED, changes, f"tp={tp} etp=1 precision={precision}"))
        for tp in (1, 2)
    )
    assert half == pytest.approx(whole / 2)
    assert whole > 0


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_gradients_of_pieces_of_a_loss_are_summed_in_shares(tp):
    """Six bytes of each of 2^20 parameters of the head, eight times, at 1 TB/s."""
    context = seen(BLOCK, {"loss_pieces": 8}, f"tp={tp} loss=chunked")
    assert summing_seconds(context) == pytest.approx(8 * 6 * 1024**2 / tp / 1e12)
