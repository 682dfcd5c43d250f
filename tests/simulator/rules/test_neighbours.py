"""Plans on either side of a rule: the nearest that it allows, and the nearest that it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.field_values import Loss
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.rules.layer_run_rules import as_run, micro_batches, run_rows
from plan3d.simulator.rules.training_rules import supported_losses
from plan3d.simulator.rules.validity import legal_rows, violations
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.model import Model


def task(
    sequence: int = 2048,
    software: str = "megatron-core",
    gpus: int = 16,
    model: str = "gpt3-1.3b",
    cluster: str = "a100-80gb-sxm",
) -> Task:
    """24 layers of 24 heads on 16 GPUs, 64 sequences."""
    stack, machine = software_profile(software), Cluster.profile(cluster, gpus=gpus)
    return Task(Model.preset(model), machine, sequence=sequence, global_batch=64, software=stack)


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
    # 16 ranks hold groups of 2 to 8, sharded.
    ("shards-fill-ranks", {}, "dp=16 zero=1 shard=8", {}, "dp=16 zero=1 shard=16"),
    ("shards-fill-ranks", {}, "dp=16 zero=1 shard=2", {}, "dp=16 zero=1 shard=1"),
    ("shards-fill-ranks", {}, "dp=16 zero=1 shard=4", {}, "dp=16 zero=0 shard=4"),
    ("shards-fill-ranks", {}, "dp=16 zero=1 shard=4", {}, "dp=16 zero=1 shard=3"),
    ("shards-fill-ranks", {}, "dp=4 cp=2 tp=2 zero=1 shard=4", {}, "dp=4 tp=4 zero=1 shard=4"),
    ("sites-divide-replicas", {}, "dp=16 sites=8", {}, "dp=16 sites=16"),
    ("sites-divide-replicas", {}, "dp=16 sites=2", {}, "dp=16 sites=1"),
    ("sites-divide-replicas", {}, "dp=16 sites=4", {}, "dp=16 sites=3"),
    ("sites-all-reduce", {}, "dp=16 sites=2 zero=1", {}, "dp=16 sites=2 zero=1 shard=4"),
    ("sites-all-reduce", {}, "dp=16 sites=2", {}, "dp=16 sites=2 compression=qsgd levels=16"),
    ("sites-all-reduce", {}, "dp=16 sites=2", {}, "dp=16 sites=2 sync=parameter-server"),
    ("sites-all-reduce", {}, "dp=16 sites=2", {}, "dp=8 cp=2 sites=2"),
    ("outer-steps-are-of-sites", {}, "dp=16 sites=2 sync_period=2 outer_bits=8",
     {}, "dp=16 sites=2 sync_period=1 outer_bits=8"),
    ("outer-steps-are-of-sites", {}, "dp=16 sites=2 sync_period=2 outer_delay=1",
     {}, "dp=16 sync_period=2 outer_delay=1"),
    ("outer-steps-are-of-sites", {}, "dp=16 sync_period=2", {}, "dp=16 sync_period=2 fragments=2"),
    # Of 24 layers at most as many parts.
    ("fragments-divide-period", {}, "dp=16 sites=2 sync_period=48 fragments=24",
     {}, "dp=16 sites=2 sync_period=48 fragments=48"),
    ("fragments-divide-period", {}, "dp=16 sites=2 sync_period=9 fragments=3",
     {}, "dp=16 sites=2 sync_period=9 fragments=2"),
    ("outer-delay-ends-in-turn", {}, "dp=16 sites=2 sync_period=12 fragments=3 outer_delay=4",
     {}, "dp=16 sites=2 sync_period=12 fragments=3 outer_delay=5"),
    ("local-steps-are-not-overlapped", {}, "dp=16 sync_period=2 overlap_grad_reduce=0",
     {}, "dp=16 sync_period=2 overlap_grad_reduce=1"),
    ("local-steps-are-not-overlapped", {}, "dp=16 overlap_grad_reduce=1",
     {}, "dp=16 sync_period=2 overlap_grad_reduce=1"),
    ("levels-are-of-qsgd", {}, "dp=16 compression=qsgd levels=2",
     {}, "dp=16 compression=qsgd levels=1"),
    ("levels-are-of-qsgd", {}, "dp=16 levels=0", {}, "dp=16 levels=2"),
    ("kept-entries-are-of-top-k", {}, "dp=16 compression=top-k kept_per_thousand=1",
     {}, "dp=16 compression=top-k kept_per_thousand=0"),
    ("kept-entries-are-of-top-k", {}, "dp=16", {}, "dp=16 kept_per_thousand=1"),
    ("buckets-need-overlap", {}, "dp=16 zero=2 overlap_grad_reduce=1 bucket_parameters=1000",
     {}, "dp=16 zero=3 overlap_grad_reduce=1 bucket_parameters=1000"),
    ("buckets-need-overlap", {}, "dp=16 overlap_grad_reduce=1 bucket_parameters=1000",
     {}, "dp=16 overlap_grad_reduce=0 bucket_parameters=1000"),
    ("sync-needs-zero-0", {}, "dp=16 zero=0 sync_period=2", {}, "dp=16 zero=1 sync_period=2"),
    ("sync-needs-zero-0", {}, "dp=16 zero=1 sync_period=2 sites=2",
     {}, "dp=16 zero=1 sync_period=2"),
    ("sync-of-whole-replicas", {}, "dp=8 tp=2 sync_period=2", {}, "dp=8 cp=2 sync_period=2"),
    # 24 layers: 13 ranks of 2 chunks have 26 but for an end without layers; one chunk an end.
    ("layers-fill-stages", {}, "pp=12 virtual_stages=2 dp=1 tp=1",
     {}, "pp=16 virtual_stages=2 dp=1 tp=1"),
    ("layers-fill-stages", {"gpus": 13}, "pp=13 virtual_stages=2 dp=1 first_stage_layers=1 "
     "last_stage_layers=1", {"gpus": 13}, "pp=13 virtual_stages=2 dp=1 first_stage_layers=1"),
    ("layers-fill-stages", {"gpus": 13}, "pp=13 virtual_stages=2 dp=1 first_stage_layers=1 "
     "last_stage_layers=1", {"gpus": 13}, "pp=13 virtual_stages=2 dp=1 first_stage_layers=2 "
     "last_stage_layers=1"),
    ("batch-divides", {}, "dp=16 micro_batch=4", {}, "dp=16 micro_batch=8"),
    ("sequence-parallel-needs-tp", {}, "tp=2 sequence_parallel=1", {}, "tp=1 sequence_parallel=1"),
    ("context-exchange-needs-cp", {}, "cp=2 cp_comm=a2a", {}, "cp=1 cp_comm=a2a"),
    ("context-exchange-divides-heads", {}, "tp=4 cp=2 cp_comm=a2a",
     {}, "tp=8 cp=2 cp_comm=a2a"),
    ("grad-overlap-needs-data-ranks", {}, "tp=8 dp=2 overlap_grad_reduce=1",
     {}, "tp=16 dp=1 overlap_grad_reduce=1"),
    ("grad-overlap-needs-data-ranks", {}, "tp=8 dp=1 cp=2 overlap_grad_reduce=1",
     {}, "tp=8 pp=2 dp=1 overlap_grad_reduce=1"),
    ("gather-overlap-needs-zero", {}, "zero=1 overlap_param_gather=1 overlap_grad_reduce=1",
     {}, "zero=0 overlap_param_gather=1 overlap_grad_reduce=1"),
    ("gather-overlap-needs-zero", {}, "zero=1 overlap_param_gather=0 overlap_grad_reduce=0",
     {}, "zero=1 overlap_param_gather=1 overlap_grad_reduce=0"),
    ("listed-layers-are-whole", {}, "tp=2 cp=2",
     {"model": "resnet-50", "sequence": 1}, "tp=1 cp=2"),
    ("listed-layers-are-whole", {"model": "resnet-50", "sequence": 1}, "tp=1",
     {"model": "resnet-50", "sequence": 1}, "tp=2"),
    # Chunks of an end: all of them, or all but one where chunks go in turn.
    ("end-stages-fit", {}, "pp=4 virtual_stages=2 first_stage_layers=1",
     {}, "pp=4 schedule=zb-v virtual_stages=2 first_stage_layers=1"),
    ("end-stages-fit", {}, "pp=4 virtual_stages=3 last_stage_layers=2",
     {}, "pp=4 virtual_stages=3 last_stage_layers=1"),
    ("end-stages-fit", {}, "pp=4 virtual_stages=3 first_stage_layers=2 last_stage_layers=3",
     {}, "pp=4 virtual_stages=3 first_stage_layers=1 last_stage_layers=3"),
    ("end-stages-fit", {}, "pp=2 first_stage_layers=11 last_stage_layers=13",
     {}, "pp=2 first_stage_layers=11 last_stage_layers=12"),
    ("end-stages-fit", {}, "pp=4 virtual_stages=2 first_stage_layers=18",
     {}, "pp=4 virtual_stages=2 first_stage_layers=19"),
    ("end-stages-fit", {}, "pp=1", {}, "pp=1 first_stage_layers=24"),
    ("virtual-stages-need-pipeline", {}, "pp=2 virtual_stages=2", {}, "pp=1 virtual_stages=2"),
    ("micro-batch-group-fills-pipeline", {}, "pp=4 virtual_stages=2 micro_batch_group=4",
     {}, "pp=4 virtual_stages=2 micro_batch_group=3"),
    ("mtp-follows-layers", {}, "pp=4", {}, "pp=4 mtp_stage=4"),
    # 8 experts, folded into 16 ranks.
    ("experts-fold-into-ranks", {"model": "mixtral-8x7b"}, "tp=2 cp=2 dp=4 ep=8 etp=2",
     {"model": "mixtral-8x7b"}, "tp=2 pp=2 cp=1 dp=4 ep=8 etp=2"),
    ("ep-divides-experts", {"model": "mixtral-8x7b"}, "ep=8", {"model": "mixtral-8x7b"}, "ep=16"),
    ("expert-exchange-needs-ep", {"model": "mixtral-8x7b"}, "ep=2 overlap_ep=1",
     {"model": "mixtral-8x7b"}, "ep=1 overlap_ep=1"),
    ("expert-overlap-needs-interleaving", {"model": "mixtral-8x7b"},
     "ep=2 pp=2 virtual_stages=2 overlap_ep=1", {"model": "mixtral-8x7b"},
     "ep=2 pp=2 overlap_ep=1"),
    ("expert-axes-need-experts", {}, "ep=1", {}, "ep=2"),
    ("moe-tp-needs-sequence-parallel", {"model": "mixtral-8x7b"}, "tp=2 sequence_parallel=1",
     {"model": "mixtral-8x7b"}, "tp=2 sequence_parallel=0"),
    ("all-gather-of-experts", {"model": "mixtral-8x7b"}, "ep=2 expert_dispatch=all-gather",
     {"model": "mixtral-8x7b"}, "ep=2 expert_dispatch=all-gather pp=2 virtual_stages=2 "
     "overlap_ep=1"),
    ("scaled-parameters", {"cluster": "h100-sxm"}, "precision=fp8 fp8_params=1 zero=1",
     {"cluster": "h100-sxm"}, "precision=fp8 fp8_params=1 zero=0"),
    ("muon-sharding", {"software": "deepspeed"}, "optimizer=muon zero=2",
     {}, "optimizer=muon zero=3"),
    ("muon-whole-matrices", {}, "optimizer=muon zero=0", {"software": "deepspeed"},
     "optimizer=muon zero=1 offload_optimizer=100"),
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


@pytest.mark.parametrize(
    ("plan", "nearest"),
    [
        ("tp=2 pp=2 dp=3", "dp = 4"),
        ("tp=3 dp=1", "tp=2"),
        ("tp=2 pp=3 dp=1", "pp=2"),
        ("tp=2 cp=5 dp=1", "cp=4"),
        ("tp=3 pp=16 dp=1", "tp=1"),
        ("tp=17 pp=5 dp=1", "tp x cp x pp must divide 16: 16"),
    ],
)
def test_the_axis_that_shrinks_least_is_the_nearest(plan: str, nearest: str) -> None:
    """Of 16 GPUs."""
    texts = [text for name, text in violations(resolve(Plan.parse(plan), 16), task())
             if name == "world-size"]  # fmt: skip
    assert [text.partition("nearest: ")[2] for text in texts] == [nearest]


@pytest.mark.parametrize(
    ("batch", "nearest"), [(100, "nearest: 96, 128"), (31, "nearest: 32"), (33, "nearest: 32, 64")]
)
def test_the_nearest_batches_are_multiples(batch: int, nearest: str) -> None:
    """Of 16 replicas with micro-batches of 2."""
    asked = replace(task(), global_batch=batch)
    plan = resolve(Plan(dp=16, micro_batch=2), 16)
    (message,) = [text for name, text in violations(plan, asked) if name == "batch-divides"]
    assert message.endswith(nearest)


@pytest.mark.parametrize(
    ("pp", "said"),
    [
        (13, "nearest: first_stage_layers=1 last_stage_layers=1, which leaves"),
        (14, "the model has 24"),
    ],
)
def test_chunks_without_layers_are_named(pp: int, said: str) -> None:
    """26 chunks of 24 layers leave embedding and head alone; 28 are too many."""
    plan = resolve(Plan(pp=pp, virtual_stages=2, dp=1), pp)
    (message,) = [t for n, t in violations(plan, task(gpus=pp)) if n == "layers-fill-stages"]
    assert said in message
    assert ("nearest" in message) is (pp == 13)


def test_switches_of_runs_are_off_where_they_are_of_no_use() -> None:
    """Runs of one rank of each axis, of two tensor ranks, of two replicas, and of two experts."""
    ones = np.ones(4, int)
    columns = {
        "dp": np.array([1, 1, 2, 1]), "cp": np.array([1, 1, 1, 2]), "tp": np.array([1, 2, 1, 1]),
        "ep": np.array([1, 1, 1, 2]), "zero": np.array([1, 1, 1, 0]), "sequence_parallel": ones,
        "overlap_tp": ones, "overlap_ep": ones, "overlap_grad_reduce": ones,
        "overlap_param_gather": ones,
    }  # fmt: skip
    found = {name: value.tolist() for name, value in as_run(columns).items()}
    assert found["sequence_parallel"] == found["overlap_tp"] == [0, 1, 0, 0]
    assert found["overlap_ep"] == [0, 0, 0, 1]
    assert found["overlap_grad_reduce"] == [0, 0, 1, 1]
    assert found["overlap_param_gather"] == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ("pp=2 dp=8 segments=12|12", None),
        ("pp=2 dp=8 segments=12:tp=2,dp=4|12:tp=2,dp=4", None),
        ("pp=2 dp=8 segments=12:tp=2,dp=8|12", "segments-fill-gpus"),
        ("pp=2 dp=8 segments=12:tp=1,dp=4|12", "segments-fill-gpus"),
        ("pp=2 dp=4 cp=2 segments=12:tp=2,dp=2|12:tp=1,dp=4", None),
        ("pp=2 dp=4 cp=2 segments=6:tp=2,dp=2+6:tp=1,dp=4|12", None),
        ("pp=2 dp=4 cp=2 segments=6:tp=2,dp=4+6:tp=1,dp=4|12", "segments-share-gpus"),
        ("pp=4 dp=4 segments=12|12", "segments-add-up"),
        ("pp=2 dp=8 segments=12|11", "segments-add-up"),
    ],
)
def test_runs_of_segments_fill_their_ranks(segments: str, said: str | None) -> None:
    """24 layers on 16 GPUs; runs of a stage share its GPUs."""
    of_runs = {name for name in broken(segments, task()) if name.startswith("segments")}
    assert of_runs >= ({said} if said else set())
    assert bool(of_runs) is bool(said)


def test_a_table_is_judged_row_by_row() -> None:
    """Each rule of a table leaves out its own rows alone."""
    texts = ["tp=2", "tp=16 dp=1 zero=1", "pp=2 virtual_stages=2", "cp=2 cp_comm=a2a", "tp=3 dp=1",
             "dp=16 micro_batch=8", "tp=1 sequence_parallel=1", "pp=12 dp=1"]  # fmt: skip
    plans = concat([resolve(Plan.parse(text), 16).table() for text in texts])
    alone = [not broken(text, task()) for text in texts]
    assert legal_rows(plans, task()).tolist() == alone == [1, 0, 1, 1, 0, 0, 0, 0]
