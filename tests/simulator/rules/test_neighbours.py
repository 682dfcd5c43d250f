"""Plans on either side of a rule: the nearest that it allows, and the nearest that it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.field_values import Loss
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.layer_run_rules import micro_batches, run_rows
from plan3d.simulator.rules.training_rules import supported_losses
from plan3d.simulator.rules.validity import violations
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.model import Model


def task(sequence: int = 2048, software: str = "megatron-core") -> Task:
    """24 layers of 16 heads on 16 GPUs, 64 sequences."""
    stack = software_profile(software)
    cluster = Cluster.profile("a100-80gb-sxm", gpus=16)
    return Task(
        Model.preset("gpt3-1.3b"), cluster, sequence=sequence, global_batch=64, software=stack
    )


def broken(text: str, asked: Task) -> set[str]:
    return {name for name, _ in violations(resolve(Plan.parse(text), asked.gpus), asked)}


NEIGHBOURS = [
    ("cp-divides-sequence", {}, "cp=4", {"sequence": 2044}, "cp=4"),
    ("cp-divides-sequence", {"sequence": 2044}, "cp=2", {"sequence": 2046}, "cp=2"),
    ("sequence-parallel-divides", {}, "tp=2", {"sequence": 2047}, "tp=2"),
    (
        "software-recomputes-modules",
        *({"software": "torch"}, "recompute=none"),
        *({"software": "torch"}, "recompute=selective"),
    ),
    ("end-stages-fit", {}, "pp=4 first_stage_layers=11 last_stage_layers=11",
     {}, "pp=4 first_stage_layers=12 last_stage_layers=11"),
    ("sync-needs-replicas", {}, "tp=8 dp=2 sync=gossip", {}, "tp=16 dp=1 sync=gossip"),
    ("grid-splits-no-sequence", {}, "tp=4 tp_grid=2x2 micro_batch=2",
     {}, "tp=4 cp=2 tp_grid=2x2 micro_batch=2"),
    ("zero-needs-data-ranks", {}, "tp=16 dp=1 zero=0", {}, "tp=16 dp=1 zero=1"),
    ("zero-needs-data-ranks", {}, "tp=8 dp=2 zero=1", {}, "tp=8 pp=2 dp=1 zero=1"),
    ("world-size", {}, "tp=2 pp=2 dp=4", {}, "tp=2 pp=2 dp=3"),
    (
        "segments-share-gpus",
        *({}, "pp=2 dp=8 segments=6:tp=1,dp=8+6:tp=2,dp=4|12"),
        *({}, "pp=2 dp=8 segments=6:tp=2,dp=8+6:tp=1,dp=4|12"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "one", "allowed", "other", "refused"), NEIGHBOURS)
def test_neighbours_of_a_rule(
    rule: str, one: dict[str, object], allowed: str, other: dict[str, object], refused: str
) -> None:
    assert rule not in broken(allowed, task(**one))  # type: ignore[arg-type]
    assert rule in broken(refused, task(**other))  # type: ignore[arg-type]


def test_drives_hold_what_has_left_the_gpus_in_shards_of_zero_3() -> None:
    asked = task(software="deepspeed")
    whole = "zero=3 offload_optimizer=100 nvme=optimizer"
    assert not [name for name in broken(whole, asked) if name == "nvme-needs-offload"]
    for text in (whole.replace("zero=3", "zero=2"), whole.replace("100", "50")):
        assert [name for name in broken(text, asked) if name == "nvme-needs-offload"], text


def test_sites_keep_what_they_train_on_their_gpus() -> None:
    text = "dp=16 sites=2 sync_period=4 zero=1"
    assert broken(text, task()) == set()
    away = broken(f"{text} offload_optimizer=100", task(software="deepspeed"))
    assert [name for name in away if name == "sites-all-reduce"]


def test_a_step_has_a_micro_batch_of_every_replica_at_a_time() -> None:
    asked = replace(task(), global_batch=64)
    assert micro_batches(resolve(Plan(dp=4, tp=4, micro_batch=8), 16), asked) == 2
    assert micro_batches(resolve(Plan(dp=16, micro_batch=8), 16), asked) == 1


def test_the_nearest_number_of_replicas_fills_the_gpus() -> None:
    plan = resolve(Plan(tp=2, pp=2, dp=3), 16)
    (message,) = [text for name, text in violations(plan, task()) if name == "world-size"]
    assert message.endswith("nearest: dp = 4")


def test_a_run_takes_its_share_of_a_micro_batch() -> None:
    """Of 64 sequences in micro-batches of 2 on 8 replicas: 4, of 16 sequences each; 8 replicas
    take 2 of them, 4 replicas 4."""
    text = "pp=2 dp=8 micro_batch=2 segments=6:tp=1,dp=8+6:tp=2,dp=4|12:tp=1,dp=8"
    rows, owner = run_rows(resolve(Plan.parse(text), 16), task())
    assert rows.dp.tolist() == [8, 4, 8]
    assert rows.micro_batch.tolist() == [2, 4, 2]
    assert owner.tolist() == [0, 0, 0]


def test_segments_of_too_few_layers_are_counted() -> None:
    plan = resolve(Plan.parse("pp=2 dp=8 segments=6+6|11"), 16)
    texts = [text for _, text in violations(plan, task())]
    assert any("segments give 2 stages with 23 layers; pp = 2 and" in text for text in texts)


def test_experts_beside_adapters_are_whole_on_every_rank() -> None:
    cluster = Cluster.profile("h100-sxm", gpus=8)
    model, adapters = Model.preset("mixtral-8x7b"), Adapters(rank=8)
    asked = Task(model, cluster, sequence=2048, global_batch=8, adapters=adapters)
    names = {ep: broken(f"ep={ep}", asked) for ep in (1, 2)}
    assert len(names[2] - names[1]) > 0
    assert not [name for name in names[1] if "expert" in name]


def test_losses_are_those_that_a_stack_has() -> None:
    stack = replace(
        software_profile("megatron-core"),
        **{"fused_logit_bytes": 0.0, "unfused_logit_bytes": 0.0, "loss_pieces": 0},
        fused_linear_loss=False,
    )
    assert supported_losses(stack) == [Loss.USUAL]
    assert supported_losses(replace(stack, fused_logit_bytes=2.0)) == [Loss.USUAL, Loss.FUSED]
    assert supported_losses(replace(stack, unfused_logit_bytes=2.0)) == [Loss.USUAL, Loss.UNFUSED]
    assert supported_losses(replace(stack, loss_pieces=1)) == [Loss.USUAL, Loss.CHUNKED]
    linear = replace(stack, fused_linear_loss=True)
    assert supported_losses(linear) == [Loss.USUAL, Loss.FUSED_LINEAR]
