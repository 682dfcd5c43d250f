"""Where each rule ends: the last plans that it lets pass and the first that it refuses, by hand.

A plan is tp = pp = 2 on 64 GPUs and what is named; only the rule itself is asked.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from layer_runs import DENSE
from not_empty import not_empty
from rule_questions import hostless, images, linked, odd, task, tuned

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.gossip_graphs import Graph
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.expert_rules import has_expert_kernels
from plan3d.simulator.rules.layer_run_rules import as_run
from plan3d.simulator.rules.validity import RULES, legal_rows, violations
from plan3d.simulator.step.evaluate import evaluate

PLAN = {"tp": 2, "pp": 2}
EXPERTS, DEEPSEEK = task("mixtral-8x7b"), task("deepseek-v3")
DEEPSPEED, TITAN = task(software="deepspeed"), task(software="torchtitan")
DRIVES = replace(
    DEEPSPEED,
    cluster=replace(
        DEEPSPEED.cluster,
        host=replace(DEEPSPEED.cluster.host, nvme=1e13, nvme_read=1e10, nvme_write=1e10),
    ),
)
GIVEN = replace(task(), graph=Graph(16, tuple((i, i + 1) for i in range(15))))
PEERLESS = task(cluster="rtx-4090")
OFFLOADS = replace(task(), software=replace(task().software, offload_modules=("core_attn",)))


def without_muon(stage):
    return replace(task(), software=replace(task().software, muon_stage=stage))


SIDES = [
    # Rule, task, plans that it lets pass, plans that it refuses.
    ("tp-divides-heads", task(), "tp=64", "tp=128|tp=48"),
    ("tp-fits-kv-heads", odd(kv_heads=12, heads=96), "tp=4|tp=12|tp=24|tp=48", "tp=16|tp=8|tp=18"),
    ("tp-divides-ffn", task("llama-7b"), "tp=256|tp=43", "tp=512|tp=3"),
    ("listed-layers-are-whole", images(), "tp=1", "tp=2|tp=1 cp=2|tp=2 cp=2"),
    ("listed-layers-are-whole", task(), "tp=2 cp=2", ""),
    # 2048 tokens in two chunks a rank; without context parallelism any number.
    ("cp-divides-sequence", task(), "cp=1|cp=2|cp=512|cp=1024", "cp=3|cp=2048"),
    ("cp-divides-sequence", replace(task(), sequence=2047), "cp=1", "cp=2"),
    ("documents-are-whole", replace(task(), documents=(512, 1536)), "cp=1", "cp=2"),
    ("world-size", task(), "dp=16|cp=2 dp=8|pp=4 dp=8", "dp=8|dp=15|dp=17|cp=2 dp=16"),
    ("batch-divides", task(), "dp=16 micro_batch=4", "dp=16 micro_batch=8|dp=16 micro_batch=3"),
    # 80 layers: a chunk at either end may have none but the embedding or the head.
    ("layers-fill-stages", task(), "pp=80|pp=16 virtual_stages=5", "pp=81|pp=27 virtual_stages=3"),
    (
        "layers-fill-stages",
        task(),
        "pp=27 virtual_stages=3 first_stage_layers=2|pp=27 virtual_stages=3 last_stage_layers=2|"
        "pp=41 virtual_stages=2 first_stage_layers=1 last_stage_layers=1",
        "pp=41 virtual_stages=2 first_stage_layers=1|pp=41 virtual_stages=2 last_stage_layers=1|"
        "pp=27 virtual_stages=3 first_stage_layers=3|pp=27 virtual_stages=3 last_stage_layers=3",
    ),
    ("virtual-stages-need-pipeline", task(), "virtual_stages=2|pp=1", "pp=1 virtual_stages=2"),
    (
        "schedule-matches-virtual-stages",
        task(),
        "schedule=interleaved virtual_stages=2|schedule=zb-v virtual_stages=2|schedule=1f1b|"
        "schedule=dualpipe-v virtual_stages=2|schedule=breadth-first virtual_stages=4",
        "schedule=interleaved|schedule=zb-v|schedule=zb-v virtual_stages=3|"
        "schedule=1f1b virtual_stages=2|schedule=dualpipe-v",
    ),
    ("pipeline-schedule-needs-pipeline", task(), "schedule=gpipe|pp=1", "pp=1 schedule=gpipe"),
    (
        "micro-batch-group-fills-pipeline",
        task(),
        "pp=4 virtual_stages=2 micro_batch_group=4|pp=4",
        "pp=4 virtual_stages=2 micro_batch_group=3|micro_batch_group=2|"
        "pp=4 schedule=gpipe micro_batch_group=4",
    ),
    ("p2p-overlap-needs-interleaving", task(), "virtual_stages=2 overlap_p2p=1", "overlap_p2p=1"),
    (
        "interleaving-two-ranks-needs-p2p-overlap",
        task(),
        "overlap_p2p=0|virtual_stages=2 overlap_p2p=1|pp=4 virtual_stages=2 overlap_p2p=0",
        "virtual_stages=2 overlap_p2p=0",
    ),
    (
        "layout-adds-up",
        task(),
        "layers_per_stage=40,40|layers_per_stage=39,41|"
        "virtual_stages=2 layers_per_stage=20,20,20,20",
        "layers_per_stage=40,39|layers_per_stage=40,41|layers_per_stage=40,20,20|"
        "virtual_stages=2 layers_per_stage=20,20,40|pp=4 layers_per_stage=40,40",
    ),
    # 61 layers: behind the last that has some.
    (
        "mtp-follows-layers",
        DEEPSEEK,
        "pp=4 mtp_stage=4|virtual_stages=2 mtp_stage=4|pp=4 mtp_stage=0|"
        "pp=4 layers_per_stage=30,31,0,0 mtp_stage=2|pp=4 layers_per_stage=30,31,0,0 mtp_stage=4|"
        "virtual_stages=2 layers_per_stage=20,20,21,0 mtp_stage=3",
        "pp=4 mtp_stage=3|pp=4 mtp_stage=5|virtual_stages=2 mtp_stage=3|"
        "virtual_stages=2 mtp_stage=5|pp=4 layers_per_stage=30,31,0,0 mtp_stage=1|"
        "virtual_stages=2 layers_per_stage=20,20,21,0 mtp_stage=2",
    ),
    ("mtp-follows-layers", task(), "mtp_stage=0", "mtp_stage=2"),
    # A layer for each chunk of the others; none may be left where there are no others.
    (
        "end-stages-fit",
        task(),
        "pp=4 first_stage_layers=77|pp=4 last_stage_layers=77|"
        "pp=4 first_stage_layers=39 last_stage_layers=39|"
        "first_stage_layers=40 last_stage_layers=40|first_stage_layers=79|pp=1",
        "pp=4 first_stage_layers=78|pp=4 last_stage_layers=78|"
        "pp=4 first_stage_layers=39 last_stage_layers=40|"
        "first_stage_layers=40 last_stage_layers=39|first_stage_layers=80|"
        "pp=1 first_stage_layers=80|"
        "first_stage_layers=40 layers_per_stage=40,40",
    ),
    # Of chunks in turn that of an end may have none; both ends of a V are on the first rank.
    (
        "end-stages-fit",
        task(),
        "pp=4 virtual_stages=2 first_stage_layers=1|pp=4 virtual_stages=3 last_stage_layers=2|"
        "pp=4 virtual_stages=3 first_stage_layers=71|"
        "pp=4 virtual_stages=2 schedule=zb-v first_stage_layers=2",
        "pp=4 virtual_stages=3 first_stage_layers=1|pp=4 virtual_stages=3 last_stage_layers=1|"
        "pp=4 virtual_stages=3 first_stage_layers=72|"
        "pp=4 virtual_stages=2 schedule=zb-v first_stage_layers=1",
    ),
    ("sequence-parallel-needs-tp", task(), "sequence_parallel=1|tp=1", "tp=1 sequence_parallel=1"),
    (
        "sequence-parallel-divides",
        replace(task(), sequence=2046),
        "sequence_parallel=1|sequence_parallel=1 cp=3|tp=4 sequence_parallel=0",
        "sequence_parallel=1 tp=4|sequence_parallel=1 cp=2",
    ),
    (
        "tp-overlap-needs-sequence-parallel",
        task(),
        "overlap_tp=1|sequence_parallel=0 overlap_tp=0|"
        "overlap_tp=1 sequence_parallel=0 tp_grid=2x1x1",
        "overlap_tp=1 sequence_parallel=0",
    ),
    (
        "software-overlaps-tp",
        task(software="megatron-lm-2021"),
        "overlap_tp=0|overlap_tp=1 tp_grid=2x1x1",
        "overlap_tp=1",
    ),
    ("software-overlaps-tp", task(), "overlap_tp=1", ""),
    (
        "tp-overlap-in-peer-memory",
        PEERLESS,
        "overlap_tp=0|tp=1 overlap_tp=1|overlap_tp=1 tp_grid=2x1x1",
        "overlap_tp=1",
    ),
    (
        "tp-overlap-inside-domain",
        task(),
        "tp=8 overlap_tp=1|tp=16 overlap_tp=0|tp=16 overlap_tp=1 tp_grid=4x4x1",
        "tp=16 overlap_tp=1|tp=12 overlap_tp=1",
    ),
    ("context-exchange-needs-cp", task(), "cp_comm=a2a cp=2|cp=1", "cp_comm=a2a"),
    # 64 heads, 8 of keys and values.
    (
        "context-exchange-divides-heads",
        task(),
        "cp_comm=a2a cp=4|cp_comm=p2p cp=8",
        "cp_comm=a2a cp=8|cp_comm=a2a cp=3",
    ),
    (
        "moe-tp-needs-sequence-parallel",
        EXPERTS,
        "sequence_parallel=1|tp=1 sequence_parallel=0",
        "sequence_parallel=0",
    ),
    ("moe-tp-needs-sequence-parallel", task(), "sequence_parallel=0", ""),
    ("expert-axes-need-experts", task(), "ep=1 etp=1", "ep=2 etp=1|ep=1 etp=2"),
    ("expert-axes-need-experts", EXPERTS, "ep=2 etp=2", ""),
    (
        "expert-exchange-needs-ep",
        EXPERTS,
        "ep=1|ep=2 overlap_ep=1|ep=2 expert_dispatch=hierarchical",
        "ep=1 overlap_ep=1|ep=1 expert_dispatch=hierarchical",
    ),
    (
        "all-gather-of-experts",
        EXPERTS,
        "ep=2 expert_dispatch=all-gather|ep=2 overlap_ep=1",
        "ep=2 expert_dispatch=all-gather overlap_ep=1",
    ),
    (
        "software-exchanges-experts",
        EXPERTS,
        "ep=2 expert_dispatch=hierarchical overlap_ep=1",
        "",
    ),
    (
        "software-exchanges-experts",
        task("mixtral-8x7b", software="nanotron"),
        "ep=2",
        "ep=2 overlap_ep=1|ep=2 expert_dispatch=hierarchical",
    ),
    (
        "expert-overlap-needs-interleaving",
        EXPERTS,
        "ep=2 overlap_ep=1 pp=1|ep=2 overlap_ep=1 virtual_stages=2|"
        "ep=2 overlap_ep=1 schedule=dualpipe|ep=2",
        "ep=2 overlap_ep=1",
    ),
    ("ep-divides-experts", EXPERTS, "ep=8|ep=1", "ep=16|ep=3"),
    ("etp-divides-expert-ffn", EXPERTS, "etp=2|etp=7", "etp=3|etp=5"),
    # 32 ranks of a stage hold whole numbers of copies of all experts.
    (
        "experts-fold-into-ranks",
        EXPERTS,
        "ep=8 etp=4|ep=4 etp=8|cp=2 dp=8 ep=8 etp=4|dp=3 ep=2 etp=3",
        "ep=8 etp=8|dp=8 ep=8 etp=4|pp=32 ep=4|dp=3 ep=4",
    ),
    (
        "zero-needs-data-ranks",
        task(),
        "zero=1|zero=0|pp=32 zero=0|dp=1 cp=2 zero=1|pp=32 schedule=dualpipe zero=1|"
        "pp=32 zero=3 offload_parameters=50|pp=32 zero=3 nvme=optimizer",
        "pp=32 zero=1|pp=32 zero=3",
    ),
    (
        "grad-overlap-needs-data-ranks",
        task(),
        "overlap_grad_reduce=1|pp=32 overlap_grad_reduce=0|dp=1 cp=2 overlap_grad_reduce=1|"
        "pp=32 schedule=dualpipe overlap_grad_reduce=1",
        "pp=32 overlap_grad_reduce=1",
    ),
    (
        "gather-overlap-needs-zero",
        task(),
        "zero=1 overlap_grad_reduce=1 overlap_param_gather=1|zero=0 overlap_param_gather=0|"
        "zero=3 overlap_grad_reduce=0 offload_parameters=50 overlap_param_gather=1",
        "zero=1 overlap_grad_reduce=0 overlap_param_gather=1|"
        "zero=0 overlap_grad_reduce=1 overlap_param_gather=1",
    ),
    (
        "scaled-parameters",
        task(),
        "fp8_params=1 precision=fp8 zero=1|fp8_params=1 precision=fp8 tp=8 pp=4 dp=1 zero=0",
        "fp8_params=1 zero=1",
    ),
    ("scaled-parameters", task(), "precision=fp8 zero=0", "fp8_params=1 precision=fp8 zero=0"),
    (
        "ends-in-16-bits",
        task(),
        "precision=fp8 bf16_first_layers=40 bf16_last_layers=40|precision=fp8 bf16_first_layers=80",
        "precision=fp8 bf16_first_layers=41 bf16_last_layers=40|bf16_first_layers=1|"
        "bf16_last_layers=1",
    ),
    ("ends-in-16-bits", images(), "precision=fp8", "precision=fp8 bf16_first_layers=1"),
    ("muon-whole-matrices", task(), "optimizer=muon", "optimizer=muon offload_optimizer=1"),
    ("muon-whole-matrices", images(), "optimizer=adam", "optimizer=muon"),
    ("muon-whole-matrices", tuned(), "optimizer=adam offload_optimizer=50", "optimizer=muon"),
    ("muon-sharding", task(), "optimizer=muon zero=1|zero=3", "optimizer=muon zero=2"),
    ("muon-sharding", without_muon(0), "optimizer=muon zero=0", "optimizer=muon zero=1"),
    ("muon-sharding", without_muon(-1), "optimizer=adam zero=0", "optimizer=muon zero=0"),
    (
        "muon-exchanges",
        TITAN,
        "optimizer=muon zero=3 tp=1|optimizer=muon zero=0|zero=3",
        "optimizer=muon zero=3|optimizer=muon zero=1",
    ),
    ("muon-exchanges", without_muon(2), "optimizer=muon zero=2", ""),
    ("software-recomputes-modules", images(), "recompute=full|recompute=selective", ""),
    ("software-recomputes-modules", task("mixtral-8x7b"), "recompute=none", ""),
    ("listed-layers-recompute-whole", images(), "recompute=full", "recompute=selective"),
    ("adapters-keep-experts-whole", tuned("mixtral-8x7b"), "ep=1 etp=2", "ep=2 etp=2|ep=1 etp=1"),
    ("adapters-keep-experts-whole", tuned(), "ep=2 etp=1", ""),
    ("adapters-schedule", tuned(), "schedule=1f1b|schedule=gpipe", "schedule=zb-h2"),
    ("adapters-in-sixteen-bits", tuned(), "precision=bf16|precision=fp16", "precision=fp32"),
    ("adapters-sync", tuned(), "sync=ring", "sync=ring sync_period=2|compression=1-bit"),
    ("offload-optimizer-needs-host", hostless(), "offload_optimizer=0", "offload_optimizer=1"),
    ("offload-parameters-needs-zero-3", DEEPSPEED, "offload_parameters=1 zero=3|zero=1", ""),
    ("offload-parameters-needs-stack", DEEPSPEED, "offload_parameters=50 zero=3", ""),
    ("nvme-needs-stack", DEEPSPEED, "nvme=optimizer", ""),
    ("nvme-needs-drives", DRIVES, "nvme=optimizer", ""),
    (
        "nvme-needs-offload",
        DRIVES,
        "nvme=none|nvme=optimizer offload_optimizer=100 zero=3|"
        "nvme=parameters offload_parameters=100 zero=3|"
        "nvme=both offload_optimizer=100 offload_parameters=100 zero=3",
        "nvme=optimizer offload_optimizer=100 zero=2|nvme=optimizer offload_optimizer=99 zero=3|"
        "nvme=parameters offload_parameters=99 zero=3|nvme=both offload_optimizer=100 zero=3|"
        "nvme=parameters offload_optimizer=100 zero=3",
    ),
    (
        "offload-optimizer-shards",
        task(),
        "offload_optimizer=50 zero=1|pp=32 offload_optimizer=50 zero=0|offload_optimizer=0 zero=0",
        "offload_optimizer=1 zero=0|pp=32 offload_optimizer=50 zero=0 schedule=dualpipe|"
        "pp=16 dp=1 cp=2 offload_optimizer=50 zero=0",
    ),
    (
        "offload-optimizer-all-reduces",
        task(),
        "offload_optimizer=50 sync=ring|sync=parameter-server",
        "offload_optimizer=50 sync_period=2|offload_optimizer=50 compression=1-bit|"
        "offload_optimizer=1 sync=gossip",
    ),
    (
        "offload-modules-of-layers",
        OFFLOADS,
        "offload_activations=50|offload_activations=50 recompute=selective|recompute=full",
        "offload_activations=1 recompute=full",
    ),
    ("offload-modules-of-layers", task(), "offload_activations=50 recompute=full", ""),
    (
        "offload-modules-of-layers",
        replace(images(), software=OFFLOADS.software),
        "tp=1",
        "offload_activations=50",
    ),
    (
        "offload-activations-schedule",
        task(),
        "offload_activations=50 schedule=gpipe|schedule=zb-h1",
        "offload_activations=1 schedule=zb-h1",
    ),
    (
        "sync-needs-replicas",
        task(),
        "pp=16 dp=2 sync=gossip|pp=32",
        "pp=32 sync_period=2|pp=32 compression=1-bit|pp=32 sync=ring",
    ),
    (
        "sync-of-whole-replicas",
        task(),
        "cp=2 sync=ring|sync_period=2",
        "cp=2 sync_period=2|cp=2 compression=1-bit|schedule=dualpipe sync=parameter-server",
    ),
    (
        "sync-of-whole-replicas",
        EXPERTS,
        "ep=1 etp=2 sync=parameter-server",
        "ep=1 etp=1 sync=parameter-server|ep=2 etp=2 sync=parameter-server",
    ),
    (
        "sync-needs-zero-0",
        task(),
        "sync=ring zero=0|sites=2 sync_period=2 zero=1|zero=1",
        "compression=1-bit zero=1|sync_period=2 zero=1",
    ),
    (
        "topology-is-of-gossip",
        task(),
        "sync=gossip topology=ring|sync=ring",
        "sync=ring topology=ring|sync=hierarchical-gossip topology=none",
    ),
    (
        "graph-fits-replicas",
        GIVEN,
        "sync=gossip topology=given|sync=gossip topology=ring",
        "dp=8 pp=4 sync=gossip topology=given|sync=hierarchical-gossip topology=given",
    ),
    (
        "local-steps-are-not-overlapped",
        task(),
        "sync_period=2 overlap_grad_reduce=0|overlap_grad_reduce=1|"
        "sites=2 sync_period=2 overlap_grad_reduce=1",
        "sync_period=2 overlap_grad_reduce=1",
    ),
    (
        "compression-has-an-exchange",
        task(),
        "compression=1-bit|compression=1-bit sync=parameter-server|sync=gossip",
        "compression=1-bit sync_period=2|compression=1-bit sync=ring",
    ),
    (
        "levels-are-of-qsgd",
        task(),
        "compression=qsgd levels=2|compression=1-bit",
        "compression=qsgd levels=1|compression=1-bit levels=2",
    ),
    (
        "kept-entries-are-of-top-k",
        task(),
        "compression=mem-sgd kept_per_thousand=1|compression=qsgd",
        "compression=mem-sgd kept_per_thousand=0|compression=qsgd kept_per_thousand=1",
    ),
    (
        "buckets-need-overlap",
        task(),
        "bucket_parameters=1 overlap_grad_reduce=1 zero=2|overlap_grad_reduce=0",
        "bucket_parameters=1 overlap_grad_reduce=1 zero=3|"
        "bucket_parameters=1 overlap_grad_reduce=0|"
        "bucket_parameters=1 overlap_grad_reduce=1 sync=gossip zero=0",
    ),
    # 16 data ranks in several groups of several.
    (
        "shards-fill-ranks",
        task(),
        "shard=2 zero=1|shard=8 zero=3|shard=0 zero=0|dp=8 cp=2 shard=8 zero=1|"
        "dp=8 schedule=dualpipe shard=8 zero=1",
        "shard=1 zero=1|shard=16 zero=1|shard=3 zero=1|shard=2 zero=0|dp=8 cp=2 shard=16 zero=1|"
        "dp=8 schedule=dualpipe shard=16 zero=1|dp=8 shard=8 zero=1",
    ),
    ("sites-divide-replicas", task(), "sites=0|sites=2|sites=8", "sites=1|sites=16|sites=3"),
    (
        "sites-all-reduce",
        task(),
        "sites=2|sites=2 sync_period=10|sync=gossip",
        "sites=2 sync=gossip|sites=2 compression=1-bit|sites=2 shard=2|sites=2 offload_optimizer=1|"
        "sites=2 offload_parameters=1|sites=2 cp=2|sites=2 schedule=dualpipe",
    ),
    ("sites-all-reduce", tuned(), "sites=0", "sites=2"),
    ("sites-are-named", linked(), "sites=2|sites=1", "sites=0"),
    (
        "outer-steps-are-of-sites",
        task(),
        "sites=2 sync_period=2 fragments=2 outer_optimizer=nesterov outer_bits=4|sites=2|"
        "sync_period=2",
        "sites=2 outer_bits=4|sync_period=2 fragments=2|sync_period=2 outer_delay=1|"
        "sync_period=2 outer_bits=4|sites=2 outer_optimizer=nesterov|sites=2 fragments=2|"
        "sites=2 outer_delay=1",
    ),
    (
        "fragments-divide-period",
        task(),
        "fragments=5 sync_period=10|fragments=80 sync_period=160|fragments=1 sync_period=10",
        "fragments=4 sync_period=10|fragments=160 sync_period=160|fragments=20 sync_period=10",
    ),
    (
        "outer-delay-ends-in-turn",
        task(),
        "fragments=5 sync_period=10 outer_delay=2|sync_period=1|fragments=1 outer_delay=1",
        "fragments=5 sync_period=10 outer_delay=3|fragments=1 outer_delay=2",
    ),
    (
        "state-formats-of-framework",
        task(),
        "main_params_dtype=fp16|exp_avg_dtype=fp8|precision_aware=1|main_grads_dtype=bf16|"
        "grad_reduce_dtype=bf16",
        "main_params_dtype=bf16|main_grads_dtype=fp16|grad_reduce_dtype=fp32",
    ),
    (
        "state-formats-of-recipe",
        task(),
        "grad_reduce_dtype=bf16|grad_reduce_dtype=bf16 sync=ring|precision=fp32",
        "grad_reduce_dtype=bf16 precision=pure-bf16|precision_aware=1 sync_period=2|"
        "precision_aware=1 compression=1-bit|exp_avg_dtype=bf16 sync=gossip",
    ),
    (
        "state-formats-of-adam",
        task(),
        "precision_aware=1|optimizer=sgd main_params_dtype=fp32|"
        "optimizer=sgd main_grads_dtype=bf16",
        "optimizer=sgd precision_aware=1|optimizer=sgd main_params_dtype=fp16|"
        "optimizer=sgd exp_avg_sq_dtype=bf16",
    ),
    (
        "precision-aware-formats",
        task(),
        "exp_avg_dtype=fp32|exp_avg_dtype=bf16 precision_aware=1|grad_reduce_dtype=bf16",
        "exp_avg_sq_dtype=bf16|main_grads_dtype=bf16|main_params_dtype=fp16",
    ),
    ("precision-aware-formats", DEEPSPEED, "exp_avg_dtype=bf16|main_grads_dtype=bf16", ""),
    (
        "precision-aware-sharding",
        task(),
        "precision_aware=1 zero=1|zero=3",
        "precision_aware=1 zero=2|precision_aware=1 zero=0|"
        "precision_aware=1 zero=1 offload_optimizer=1",
    ),
    (
        "sixteen-bit-masters",
        DEEPSPEED,
        "main_params_dtype=bf16 exp_avg_dtype=bf16 exp_avg_sq_dtype=bf16 zero=1|"
        "main_params_dtype=bf16 zero=1|main_grads_dtype=bf16 zero=0|zero=0",
        "main_params_dtype=bf16 exp_avg_dtype=bf16 zero=1|main_params_dtype=bf16 zero=0|"
        "exp_avg_dtype=bf16 exp_avg_sq_dtype=bf16 zero=1|"
        "main_params_dtype=bf16 main_grads_dtype=fp32 zero=1",
    ),
    ("sixteen-bit-masters", task(), "exp_avg_dtype=bf16 zero=0", ""),
    ("grid-divides-hidden", task(), "tp=8 tp_grid=1x8x1|tp=7", "tp=7 tp_grid=1x7x1"),
    (
        "grid-divides-micro-batch",
        task(),
        "tp_grid=1x1x2 micro_batch=2|micro_batch=3",
        "tp_grid=1x1x2 micro_batch=1|tp_grid=1x1x2 micro_batch=3",
    ),
    (
        "grid-splits-no-sequence",
        task(),
        "tp_grid=2x1x1 sequence_parallel=0|sequence_parallel=1 cp=2",
        "tp_grid=2x1x1 sequence_parallel=0 cp=2|tp_grid=2x1x1 sequence_parallel=1",
    ),
    ("grid-in-sixteen-bits", task(), "precision=fp8|tp_grid=2x1x1", "tp_grid=2x1x1 precision=fp8"),
]


@pytest.mark.parametrize(("name", "question", "passes", "refused"), SIDES)
def test_a_rule_ends_where_it_should(name, question, passes, refused):
    for text in not_empty([*passes.split("|"), *refused.split("|")]):
        plan = resolve(Plan.parse(_with_defaults(text)), question.gpus)
        broken = name in dict(violations(plan, question))
        assert broken == (text in refused.split("|") and bool(text)), text


def _with_defaults(text):
    named = dict(word.split("=", 1) for word in text.split())
    return " ".join(f"{name}={value}" for name, value in {**PLAN, **named}.items())


@pytest.mark.parametrize(
    ("profile", "kernels"), [("h100-sxm", True), ("a100-80gb-sxm", False), ("rtx-4090", False)]
)
def test_kernels_of_experts_are_for_nvlink_since_hopper(profile, kernels):
    assert has_expert_kernels(Cluster.profile(profile, gpus=8)) == kernels


# What a message says


def message_of(name, question, text):
    plan = resolve(Plan.parse(_with_defaults(text)), question.gpus)
    (rule,) = [rule for rule in RULES if rule.name == name]
    return rule.message(plan, question)


@pytest.mark.parametrize(
    ("name", "question", "text", "end"),
    [
        # 64 GPUs; 36 of four and six ranks: three of the four are nearer than three of the six.
        ("world-size", task(), "dp=3", "= 12 != 64 GPUs; nearest: dp = 16"),
        ("world-size", task(), "tp=3 dp=10", "= 60 != 64 GPUs; nearest: tp=2"),
        ("world-size", task(gpus=36), "tp=4 pp=6 dp=2", "= 48 != 36 GPUs; nearest: tp=3"),
        ("world-size", task(gpus=36), "tp=6 pp=4 dp=2", "= 48 != 36 GPUs; nearest: pp=3"),
        ("world-size", task(), "tp=1 cp=3 pp=3 dp=7", "must divide 64: 8, 16"),
        ("batch-divides", task(), "dp=3 micro_batch=2", "dp(3) = 6; nearest: 60, 66"),
        ("batch-divides", task(), "dp=16 micro_batch=8", "dp(16) = 128; nearest: 128"),
        ("layers-fill-stages", task(), "pp=81", "at least one layer each, the model has 80"),
        (
            "layers-fill-stages",
            task(),
            "pp=27 virtual_stages=3",
            "nearest: first_stage_layers=2, which leaves embedding or head alone",
        ),
        (
            "layers-fill-stages",
            task(),
            "pp=41 virtual_stages=2",
            "nearest: first_stage_layers=1 last_stage_layers=1, which leaves embedding or head "
            "alone",
        ),
        ("layers-fill-stages", task(), "pp=83", "the model has 80"),
        ("layers-fill-stages", task(), "pp=42 virtual_stages=2", "the model has 80"),
        ("cp-divides-sequence", task(), "cp=3", "to balance the causal mask"),
        ("sync-needs-replicas", task(), "pp=32 sync_period=2", "when dp = 1"),
        ("experts-fold-into-ranks", EXPERTS, "cp=2 dp=8 ep=8 etp=8", "dp(8) = 32"),
        (
            "grid-divides-micro-batch",
            task(),
            "tp=4 tp_grid=1x1x4 micro_batch=6",
            "does not divide micro_batch=6; nearest: 4",
        ),
        ("grid-divides-micro-batch", task(), "tp_grid=1x1x2 micro_batch=1", "nearest: 2"),
        ("outer-delay-ends-in-turn", task(), "sync_period=10 fragments=5", "nearest: 2"),
        ("muon-sharding", without_muon(0), "optimizer=muon zero=1", "nearest: zero=0"),
        (
            "muon-sharding",
            without_muon(-1),
            "optimizer=muon",
            "has no Muon; nearest: optimizer=adam",
        ),
        ("tp-overlap-inside-domain", task(), "tp=12 overlap_tp=1", "or tp=4"),
        (
            "mtp-follows-layers",
            DEEPSEEK,
            "pp=4 virtual_stages=2 mtp_stage=9",
            "must be 8 to 8: multi-token prediction follows every layer",
        ),
    ],
)
def test_a_message_ends_with_the_nearest(name, question, text, end):
    assert message_of(name, question, text).endswith(end)


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("sync=gossip sync_period=2", "sync=gossip has"),
        ("sync_period=2 compression=1-bit", "sync_period=2 has"),
        ("compression=1-bit", "compression=one-bit has"),
    ],
)
def test_the_first_field_that_is_unusual_is_named(text, begin):
    assert message_of("sync-needs-replicas", task(), f"pp=32 {text}").startswith(begin)


# Runs of layers


REFUSED = [
    ("tp=2 pp=4 segments=8|8|8", "3 stages with 24 layers; pp = 4 and the model's 32"),
    ("tp=2 pp=4 segments=8|8|8|9", "4 stages with 33 layers"),
    ("tp=2 pp=4 segments=8:dp=8|8|8|8", "stages of 16+8+8+8 = 40 GPUs, the cluster has 32"),
    ("tp=2 pp=4 segments=4+4:tp=4,dp=4|8|8|8", "runs of stage 1 have tp x dp = 8 and 16"),
    ("tp=2 pp=4 virtual_stages=2 segments=8*4", "4 stages with 32 layers; pp = 4, virtual_stages"),
    ("tp=2 pp=4 virtual_stages=2 schedule=zb-v segments=4*8", "placed in turn"),
    ("tp=2 pp=2 virtual_stages=2 segments=8:tp=4,dp=4|8|8|8", "need the same tp, dp and zero"),
    ("tp=2 pp=4 first_stage_layers=8 segments=8*4", "nor first_stage_layers"),
    ("tp=4 pp=4 dp=2 micro_batch=1 segments=8:tp=1,dp=8|8*3", "cannot split 32 micro-batches of 2"),
    ("tp=8 pp=4 segments=8|8:tp=8,dp=1,zero=1|8*2", "zero=1 has nothing to shard"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_rules_refuse_runs_that_do_not_go_together(text, message):
    with pytest.raises(InputError, match=message.replace("+", r"\+")):
        evaluate(DENSE, Plan.parse(text))
    assert not legal_rows(resolve(Plan.parse(text), DENSE.gpus).table(), DENSE).any()


PASSES = [
    "tp=2 pp=4 segments=8|8|8|8",
    "tp=2 pp=4 segments=7|9|1|15",
    "tp=2 pp=4 segments=4+4:tp=4,dp=2|8|8|8",
    "tp=2 pp=4 cp=2 dp=2 micro_batch=2 segments=4+4:tp=4,dp=1|8|8|8",
    "tp=2 pp=2 virtual_stages=2 segments=8:tp=4,dp=4|8|8:tp=4,dp=4|8",
    "tp=4 pp=3 dp=2 micro_batch=2 segments=8|16:dp=4|8",
    "tp=8 pp=4 segments=8|8:tp=8,dp=1,zero=0|8*2",
]


@pytest.mark.parametrize("text", PASSES)
def test_runs_that_go_together_pass(text):
    plan = resolve(Plan.parse(text), DENSE.gpus)
    assert violations(plan, DENSE) == []
    assert legal_rows(plan.table(), DENSE).all()


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize(
    ("field", "on", "off"),
    [
        ("sequence_parallel", {"tp": 2}, {"tp": 1, "dp": 4}),
        ("overlap_tp", {"tp": 2}, {"tp": 1, "dp": 4}),
        ("overlap_ep", {"ep": 2}, {"ep": 1, "tp": 4}),
        ("overlap_grad_reduce", {"dp": 2}, {"dp": 1}),
        ("overlap_grad_reduce", {"dp": 1, "cp": 2}, {"dp": 1, "cp": 1}),
        ("overlap_param_gather", {"dp": 2, "zero": 1}, {"dp": 2, "zero": 0}),
        ("overlap_param_gather", {"dp": 2, "zero": 3}, {"dp": 1, "zero": 3}),
    ],
)
def test_what_a_run_has_no_use_for_is_off(field, on, off, kept):
    usual = dict.fromkeys(("tp", "dp", "cp", "ep"), 1) | {"zero": 0}
    switches = dict.fromkeys(
        ("sequence_parallel", "overlap_tp", "overlap_ep", "overlap_grad_reduce"), 1
    ) | {"overlap_param_gather": 1}
    stated = usual | switches | {field: kept}
    assert as_run(stated | on)[field] == kept
    assert as_run(stated | off)[field] == 0
