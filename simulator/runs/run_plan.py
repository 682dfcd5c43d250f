"""The plan of a published run: its layout, schedule, sharding and overlaps, from its cells."""

from __future__ import annotations

from typing import Any

from ..base.errors import InputError
from ..hardware.software import Software
from ..plan.field_values import AUTO
from ..plan.fields import POLICY
from ..plan.gossip_graphs import Topology
from ..plan.plan import Plan
from ..plan.synchronisation import Sync, SyncPolicy
from .published_runs import PublishedRun
from .run_stack import STACKS

SCHEDULES = {"zb-1p": "zb-h1", "zb-2p": "zb-h2", "zb-2p-sync": "zb-h2-sync"}
"""Names of schedules in plans, where rows call them otherwise."""
DISPATCH = {"deepep": 1, "hybridep": 1, "uccl": 1, "nvshmem": 1, "allgather": 2}
"""Dispatchers that send a token to a node once, and that send all tokens to all ranks."""
CONTEXT = {"p2p": "p2p", "allgather": "all-gather", "a2a": "a2a", "a2a+p2p": "p2p"}
"""How keys and values travel, in plans."""
SCALING = {
    "delayed": "fp8-delayed",
    "blockwise": "fp8-blockwise",
    "rowwise": "fp8-rowwise",
    "rowwise-gw-hp": "fp8-rowwise",
}
"""Recipes of 8 bits, in plans, where rows call them otherwise."""
OPTIMIZERS = {
    **dict.fromkeys(("adam", "lamb", "paged-adamw", "in-backward", "paged-in-backward"), "adam"),
    "sgd": "sgd",
    "muon": "muon",
}
"""Optimizers with the state of one that is modelled."""


RING = SyncPolicy(sync=Sync.RING)
ONE_PEER = SyncPolicy(sync=Sync.GOSSIP, topology=Topology.INNER_OUTER_EXPONENTIAL)
BETWEEN_NODES = SyncPolicy(sync=Sync.HIERARCHICAL_GOSSIP, topology=Topology.ONE_PEER_EXPONENTIAL)
FUSION = 16e6
"""Parameters in Horovod's fusion buffer: 64 MB of fp32."""
SYNC_POLICIES = {
    "Horovod": RING._replace(bucket_parameters=int(FUSION)),
    "BlueFog N_AR": ONE_PEER,
    "BlueFog H_N_AR": BETWEEN_NODES,
}
"""How replicas are kept together, by the framework that a row names."""


def plan_of(run: PublishedRun, software: Software) -> Plan:
    """The layout of a row; AUTO where neither the row nor its stack says anything. ZeRO stands on a
    single rank too where an engine keeps its hooks there."""
    tp, cp = run["tp"], run["cp"]
    dp = run.get("dp", run["gpus"] // (tp * run["pp"] * cp))
    ranks, virtual = dp * cp, _virtual_stages(run)
    routed = run["experts"] > 0
    zero = run["zero_stage"] * (ranks > 1 or software.has_hooks)
    split = bool(run["sequence_parallel"]) and tp > 1
    if run["optimizer"] not in OPTIMIZERS:
        raise InputError(f"optimizer {run['optimizer']} is not modelled")
    layout = _layers_per_stage(run, virtual)
    # PyTorch's FSDP updates weights on the host wherever it holds them there.
    together = run["params_on_host"] and str(run.get("sharding", "")).startswith("fsdp")
    return Plan(
        tp=tp,
        pp=run["pp"],
        dp=dp,
        cp=cp,
        cp_comm=CONTEXT[run["cp_type"]] if cp > 1 else "p2p",
        ep=run["ep"] if routed else 1,
        etp=run["etp"] if routed else 1,
        expert_dispatch=DISPATCH.get(run["dispatcher"], 0) * (routed and run["ep"] > 1),
        overlap_ep=int(run["overlap_ep"] and routed),
        virtual_stages=virtual,
        micro_batch=run["micro_batch"],
        schedule=_schedule(run, virtual),
        sequence_parallel=int(split),
        zero=zero,
        shard=_shard(run, ranks, zero),
        recompute=run["recompute"],
        precision=(precision := _precision(run)),
        fp8_params=int(bool(run["fp8_params"] and run["zero_stage"]) and "8" in precision),
        **_wide_ends(run),
        optimizer=OPTIMIZERS[run["optimizer"]],
        offload_optimizer=100 * bool(run["optimizer_on_host"] or together),
        offload_parameters=100 * bool(run["params_on_host"]),
        offload_activations=_offloaded(run),
        **layout,
        **_overlap(run, ranks, zero, virtual, split),
        **_policy(run),
    )


def _precision(run: PublishedRun) -> str:
    name = str(run["dtype"])
    if name == "tf32":
        raise InputError(f"precision {name} is not modelled")
    return SCALING.get(run.get("fp8_recipe", ""), name) if name == "fp8" else name


def _wide_ends(run: PublishedRun) -> dict[str, Any]:
    """Layers in 16 bits among scaled ones, as many at the start as at the end."""
    if run["dtype"] not in ("fp8", "mxfp8", "nvfp4"):
        return {}
    first = run["bf16_end_layers"] // 2
    return {"bf16_first_layers": first, "bf16_last_layers": run["bf16_end_layers"] - first}


def _shard(run: PublishedRun, ranks: int, zero: int) -> int:
    """Ranks of a group that shards, where that is not all of them."""
    group = int(run.get("shard_ranks", ranks))
    return group if zero and 1 < group < ranks else 0


def _offloaded(run: PublishedRun) -> int:
    """Percent of the kept activations that wait on the host."""
    if run["offload_activations"]:
        return 100
    per_rank = float(run["layers"] / run["pp"]) if run["layers"] else 1.0
    return min(round(100 * int(run["offload_layers"]) / per_rank), 100)


def _policy(run: PublishedRun) -> dict[str, Any]:
    """How the replicas of a row's framework are kept together, where it is not by all-reduce."""
    policy = SYNC_POLICIES.get(run.get("framework", ""))
    named = dict(zip(POLICY, policy, strict=True)) if policy else {}
    return {
        name: value for name, value in named.items() if name not in ("shard",) and "off" not in name
    }


def _overlap(run: PublishedRun, ranks: int, zero: int, virtual: int, split: bool) -> dict[str, Any]:
    """The overlaps that the row or its stack states, where the layout allows them."""
    allowed = {
        "overlap_grad_reduce": ranks > 1,
        "overlap_param_gather": ranks > 1 and zero > 0,
        "overlap_p2p": virtual > 1,
        "overlap_tp": split,
    }
    usual = STACKS[run.get("stack", "megatron-core")].overlap
    out = {}
    for name, legal in allowed.items():
        value = int(run[name]) if run[name] is not None else usual.get(name, AUTO)
        if legal and value != AUTO:
            out[name] = value
    if not out.get("overlap_grad_reduce", 1):
        out.pop("overlap_param_gather", None)
        if allowed["overlap_param_gather"]:
            out["overlap_param_gather"] = 0
    return out


def _virtual_stages(run: PublishedRun) -> int:
    if run["pp"] == 1:
        return 1
    if run["virtual_stages"] == 1 and run.get("schedule", "").startswith("interleaved"):
        raise InputError("virtual stages of an interleaved schedule are not stated")
    return int(run["virtual_stages"])


def _schedule(run: PublishedRun, virtual: int) -> str:
    name = str(run.get("schedule", "1f1b"))
    if run["pp"] == 1:
        return "1f1b"
    if virtual > 1 and name in ("1f1b", "interleaved"):
        return "interleaved"
    return SCHEDULES.get(name, name)


def _layers_per_stage(run: PublishedRun, virtual: int) -> dict[str, Any]:
    """Fields of the plan that say which rank holds how many layers, and which it runs again."""
    chunks, every = run["pp"] * virtual, run["recompute_every"]
    if run["pipeline_layout"]:
        return {"layers_per_stage": run["pipeline_layout"]}
    layers = run["layers"] or 0
    if run["recompute"] == "full" and (every > 1 or run["recompute_method"] == "block"):
        return _partly_recomputed(run, virtual)
    each, rest = divmod(layers + 2, chunks)
    if run["ends_short"] and chunks > 1 and not rest:
        return {"layers_per_stage": (each - 1, *[each] * (chunks - 2), each - 1)}
    out = {}
    if run["pp"] > 1:
        for name in ("first_stage_layers", "last_stage_layers"):
            if run[name]:
                out[name] = run[name]
    return out


def _partly_recomputed(run: PublishedRun, virtual: int) -> dict[str, Any]:
    """Stages of two runs of layers: those that run again, and the others."""
    if virtual > 1:
        raise InputError("recompute of some layers with virtual stages is not modelled")
    stages = []
    each, more = divmod(run["layers"], run["pp"])
    for stage in range(run["pp"]):
        layers = each + (stage < more)
        again = -(-layers // run["recompute_every"])
        if run["recompute_method"] == "block":
            again = min(run["recompute_layers"], layers)
        runs = [{"layers": again, "recompute": "full"}]
        if layers > again:
            runs.append({"layers": layers - again, "recompute": "none"})
        stages.append(runs)
    return {"segments": stages}
