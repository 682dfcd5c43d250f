"""Every field of a software profile changes an answer, in the direction that its name says."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from plan3d.launch_files.frameworks import for_framework, with_usual
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import SOFTWARE, Software, software_profile
from plan3d.simulator.pipeline import stage_placement
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.model import Model

DENSE = Plan(tp=4, pp=4, dp=4, micro_batch=1, zero=2, overlap_tp=1)
MATERIALISED = {"flash_attention": False, "score_bytes": 8.0}
# field: (another value, settings it needs, plan it shows on, model)
CHANGES = {
    "sustained": (0.5, {}, DENSE),
    "rank_spread": (0.1, {}, DENSE),
    "flash_attention": (False, {}, DENSE),
    "attention_rate": (0.5, {}, DENSE),
    "score_bytes": (20.0, MATERIALISED, DENSE),
    "memory_bound_rate": (0.5, {}, DENSE),
    "backward_bytes_ratio": (3.0, {}, DENSE),
    "wgrad_rate": (0.5, {}, DENSE),
    "accumulation_bytes": (10.0, {}, DENSE),
    "clipping_bytes": (120.0, {}, DENSE),
    "copies_gathered": (True, {}, replace(DENSE, zero=3)),
    "layer_floor": (0.1, {}, DENSE),
    "backward_floor_ratio": (3.0, {"layer_floor": 0.1}, DENSE),
    "pipeline_floor": (1.0, {}, DENSE),
    "tp_overlap_share": (0.1, {}, DENSE),
    "contention": (0.9, {}, DENSE),
    "kernel_contention": (0.9, {}, DENSE),
    "fsdp_contention": (0.1, {}, replace(DENSE, zero=3)),
    "bucket_parameters": (1e6, {}, DENSE),
    "bucket_parameters_per_rank": (1e8, {}, DENSE),
    "step_seconds": (1.0, {}, DENSE),
    "slice_seconds": (1e-3, {}, replace(DENSE, zero=1)),
    "module_seconds": (1.0, {}, replace(DENSE, zero=3)),
    "gradient_seconds": (1.0, {}, replace(DENSE, zero=3)),
    "reduction_seconds": (1.0, {}, replace(DENSE, zero=3)),
    "norm_seconds": (1.0, {}, DENSE),
    "overflow_seconds": (1.0, {}, DENSE),
    "fused_update": (False, {}, DENSE),
    "broadcast_tensors": (9, {}, replace(DENSE, zero=1, overlap_param_gather=0)),
    "all_reduces_shards": (True, {}, replace(DENSE, zero=1, overlap_grad_reduce=0)),
    "scatter_gather": (True, {}, replace(DENSE, sequence_parallel=0, overlap_tp=0)),
    "kept_score_bytes": (20.0, {"flash_attention": False}, DENSE),
    "passing_score_bytes": (
        90.0,
        {"flash_attention": False},
        replace(DENSE, recompute="full"),
    ),
    "never_gathers_again": (True, {}, DENSE),
    "copied_inputs": (3.0, {}, replace(DENSE, sequence_parallel=0, overlap_tp=0)),
    "packed_qkv": (True, {}, DENSE),
    "cut_by_parameters": (True, {}, DENSE),
    "offloads_gradients": (True, {}, replace(DENSE, zero=3, offload_optimizer=50)),
    "host_scaling_bytes": (12.0, {}, replace(DENSE, offload_optimizer=100)),
    "uploads_after_update": (True, {}, replace(DENSE, offload_optimizer=100)),
    "keeps_scaled": (False, {}, replace(DENSE, precision="fp8")),
    "scales_activation_inputs": (True, {}, replace(DENSE, precision="fp8")),
    "scaled_output_bytes": (1.5, {}, replace(DENSE, precision="fp8")),
    "reduce_bytes": (8.0, {}, DENSE),
    "gradient_memory": (8.0, {}, DENSE),
    "live_parameters": (5e9, {}, replace(DENSE, zero=3)),
    "gathered_ends": (("head",), {}, replace(DENSE, zero=3)),
    "bucket_memory": (2.0, {}, DENSE),
    "ddp_buckets": (1.0, {}, replace(DENSE, zero=0)),
    "optimizer_memory": (20.0, {}, DENSE),
    "dropout": (True, {}, DENSE),
    "fused_activation": (False, {}, DENSE),
    "fused_norm": (False, {}, DENSE),
    "keeps_gathered": (True, {}, Plan(tp=4, dp=16, zero=3)),
    "offload_modules": (("core_attn",), {}, replace(DENSE, offload_activations=100)),
    "selective": (
        ("mlp",),
        {"selective": ("core_attn",)},
        replace(DENSE, recompute="selective"),
    ),
    "norm_in_linear": (
        False,
        {"selective": ("core_attn", "layernorm")},
        replace(DENSE, recompute="selective"),
    ),
    "working_sets": (9.0, {}, replace(DENSE, recompute="full")),
    "spares_last_product": (True, {}, replace(DENSE, recompute="full")),
    "vocabulary_multiple": (4096, {}, DENSE),
    "logit_bytes": (200.0, {}, DENSE),
    "sharded_logits": (False, {"logit_bytes": 200.0}, DENSE),
    "kept_logit_bytes": (14.0, {"logit_bytes": 200.0}, replace(DENSE, schedule="gpipe")),
    "unfused_logit_bytes": (200.0, {}, replace(DENSE, loss="unfused")),
    "fused_logit_bytes": (200.0, {}, replace(DENSE, loss="fused")),
    "loss_pieces": (4, {"loss_pieces": 8}, replace(DENSE, loss="chunked")),
    "gather_buffers": (50.0, {}, DENSE),
    "boundary_buffers": (50.0, {}, DENSE),
    "cublas_workspaces": (50.0, {}, DENSE),
    "context_bytes": (9e9, {}, DENSE),
    "process_groups": (("tensor",), {}, DENSE),
    "connection_bytes": (9e9, {}, DENSE),
    "allocator_slack": (0.5, {}, DENSE),
    "rerun_slack": (0.5, {}, replace(DENSE, recompute="full")),
    "uncounted": (0.5, {}, DENSE),
}


def asked(software: Software, model: str = "llama-13b") -> Task:
    cluster = Cluster.profile("h100-sxm", gpus=64)
    return Task(Model.preset(model), cluster, sequence=2048, global_batch=256, software=software)


def answer(software: Software, plan: Plan, model: str = "llama-13b") -> tuple[float, float]:
    costs = evaluate(asked(software, model), plan)
    return costs.step_seconds, costs.memory_bytes


def test_every_field_is_tried() -> None:
    elsewhere = {"splits", "keeps_expert_output", "expert_exchange", "expert_overlap"}
    elsewhere |= {"expert_workspaces"}  # tests/formulas/test_rank_memory.py
    elsewhere |= {"fused_permutation"}  # tests/formulas/test_operators.py
    elsewhere |= {"fused_linear_loss"}  # tests/formulas/test_losses.py
    elsewhere |= {"fused_adapters", "unpacks_by_operators"}  # tests/formulas/test_adapters.py
    elsewhere |= {"offloads_parameters", "swaps_to_nvme"}  # tests/simulator/rules/test_rules.py
    elsewhere |= {"muon_stage"}  # tests/formulas/test_formats.py
    elsewhere |= {"expands_keys"}  # tests/formulas/test_activations.py
    elsewhere |= {"frees_gradients", "unreduced_gradients", "flat_gradients", "update_memory"}
    elsewhere |= {"casts_shards", "sharded_inputs", "adapter_casts", "keeps_packed_inputs"}
    elsewhere |= {"gradient_pool", "autocasts"}
    elsewhere |= {"whole_buckets"}  # tests/formulas/test_zero_bytes.py
    elsewhere |= {"keeps_ring_steps"}  # tests/formulas/test_context_parallel.py
    elsewhere |= {"keeps_shards"}  # tests/formulas/test_engine_hooks.py
    # tests/formulas/test_fp32_beside_packed.py
    elsewhere |= {"fp32_beside_packed", "clones_packed_outputs"}
    # tests/formulas/test_peak_moments.py
    elsewhere |= {"expert_seconds", "adapter_floor", "expert_floor"}
    elsewhere |= {"layer_launches", "routing_launches", "expert_launches", "graphs"}
    # tests/formulas/test_layer_seconds.py
    elsewhere |= {"multi_token_prediction"}  # tests/formulas/test_adapters.py
    elsewhere |= {"tp_overlap_across_domains"}  # tests/simulator/rules/test_rules.py
    elsewhere |= {"name", "title", "framework", "base", "provenance"}
    elsewhere |= {"lone_step_seconds"}  # tests/formulas/test_whole_steps.py
    elsewhere |= {"scatters"}  # tests/simulator/uncertainty/test_prior.py
    elsewhere |= {"spreads"}  # tests/simulator/uncertainty/test_learned.py
    assert set(CHANGES) | elsewhere == {field.name for field in fields(Software)}


@pytest.mark.parametrize("name", CHANGES)
def test_a_field_changes_the_answer(name: str) -> None:
    value, needed, plan = CHANGES[name]
    before = replace(software_profile("megatron-core"), **needed)
    assert answer(before, plan) != answer(replace(before, **{name: value}), plan)


@pytest.mark.parametrize(("zero", "layers"), [(0, 0), (1, 11), (2, 11)])
def test_slices_are_copied_once_a_step_for_each_layer_and_rank(zero: int, layers: int) -> None:
    lean = software_profile("megatron-core")
    plan = Plan(tp=4, pp=4, dp=4, zero=zero, overlap_param_gather=0, overlap_grad_reduce=0)
    before, after = (answer(replace(lean, slice_seconds=s), plan)[0] for s in (0.0, 10.0))
    # The first stage holds ten layers and the embedding.
    assert after - before == pytest.approx(layers * 4 * 10.0, rel=0.01)


@pytest.mark.parametrize("plan", [Plan(tp=4, pp=4, dp=4), Plan(tp=8, pp=8), Plan(tp=8, dp=8)])
def test_buckets_wait_in_pipelines_with_replicas(plan: Plan) -> None:
    lean = replace(software_profile("megatron-core"), allocator_slack=0.0)
    before = evaluate(asked(lean), plan)
    after = evaluate(asked(replace(lean, bucket_memory=2.0)), plan)
    weights = before.memory["weights"] if plan.pp > 1 and plan.dp > 1 else 0.0
    assert after.memory["buffers"] - before.memory["buffers"] == pytest.approx(weights)


@pytest.mark.parametrize("bytes_of_loss", [30.0, 400.0])
def test_a_loss_and_a_layer_that_runs_again_take_turns(bytes_of_loss: float) -> None:
    lean = replace(software_profile("megatron-core"), allocator_slack=0.0)

    def buffers(working_sets: float, loss: float) -> float:
        changes = {"working_sets": working_sets, "logit_bytes": lean.kept_logit_bytes + loss}
        costs = evaluate(asked(replace(lean, **changes)), Plan(tp=4, dp=16, recompute="full"))
        return float(costs.memory["buffers"])

    alone = buffers(4.0, 0.0), buffers(0.0, bytes_of_loss)
    assert min(alone) > buffers(0.0, 0.0)
    assert buffers(4.0, bytes_of_loss) == max(alone)


def test_kept_expert_outputs_take_memory() -> None:
    lean = software_profile("megatron-core")
    plan = Plan(pp=2, ep=8, dp=32)
    full = answer(replace(lean, keeps_expert_output=True), plan, "mixtral-8x7b")
    assert full[1] > answer(lean, plan, "mixtral-8x7b")[1]


@pytest.mark.parametrize(
    ("name", "degree", "said"),
    [
        ("megatron-lm-2021", "cp", "megatron-lm-2021 has no context parallelism: cp=2 must be 1"),
        ("hf-trainer", "tp", "hf-trainer has no tensor parallelism: tp=2 must be 1"),
        ("hf-trainer", "pp", "hf-trainer has no pipeline parallelism: pp=2 must be 1"),
        ("fsdp", "pp", "fsdp has no pipeline parallelism: pp=2 must be 1"),
    ],
)
def test_a_stack_refuses_what_it_cannot_split(name: str, degree: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        evaluate(asked(software_profile(name)), Plan(**{degree: 2}))


@pytest.mark.parametrize("stack", ["hf-trainer", software_profile("hf-trainer")])
def test_experts_in_a_loop_are_sharded_by_the_engine_until_something_says_otherwise(stack) -> None:
    cluster = Cluster.profile("h100-sxm", gpus=16)
    task = Task("mixtral-8x7b", cluster, sequence=2048, global_batch=64, software=stack)
    engine = replace(task, software="hf-deepspeed")
    assert task.software == engine.software == software_profile("hf-deepspeed")
    plan = Plan(zero=3, recompute="full")
    assert evaluate(task, plan).step_seconds == evaluate(engine, plan).step_seconds
    assert replace(task, adapters=Adapters()).software.name == "hf-trainer"
    assert for_framework(task, "accelerate").software.name == "hf-trainer"
    assert for_framework(engine, "accelerate").software.name == "hf-deepspeed"
    assert with_usual(task).software.name == "hf-deepspeed"
    assert replace(replace(task, adapters=Adapters()), adapters=None) == task
    assert replace(task, model=Model.preset("llama-7b")).software.name == "hf-trainer"


def test_a_search_keeps_to_what_the_stack_can_split() -> None:
    """Adapters are trained by hf-trainer, which shards and does not split."""
    found = rank_plans(replace(asked(software_profile("hf-trainer")), adapters=Adapters()))
    assert found.plans
    assert {(plan.tp, plan.pp, plan.cp, plan.ep) for plan in found.plans} == {(1, 1, 1, 1)}


def test_a_stack_without_expert_exchanges_is_searched_without() -> None:
    choose = {"tp": [1], "pp": [4], "micro_batch": [1], "recompute": [0], "zero": [1]}
    for name, searched in (("megatron-core", True), ("nanotron", False)):
        question = asked(software_profile(name), "mixtral-8x7b")
        best = rank_plans(
            question, Ranking(choose={**choose, "ep": [8], "virtual_stages": [2]})
        ).plans[0]
        assert bool(best.overlap_ep) is searched


def test_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean megatron-core"):
        software_profile("megatron-cor")


@pytest.mark.parametrize("name", SOFTWARE)
def test_shipped_profiles_answer(name: str) -> None:
    step, memory = answer(
        software_profile(name), Plan(pp=4 if "pp" in software_profile(name).splits else 1)
    )
    assert 0 < step < 1e4
    assert 0 < memory < 1e12


def test_parameter_cut_leaves_the_head_its_share() -> None:
    # A layer of 67.1 M and a head of 268.4 M parameters: Llama-like 1B with 131,072 tokens.
    layer, head = 4.0 * 2048**2 + 3 * 2048 * 8192, 131072.0 * 2048
    assert stage_placement.parameter_cut([layer] * 16, head, 2) == (11, 5)
    assert stage_placement.parameter_cut([layer] * 16, head, 4) == (6, 5, 5, 0)
    assert stage_placement.parameter_cut([1.0] * 8, 0.0, 4) == (3, 2, 2, 1)
