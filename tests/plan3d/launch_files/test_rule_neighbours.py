"""Plans on either side of what a framework refuses, and the nearest that its message names."""

import re

import numpy as np
import pytest
from rule_questions import task

from plan3d.launch_files.registry import EXPORTERS
from plan3d.simulator.plan.plan import Plan, resolve

MEGATRON, TITAN, OLD, SPEED, NANO = (
    ("megatron", ""), ("torchtitan", "0.3"), ("torchtitan", "0.2"), ("deepspeed", ""),
    ("nanotron", ""),
)  # fmt: skip
MIXTRAL = {"model": "mixtral-8x7b"}
OFFLOAD = "zero=3 offload_optimizer=100 offload_parameters=100"

NEIGHBOURS = [
    # At most the 80 / 4 layers of a stage at either end; none with delayed scaling.
    (MEGATRON, "ends-in-16-bits", "pp=4 bf16_first_layers=21", "pp=4 bf16_first_layers=20", {}),
    (MEGATRON, "ends-in-16-bits", "pp=4 bf16_last_layers=21", "pp=4 bf16_last_layers=20", {}),
    (MEGATRON, "ends-in-16-bits", "bf16_first_layers=1 precision=fp8-delayed",
     "precision=fp8-delayed", {}),
    (MEGATRON, "ends-in-16-bits", "bf16_last_layers=1 precision=fp8-delayed",
     "bf16_last_layers=1 precision=fp8", {}),
    (MEGATRON, "overlap-precision", "overlap_tp=1 precision=nvfp4", "overlap_tp=0 precision=nvfp4",
     {}),
    (MEGATRON, "overlap-precision", "overlap_tp=1 precision=nvfp4", "overlap_tp=1 precision=fp8",
     {}),
    (MEGATRON, "latent-overlap", "overlap_tp=1", "overlap_tp=0", {"model": "deepseek-v3"}),
    (MEGATRON, "window-context", "cp=2 cp_comm=p2p", "cp=2 cp_comm=a2a", {"model": "gemma-3-27b"}),
    (MEGATRON, "window-context", "cp=2 cp_comm=p2p", "cp=1 cp_comm=p2p", {"model": "gemma-3-27b"}),
    (MEGATRON, "fsdp-pipeline", "pp=2 zero=2", "pp=2 zero=1", {}),
    (MEGATRON, "fsdp-pipeline", "pp=2 zero=3", "pp=1 zero=2", {}),
    (MEGATRON, "sharded-adam", "zero=1 optimizer=sgd", "zero=0 optimizer=sgd", {}),
    (MEGATRON, "experts-bf16", "precision=fp16", "precision=bf16", MIXTRAL),
    (MEGATRON, "expert-overlap", "overlap_ep=1 recompute=full", "overlap_ep=0 recompute=full",
     MIXTRAL),
    (MEGATRON, "expert-overlap", "overlap_ep=1 precision=fp32", "overlap_ep=1 precision=bf16",
     MIXTRAL),
    (MEGATRON, "expert-overlap", "overlap_ep=1 zero=2", "overlap_ep=1 zero=1", MIXTRAL),
    (MEGATRON, "expert-overlap", "overlap_ep=1 pp=1", "overlap_ep=1 pp=2",
     {"model": "deepseek-v3"}),
    (MEGATRON, "expert-kernels", "expert_dispatch=hierarchical", "expert_dispatch=alltoall",
     MIXTRAL | {"cluster": "a100-80gb-sxm"}),
    (MEGATRON, "offloaded-optimizer", "offload_optimizer=100 zero=2",
     "offload_optimizer=100 zero=1", {}),
    (MEGATRON, "offloaded-optimizer", "offload_optimizer=1 optimizer=sgd",
     "offload_optimizer=0 optimizer=sgd", {}),
    (MEGATRON, "offloaded-optimizer", "offload_optimizer=1 fp8_params=1 precision=fp8",
     "offload_optimizer=1 fp8_params=1 precision=fp8-delayed", {}),
    (MEGATRON, "offloaded-activations", "offload_activations=10 pp=2", "offload_activations=0 pp=2",
     {}),
    (MEGATRON, "offloaded-activations", "offload_activations=10 recompute=full",
     "offload_activations=10 pp=1", {}),
    # Of 80 layers 12 are 15 %, 11 are 13; all are too many.
    (MEGATRON, "offloaded-layers", "offload_activations=14", "offload_activations=15", {}),
    (MEGATRON, "offloaded-layers", "offload_activations=100", "offload_activations=98", {}),
    (OLD, "compiled-schedule", "schedule=zb-v precision=fp8", "schedule=interleaved precision=fp8",
     {}),
    (OLD, "compiled-schedule", "schedule=zb-v overlap_tp=1", "schedule=zb-v overlap_tp=0", {}),
    # 64 sequences of 8 replicas are 8 micro-batches of one.
    (TITAN, "micro-batches", "pp=8 dp=8 micro_batch=2 schedule=1f1b",
     "pp=8 dp=8 micro_batch=1 schedule=1f1b", {}),
    (TITAN, "micro-batches", "pp=8 dp=8 micro_batch=2 schedule=1f1b",
     "pp=8 dp=8 micro_batch=2 schedule=gpipe", {}),
    (TITAN, "group", "pp=4 virtual_stages=2 micro_batch_group=8",
     "pp=4 virtual_stages=2 micro_batch_group=4", {}),
    (TITAN, "group", "pp=4 virtual_stages=2 micro_batch_group=8",
     "pp=4 virtual_stages=2 micro_batch_group=0", {}),
    (TITAN, "offloads-together", "zero=3 offload_optimizer=100", OFFLOAD, {}),
    (TITAN, "offloads-together", "zero=3 offload_optimizer=50 offload_parameters=50", "zero=3", {}),
    (TITAN, "hybrid", "cp=4 zero=3 shard=2", "cp=4 zero=3 shard=4", {}),
    (TITAN, "gradient-overlap", "dp=2 overlap_grad_reduce=0", "dp=2 overlap_grad_reduce=1",
     {"gpus": 2}),
    (TITAN, "gradient-overlap", "cp=2 dp=1 overlap_grad_reduce=0",
     "cp=2 dp=1 overlap_grad_reduce=1", {"gpus": 2}),
    (TITAN, "gather-overlap", "dp=2 zero=2 overlap_param_gather=0",
     "dp=2 zero=2 overlap_param_gather=1", {"gpus": 2}),
    (TITAN, "gather-overlap", "dp=2 zero=0 overlap_param_gather=1",
     "dp=2 zero=0 overlap_param_gather=0", {"gpus": 2}),
    (TITAN, "p2p-overlap", "pp=2 virtual_stages=2 overlap_p2p=0",
     "pp=2 virtual_stages=2 overlap_p2p=1", {}),
    (TITAN, "p2p-overlap", "pp=2 overlap_p2p=1", "pp=2 overlap_p2p=0", {}),
    (OLD, "expert-overlap", "overlap_ep=1 schedule=1f1b", "overlap_ep=0 schedule=1f1b", MIXTRAL),
    (OLD, "expert-overlap", "overlap_ep=1 schedule=dualpipe-v recompute=full",
     "overlap_ep=1 schedule=dualpipe-v", MIXTRAL),
    (OLD, "expert-sharding", "ep=2 zero=0", "ep=2 zero=2", MIXTRAL),
    (OLD, "expert-sharding", "ep=2 zero=0", "ep=1 zero=0", MIXTRAL),
    (OLD, "expert-sharding", "ep=2 etp=1 tp=2 dp=1 zero=2", "ep=2 cp=2 dp=1 zero=2",
     MIXTRAL | {"gpus": 2}),
    (OLD, "ddp-alone", "zero=0 tp=2", "zero=2 tp=2", {}),
    (OLD, "ddp-alone", "zero=0 pp=2", "zero=0 dp=64", {}),
    (OLD, "ddp-alone", "zero=0 cp=2", "zero=0 dp=1 tp=8 pp=8", {}),
    (OLD, "mixed-precision", "dp=1 tp=2 precision=bf16", "dp=1 tp=2 precision=pure-bf16",
     {"gpus": 2}),
    (OLD, "mixed-precision", "dp=1 pp=2 precision=bf16", "dp=1 cp=2 precision=bf16", {"gpus": 2}),
    (OLD, "mixed-precision", "dp=1 pp=2 precision=fp8", "dp=1 precision=bf16", {"gpus": 2}),
    (OLD, "float8-experts", "pp=2 precision=fp8", "pp=2 precision=bf16", MIXTRAL),
    (OLD, "float8-experts", "cp=2 precision=fp8", "dp=64 precision=fp8", MIXTRAL),
    (OLD, "sequence-parallel", "tp=2 sequence_parallel=0", "tp=2 sequence_parallel=1", {}),
    # 2,048 tokens are 2 x 8 x 128.
    (OLD, "sequence-divides", "tp=32 cp=64", "tp=8 cp=8", {"gpus": 2048}),
    (OLD, "expert-tensor", "tp=4 ep=2 etp=2", "tp=4 ep=2 etp=4", MIXTRAL),
    (OLD, "expert-tensor", "tp=4 ep=1 etp=4", "tp=4 ep=1 etp=1", MIXTRAL),
    (OLD, "deepep-experts", "tp=4 ep=2 etp=4 expert_dispatch=hierarchical",
     "tp=4 ep=2 etp=4 expert_dispatch=alltoall", MIXTRAL),
    (OLD, "deepep-experts", "tp=4 ep=2 etp=4 expert_dispatch=hierarchical",
     "tp=4 ep=2 etp=1 expert_dispatch=hierarchical", MIXTRAL),
    (OLD, "ddp-alone", "zero=0 tp=2 pp=2", "zero=2 tp=2 pp=2", {}),
    (OLD, "ddp-alone", "zero=0 tp=2", "zero=0 tp=1", {}),
    (OLD, "ddp-alone", "zero=0 cp=2", "zero=2 cp=2", {}),
    (OLD, "mixed-precision", "dp=1 tp=8 pp=8 precision=bf16", "dp=2 tp=8 pp=4 precision=bf16", {}),
    (OLD, "mixed-precision", "dp=1 tp=8 pp=8 precision=bf16",
     "dp=1 tp=8 pp=8 precision=pure-bf16", {}),
    (TITAN, "float8-scale", "precision=fp8", "precision=fp8-rowwise", {}),
    (TITAN, "expert-tensor", "tp=4 ep=2 etp=4", "tp=4 ep=2 etp=1", MIXTRAL),
    (TITAN, "context", "cp=2 cp_comm=p2p", "cp=2 cp_comm=all-gather", {}),
    (TITAN, "context", "cp=2 cp_comm=p2p", "cp=1 cp_comm=p2p", {}),
    (TITAN, "replicas-cp", "zero=0 cp=2", "zero=2 cp=2", {}),
    (TITAN, "replicas-cp", "zero=0 cp=2", "zero=0 cp=1", {}),
    (TITAN, "key-heads", "tp=16", "tp=8", {}),
    (SPEED, "key-heads", "tp=16", "tp=4", {}),
    (NANO, "key-heads", "tp=16", "tp=8", {}),
    (SPEED, "context-parallel", "cp=2 cp_comm=p2p", "cp=2 cp_comm=a2a", {}),
    (SPEED, "context-parallel", "cp=2 cp_comm=p2p", "cp=1 cp_comm=p2p", {}),
    (SPEED, "ulysses-alone", "cp=2 tp=2", "cp=2 tp=1", {}),
    (SPEED, "ulysses-alone", "cp=2 pp=2", "cp=1 pp=2 tp=2", {}),
    (SPEED, "zero-bubble", "pp=2 tp=2 schedule=zb-h1 sequence_parallel=1",
     "pp=2 tp=2 schedule=zb-h1 sequence_parallel=0", {}),
    (SPEED, "pipeline-zero", "pp=2 zero=2", "pp=2 zero=1", {}),
    (SPEED, "pipeline-zero", "pp=2 zero=3", "pp=1 zero=3", {}),
    (SPEED, "stages", "pp=2 first_stage_layers=39", "pp=2", {}),
    (SPEED, "stages", "pp=2 last_stage_layers=39", "pp=4", {}),
    (SPEED, "stages", "pp=2 layers_per_stage=39,41", "pp=1", {}),
    (SPEED, "stages", "pp=32", "pp=16", {}),
    (SPEED, "buckets", "zero=0 bucket_parameters=1000", "zero=1 bucket_parameters=1000", {}),
    (SPEED, "muon-alone", "tp=2 optimizer=muon", "tp=1 optimizer=muon", {}),
    (SPEED, "muon-alone", "pp=2 optimizer=muon", "pp=2 optimizer=adam", {}),
    (SPEED, "muon-alone", "cp=2 optimizer=muon", "cp=2 optimizer=adam", {}),
    (SPEED, "muon-alone", "recompute=full optimizer=muon", "optimizer=muon",
     {"model": "gpt3-1.3b"}),
    (SPEED, "offloaded-share", "zero=2 offload_optimizer=50", "zero=3 offload_optimizer=50", {}),
    (SPEED, "offloaded-share", "zero=2 offload_optimizer=50", "zero=2 offload_optimizer=100", {}),
    (SPEED, "offloaded-stages", "pp=2 offload_optimizer=100", "pp=2 offload_optimizer=0", {}),
    (SPEED, "offloaded-stages", "pp=2 offload_optimizer=100", "pp=1 offload_optimizer=100", {}),
    (SPEED, "offloaded-weights", "zero=3 offload_parameters=50", "zero=3 offload_parameters=100",
     {}),
    (SPEED, "gather-overlap", "zero=2 overlap_grad_reduce=1 overlap_param_gather=1",
     "zero=2 overlap_grad_reduce=1 overlap_param_gather=0", {}),
    (SPEED, "gather-overlap", "zero=3 overlap_grad_reduce=1 overlap_param_gather=0",
     "zero=3 overlap_grad_reduce=1 overlap_param_gather=1", {}),
    (SPEED, "gradient-overlap", "zero=0 overlap_grad_reduce=1", "zero=1 overlap_grad_reduce=1", {}),
    (SPEED, "gradient-overlap", "pp=2 zero=1 overlap_grad_reduce=1",
     "pp=2 zero=1 overlap_grad_reduce=0", {}),
    (NANO, "gradient-overlap", "dp=2 overlap_grad_reduce=0", "dp=2 overlap_grad_reduce=1",
     {"gpus": 2}),
    (NANO, "gradient-overlap", "cp=2 dp=1 overlap_grad_reduce=0",
     "cp=2 dp=1 overlap_grad_reduce=1", {"gpus": 2}),
    # Axes of one size, whose quotient is one.
    (TITAN, "gradient-overlap", "cp=2 dp=2 overlap_grad_reduce=0",
     "cp=2 dp=2 overlap_grad_reduce=1", {"gpus": 4}),
    (NANO, "gradient-overlap", "cp=2 dp=2 overlap_grad_reduce=0",
     "cp=2 dp=2 overlap_grad_reduce=1", {"gpus": 4}),
    (OLD, "ddp-alone", "zero=0 cp=2 dp=2", "zero=0 dp=4", {"gpus": 4}),
    (OLD, "ddp-alone", "zero=0 tp=2 cp=2 dp=1", "zero=2 tp=2 cp=2 dp=1", {"gpus": 4}),
    (OLD, "mixed-precision", "dp=1 tp=2 pp=2 precision=bf16",
     "dp=1 tp=2 pp=2 precision=pure-bf16", {"gpus": 4}),
    (OLD, "mixed-precision", "dp=1 tp=4 precision=bf16", "dp=2 cp=2 precision=bf16", {"gpus": 4}),
    (OLD, "float8-experts", "pp=2 cp=2 precision=fp8", "pp=2 cp=2 precision=bf16", MIXTRAL),
    (SPEED, "ulysses-alone", "cp=2 tp=2 pp=2", "cp=2 tp=1 pp=1", {}),
    (NANO, "stages", "pp=2 first_stage_layers=39", "pp=2", {}),
    (NANO, "stages", "pp=2 last_stage_layers=39", "pp=2", {}),
    (NANO, "stages", "pp=2 layers_per_stage=39,41", "pp=2", {}),
]  # fmt: skip


def test_a_rule_counts_the_micro_batches_that_a_plan_has():
    """64 sequences of 8 replicas, two at a time: four."""
    (asked,) = [r for r in EXPORTERS["torchtitan"].form("0.3").all_rules
                if r.name == "torchtitan-micro-batches"]  # fmt: skip
    plan = resolve(Plan.parse("pp=8 dp=8 micro_batch=2 schedule=1f1b"), 64).take(0)
    said = asked.message(plan, task())
    assert said.startswith("4 micro-batches: Schedule1F1B needs at least pp = 8")


@pytest.mark.parametrize(
    ("form", "rule", "refused", "accepted", "of_task"),
    NEIGHBOURS,
    ids=[f"{form[0]}{form[1]}-{rule}-{text}" for form, rule, text, *_ in NEIGHBOURS],
)
def test_a_rule_parts_its_neighbours(form, rule, refused, accepted, of_task):
    """And what its message names as nearest is accepted."""
    question = task(**of_task)
    (asked,) = [r for r in EXPORTERS[form[0]].form(form[1]).all_rules
                if r.name == f"{form[0]}-{rule}"]  # fmt: skip

    def keeps(text):
        return bool(np.all(asked.ok(resolve(Plan.parse(text), question.gpus).take(0), question)))

    assert (keeps(refused), keeps(accepted)) == (False, True)
    said = asked.message(resolve(Plan.parse(refused), question.gpus).take(0), question)
    _, _, nearest = said.partition("nearest: ")
    if nearest and (fields := re.match(r"(\w+=[\w-]+ ?)+", nearest)):
        changed = {name for name, _ in re.findall(r"(\w+)=([\w-]+)", fields[0])}
        kept = [word for word in refused.split() if word.partition("=")[0] not in changed]
        assert keeps(" ".join([*kept, fields[0].strip()])), nearest
