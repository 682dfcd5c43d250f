"""What is said of where the time and memory of a plan go, with its numbers by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import unit_pipelines
from round_numbers import (
    ACCELERATOR,
    HOST,
    MODEL,
    PARAMETERS,
    cluster,
    costs_of,
    sparse,
    stack,
    task,
)

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.provenance import provenance_line
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.reporting.assumptions import _routing, assumptions
from plan3d.simulator.reporting.why import (
    Cause,
    _imbalance_sentence,
    layers_per_rank,
    loss_shares,
    step_causes,
    why,
)
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.workload.model import Model

GIB = 2**30


def causes(costs: Costs) -> dict[str, tuple[float, str, str]]:
    return {one.name: (one.share, one.settings, one.sentence) for one in step_causes(costs)}


def unit(text: str, gpus: int = 4, batch: int = 8, **software: object) -> Costs:
    return unit_pipelines.costs(unit_pipelines.task(gpus, batch, **software), text)


def test_a_bubble_and_its_sends_are_shares_of_the_step() -> None:
    """24 seconds of work, 9 of bubble, 8 of sends and an update of 0.3: 41.3 in all."""
    found = causes(unit("pp=4"))
    share, settings, sentence = found["bubble"]
    assert share == pytest.approx(9 / 41.3)
    assert settings == "bubble: pp=4, 8 micro-batches, virtual_stages=1"
    assert sentence.startswith(
        f"The pipeline bubble is {900 / 41.3:.1f} %: pp = 4 with 8 micro-batches and 1 virtual"
    )
    assert found["pipeline_comm"][0] == pytest.approx(8 / 41.3)
    shares = loss_shares(unit("pp=4"))
    assert shares["peak"] == pytest.approx(24 / 41.3)
    assert sum(shares.values()) == pytest.approx(1)
    halved = causes(unit("pp=4 micro_batch=2"))["bubble"]
    assert halved[1] == "bubble: pp=4, 4 micro-batches, virtual_stages=1"
    assert "pp = 4 with 4 micro-batches and 1 virtual" in halved[2]


def test_causes_are_listed_from_half_a_percent_the_largest_first() -> None:
    names = [one.name for one in step_causes(unit("pp=4"))]
    assert names == ["bubble", "pipeline_comm", "optimizer"]
    assert 0.3 / 41.3 > 0.005
    shares = [one.share for one in step_causes(unit("pp=4"), least=0.2)]
    assert shares == pytest.approx([9 / 41.3])


def test_recompute_and_imbalance_have_their_sentences() -> None:
    """Four forward passes of twelve a layer; ranks of one to two layers, 48 - 32 seconds of 16."""
    found = causes(unit("pp=1 dp=4 recompute=full zero=0"))
    share, settings, sentence = found["recompute"]
    step = unit("pp=1 dp=4 recompute=full zero=0").step_seconds
    assert share == pytest.approx(2 * 4 / step)
    assert settings == "recompute=full buys activation memory"
    assert sentence.startswith(f"Recompute (full) costs {100 * share:.1f} % of the step")
    uneven = causes(unit("pp=3 layers_per_stage=2,1,1", 3))["imbalance"]
    assert (
        "longer than the mean: ranks hold 1 to 2 layers, the first also the embedding" in uneven[2]
    )


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("pp=4", [1, 1, 1, 1]),
        ("pp=2 virtual_stages=2", [2, 2]),
        ("pp=2 virtual_stages=2 schedule=zb-v", [2, 2]),
        ("pp=2 schedule=dualpipe", [4, 4]),
        ("pp=2 layers_per_stage=3,1", [3, 1]),
        ("pp=2 layers_per_stage=3,1 schedule=dualpipe", [4, 4]),
        ("pp=2 segments=1+2|1", [3, 1]),
    ],
)
def test_layers_of_every_rank(text: str, layers: list[int]) -> None:
    question = unit_pipelines.task(int(text[3]))
    assert layers_per_rank(question, resolve(Plan.parse(text), question.gpus).take(0)) == layers


def test_synchronisation_says_over_how_many_ranks() -> None:
    """Two replicas and two context ranks; both copies of DualPipe."""
    question = task(4, 8)
    found = causes(costs_of(question, "dp=2 cp=2 zero=1 overlap_grad_reduce=0"))["data_comm"]
    assert found[1] == "data parallelism: 4 ranks, zero=1, not overlapped"
    assert f"over dp x cp = 4 ranks shows {100 * found[0]:.1f} % of the step without" in found[2]
    both = causes(unit("pp=4 schedule=dualpipe"))["data_comm"]
    assert "dp x cp = 1 ranks and both copies of the model shows" in both[2]
    assert both[1].startswith("data parallelism: 1 ranks, zero=")


@pytest.mark.parametrize(("tp", "where"), [(8, "inside"), (16, "beyond")])
def test_tensor_parallelism_says_whether_it_leaves_its_links(tp: int, where: str) -> None:
    model = replace(MODEL, kinds=(replace(MODEL.kinds[0]),))
    wide = replace(
        model.kinds[0], attention=replace(model.kinds[0].attention, heads=16, kv_heads=16)
    )
    question = task(16, 16, replace(model, kinds=(wide,)))
    share, settings, sentence = causes(costs_of(question, f"tp={tp}"))["tensor_comm"]
    assert settings == f"tensor parallelism: tp={tp}, not overlapped"
    assert f"of {tp} communicates {100 * share:.1f} % of the step, {where} round link" in sentence


@pytest.mark.parametrize(
    ("text", "over", "where"),
    [
        ("dp=16 ep=8", "ep=8", "within"),
        ("tp=2 dp=8 ep=8 etp=2", "ep=8, etp=2", "beyond"),
        ("tp=2 dp=8 ep=4 etp=2", "ep=4, etp=2", "within"),
    ],
)
def test_exchanges_of_experts_say_over_how_many_ranks(text: str, over: str, where: str) -> None:
    found = causes(costs_of(task(16, 16, sparse()), text))["expert_comm"]
    assert found[1] == f"experts: all-to-alls over {over}, 8 GPUs are fast-linked"
    assert f"take {100 * found[0]:.1f} % of the step, {where} 8 fast-linked GPUs" in found[2]


def test_kernels_that_run_beside_communication_are_named() -> None:
    """Gradients and weights of four replicas, and a ring of two context ranks."""
    plan = "dp=2 cp=2 cp_comm=p2p zero=1 overlap_grad_reduce=1 overlap_param_gather=1"
    found = causes(costs_of(task(4, 16, software=stack(kernel_contention=0.25)), plan))["contended"]
    assert found[1] == (
        "contention: kernels beside communication (overlap_grad_reduce, overlap_param_gather, "
        "cp_comm=p2p)"
    )


def test_axes_of_one_rank_contend_with_nothing() -> None:
    costs = costs_of(task(4, 16, software=stack(kernel_contention=0.25)), "tp=4 overlap_tp=1")
    assert (
        Cause("contended", 0.1, costs).settings
        == "contention: kernels beside communication (overlap_tp)"
    )


def test_kernels_are_said_by_their_rate_and_their_classes() -> None:
    costs = costs_of(task(), "tp=1")
    total = sum(costs.compute_seconds.values())
    reached = costs.mfu * costs.step_seconds / total
    said = why(costs)
    assert (
        f"MFU {100 * costs.mfu:.1f} %: {100 * costs.mfu:.4g} TFLOP/s of 100 TFLOP/s (bf16"
        in said[0]
    )
    assert f"at {100 * reached:.1f} % of peak" in said[1]
    matmul = costs.compute_seconds["matmul"] / total
    assert f"matmul {100 * matmul:.1f} %" in said[1]
    share, settings, _ = causes(costs)["kernels"]
    assert share == pytest.approx(total / costs.step_seconds - costs.mfu)
    assert settings == (
        f"kernels: {100 * reached:.0f} % of peak while they run, "
        f"{100 * max(costs.compute_seconds.values()) / total:.0f} % of it "
        f"{max(costs.compute_seconds, key=costs.compute_seconds.get)}"
    )


def test_memory_is_said_with_its_largest_parts_and_what_is_left() -> None:
    """12 bytes of state and 4 of gradients of each parameter, a context of a GB."""
    costs = costs_of(task(), "tp=1")
    (said,) = [text for text in why(costs) if "needs most memory" in text]
    held = costs.memory_bytes / GIB
    assert f"Pipeline rank 0 needs most memory, {held:.1f} GiB of {80e9 / GIB:.1f} GiB" in said
    assert f"reserve {1e9 / GIB:.1f} GiB, optimizer {12 * PARAMETERS / GIB:.1f} GiB" in said
    assert f"{80e9 / GIB - held:.1f} GiB are left" in said
    small = cluster(1, accelerator=replace(ACCELERATOR, memory=1e9))
    (over,) = [text for text in why(costs_of(task(cluster=small), "tp=1")) if "exceeds" in text]
    assert f"it exceeds the GPU by {(costs.memory_bytes - 1e9) / GIB:.1f} GiB" in over


@pytest.mark.parametrize(
    ("share", "said"), [(0.25, "75.0 % are left"), (1.25, "it has 25.0 % too")]
)
def test_what_a_host_holds_is_a_share_of_what_it_has(share: float, said: str) -> None:
    """16 bytes of every parameter."""
    machine = cluster(1, host=replace(HOST, memory=16 * PARAMETERS / share))
    costs = costs_of(task(cluster=machine), "offload_optimizer=100")
    (text,) = [text for text in why(costs) if text.startswith("The host updates")]
    assert "The host updates 100 % of the parameters and holds 0 % of the kept" in text
    assert f"{16 * PARAMETERS / GIB:.1f} GiB of {16 * PARAMETERS / share / GIB:.1f} GiB" in text
    assert said in text
    copies = causes(costs)["host_comm"][2]
    assert "beyond the compute that they hide behind: 16 GB/s each way a GPU" in copies


def test_what_is_assumed_of_experts_vocabularies_and_ranks() -> None:
    h100 = Cluster.profile("h100-sxm", gpus=2)

    def said(text: str, model: Model = MODEL, **software: object) -> list[str]:
        return assumptions(
            costs_of(task(2, 8, model, cluster=h100, software=stack(**software)), text)
        )

    found = said(
        "tp=2 etp=2", replace(sparse(imbalance=1.5), vocabulary=1000), vocabulary_multiple=128
    )
    assert "the busiest rank of experts gets 1.5 times the mean of tokens" in found
    model = sparse(imbalance=1.5)
    (block,) = model.kinds
    calm = replace(block, experts=replace(block.experts, imbalance=1.2))
    for kinds in ((calm, block), (block, calm)):
        two = task(2, 8, replace(model, kinds=kinds, order=(0, 1)))
        assert _routing(two) == "the busiest rank of experts gets 1.5 times the mean of tokens"
    assert "vocabulary padded from 1,000 to 1,024" in found
    even = said("dp=2 ep=2", sparse())
    assert any("routed evenly over the experts" in text for text in even)
    assert not any("padded" in text for text in even)
    assert "pipeline ranks hold 1 to 3 layers" in said("pp=2 layers_per_stage=3,1")
    deep = said("dp=2", replace(MODEL, mtp_layers=1))
    assert "multi-token prediction (1 layer) is trained too" in deep
    origins = h100.provenance.values()
    counted = f"{sum(one.measured for one in origins)} of {len(origins)} numbers measured"
    assert provenance_line("h100-sxm", h100.provenance).startswith(
        f"hardware profile h100-sxm: {counted}, the others"
    )


def test_layers_of_one_rank_or_of_several_are_counted_once() -> None:
    """Four ranks of one layer each, and of one or two."""
    said = causes(unit("pp=4 micro_batch=2"))
    assert "imbalance" not in said
    costs = unit("pp=4")
    sentence = _imbalance_sentence(costs, costs.plans.take(0), "a tenth")
    assert "ranks hold 1 layers, the first" in sentence
    uneven = unit("pp=3 layers_per_stage=2,1,1", 3)
    assert "ranks hold 1 to 2 layers" in _imbalance_sentence(uneven, uneven.plans.take(0), "")


def test_rates_of_a_host_are_those_of_its_copies_and_updates() -> None:
    """Links of 20 GB/s for two GPUs, 80 % of which copies reach, memory of 400 GB/s, 46 % of which
    updates reach, drives of 6 and 3 GB/s."""
    drives = replace(HOST, nvme_read=6e9, nvme_write=3e9, nvme=1e13)
    h100 = Cluster.profile("h100-sxm", gpus=2)
    machine = replace(h100, gpus_per_node=2, host=drives)
    question = task(2, cluster=machine, software=stack(swaps_to_nvme=True))
    costs = costs_of(question, "dp=2 offload_optimizer=100 nvme=optimizer zero=3")
    (said,) = [text for text in assumptions(costs) if text.startswith("host (")]
    assert "copies at 8 GB/s each way a GPU, 80 % of its share of a link" in said
    assert "updates at 184 GB/s a node, 46 % of its memory bandwidth" in said
    assert said.endswith("drives read and write at 6 and 3 GB/s a node, not beside the update")
