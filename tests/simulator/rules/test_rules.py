"""Every rule refuses what it names, says why in one line, and agrees with the table."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty
from rule_questions import hostless, images, linked, odd, task, tuned

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.fields import AXES, CHOICES, OPT_IN, RESOLVED_DEFAULTS, code
from plan3d.simulator.plan.gossip_graphs import Graph
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.rule import nearest_divisors
from plan3d.simulator.rules.validity import RULES, binding_rules, check, legal_rows, violations
from plan3d.simulator.step.evaluate import evaluate

PLAN = {"tp": 2, "pp": 2}
REFUSED = [
    ("tp-divides-heads", task(), {"tp": 128}, "tensor size 128 does not divide 64 heads"),
    ("tp-fits-kv-heads", odd(kv_heads=12, heads=96), {"tp": 16}, "16 neither divides"),
    (
        "states-are-divided",
        task("granite-4.0-h-tiny"),
        {"tp": 2},
        "48 heads in 1 groups: tp(2) must",
    ),
    ("tp-divides-ffn", task("llama-7b"), {"tp": 512}, "512 does not divide ffn width 11008"),
    ("listed-layers-are-whole", images(), {"tp": 2}, "tp=2 cp=1 must be 1: resnet-50 is a list"),
    ("listed-layers-recompute-whole", images(), {"recompute": "selective"}, "is a layer list"),
    (
        "software-recomputes-modules",
        task(software="torch"),
        {"tp": 1, "pp": 1, "recompute": "selective"},
        "software torch has no modules that recompute=selective runs again",
    ),
    (
        "software-recomputes-experts",
        task("mixtral-8x7b", software="torchtitan"),
        {"recompute": "selective"},
        "is not modelled for experts like those of mixtral-8x7b; nearest: recompute=full",
    ),
    ("cp-divides-sequence", task(), {"cp": 3}, "2048 is not a multiple of 2 cp = 6"),
    ("software-splits-sequences", task(software="megatron-lm-2021"), {"cp": 2}, "cp=2"),
    ("software-splits-tensors", task(software="fsdp"), {}, "fsdp has no tensor parallelism: tp=2"),
    ("software-splits-layers", task(software="fsdp"), {"tp": 1}, "fsdp has no pipeline"),
    ("software-splits-experts", task(software="hf-trainer"), {"tp": 1, "pp": 1, "ep": 2}, "ep=2"),
    ("world-size", task(), {"dp": 3}, "tp(2) x cp(1) x dp(3) x pp(2) = 12 != 64 GPUs"),
    ("layers-fill-stages", task(), {"pp": 32, "virtual_stages": 3}, "= 96 chunks"),
    ("batch-divides", task(), {"micro_batch": 3}, "64 is not a multiple of micro_batch(3)"),
    (
        "offload-optimizer-needs-host",
        hostless(),
        {"offload_optimizer": 50},
        "offload_optimizer=50: h100-sxm does not say what its host has",
    ),
    ("offload-activations-needs-host", hostless(), {"offload_activations": 50}, "nearest: 0"),
    (
        "offload-parameters-needs-host",
        hostless(),
        {"offload_parameters": 50},
        "offload_parameters=50: h100-sxm does not say what its host has",
    ),
    (
        "offload-parameters-needs-zero-3",
        task(software="deepspeed"),
        {"offload_parameters": 100, "zero": 2},
        "offload_parameters=100 needs zero=3",
    ),
    (
        "offload-parameters-needs-stack",
        task(),
        {"offload_parameters": 100, "zero": 3},
        "offload_parameters=100: megatron-core keeps weights on its GPUs",
    ),
    ("nvme-needs-stack", task(), {"nvme": "optimizer"}, "megatron-core does not use NVMe drives"),
    (
        "nvme-needs-drives",
        task(software="deepspeed"),
        {"nvme": "both"},
        "nvme=both: h100-sxm does not say what drives a node has",
    ),
    (
        "nvme-needs-offload",
        task(software="deepspeed"),
        {"nvme": "both", "offload_optimizer": 50, "zero": 3},
        "nvme=both needs offload_optimizer=100 offload_parameters=100 zero=3",
    ),
    (
        "offload-optimizer-shards",
        task(),
        {"offload_optimizer": 50, "zero": 0},
        "offload_optimizer=50 needs zero >= 1: 16 data ranks",
    ),
    (
        "offload-optimizer-all-reduces",
        task(),
        {"tp": 8, "pp": 8, "offload_optimizer": 100, "sync": "parameter-server"},
        "offload_optimizer=100 with sync=parameter-server",
    ),
    (
        "offload-modules-of-layers",
        replace(task(), software=replace(task().software, offload_modules=("core_attn",))),
        {"offload_activations": 100, "recompute": "full"},
        "of megatron-core is of inputs of core_attn of transformer layers",
    ),
    (
        "offload-activations-schedule",
        task(),
        {"offload_activations": 10, "schedule": "zb-h1"},
        "offload_activations=10 is not modelled with schedule=zb-h1",
    ),
    (
        "virtual-stages-need-pipeline",
        task(),
        {"pp": 1, "virtual_stages": 2},
        "virtual_stages=2 needs pp > 1",
    ),
    (
        "schedule-matches-virtual-stages",
        task(),
        {"schedule": "interleaved"},
        "virtual_stages >= 2",
    ),
    (
        "schedule-matches-virtual-stages",
        task(),
        {"schedule": "1f1b", "virtual_stages": 2},
        "virtual_stages=2 needs schedule=interleaved",
    ),
    ("pipeline-schedule-needs-pipeline", task(), {"pp": 1, "schedule": "gpipe"}, "pp > 1"),
    (
        "interleaved-micro-batches",
        task(),
        {"tp": 4, "pp": 8, "virtual_stages": 2, "micro_batch": 8},
        "4 micro-batches are not a multiple of pp = 8",
    ),
    (
        "interleaved-micro-batches",
        task(),
        {"pp": 4, "virtual_stages": 2, "micro_batch_group": 5},
        "8 micro-batches in groups of micro_batch_group = 5 leave 3, fewer than pp = 4; nearest: 5",
    ),
    (
        "micro-batch-group-fills-pipeline",
        task(),
        {"pp": 4, "virtual_stages": 2, "micro_batch_group": 3},
        "micro_batch_group=3 needs schedule=interleaved and at least pp = 4; nearest: 4",
    ),
    ("micro-batch-group-fills-pipeline", task(), {"micro_batch_group": 4}, "nearest: 0"),
    ("p2p-overlap-needs-interleaving", task(), {"overlap_p2p": 1}, "virtual_stages >= 2"),
    (
        "interleaving-two-ranks-needs-p2p-overlap",
        task(),
        {"virtual_stages": 2, "overlap_p2p": 0},
        "two pipeline ranks need overlap_p2p",
    ),
    (
        "layout-adds-up",
        task(),
        {"layers_per_stage": (40, 39)},
        "gives 2 stages with 79 layers; pp = 2, virtual_stages = 1 and the model's 80 layers",
    ),
    (
        "mtp-follows-layers",
        task("deepseek-v3"),
        {"pp": 4, "layers_per_stage": (30, 31, 0, 0), "mtp_stage": 1},
        "mtp_stage=1 must be 2 to 4",
    ),
    ("mtp-follows-layers", task("deepseek-v3"), {"mtp_stage": 1}, "must be 2 to 2"),
    ("mtp-follows-layers", task(), {"mtp_stage": 2}, "llama-3.1-70b has no multi-token"),
    ("end-stages-fit", task(), {"first_stage_layers": 80}, "first_stage_layers=80"),
    ("end-stages-fit", task(), {"pp": 1, "last_stage_layers": 8}, "last_stage_layers=8"),
    ("sequence-parallel-needs-tp", task(), {"tp": 1, "sequence_parallel": 1}, "tp > 1"),
    (
        "sequence-parallel-divides",
        replace(task(), sequence=2046),
        {"tp": 4, "sequence_parallel": 1},
        "sequence 2046 is not a multiple of cp x tp = 4",
    ),
    (
        "tp-overlap-needs-sequence-parallel",
        task(),
        {"overlap_tp": 1, "sequence_parallel": 0},
        "sequence_parallel",
    ),
    (
        "software-overlaps-tp",
        task(software="megatron-lm-2021"),
        {"overlap_tp": 1},
        "megatron-lm-2021 cannot overlap",
    ),
    (
        "moe-tp-needs-sequence-parallel",
        task("mixtral-8x7b"),
        {"sequence_parallel": 0},
        "tp > 1 needs sequence_parallel",
    ),
    (
        "context-exchange-needs-cp",
        task(),
        {"cp_comm": "all-gather"},
        "cp_comm=all-gather needs cp > 1",
    ),
    (
        "context-exchange-divides-heads",
        task(),
        {"cp_comm": "a2a", "cp": 8},
        "tp(2) x cp(8) = 16 does not divide 8 heads",
    ),
    (
        "expert-exchange-needs-ep",
        task("mixtral-8x7b"),
        {"expert_dispatch": "hierarchical"},
        "need ep > 1",
    ),
    (
        "all-gather-of-experts",
        task("mixtral-8x7b", software="torchtitan"),
        {"expert_dispatch": "all-gather", "ep": 2},
        "is of Megatron-Core's stacks",
    ),
    (
        "software-exchanges-experts",
        task("mixtral-8x7b", software="nanotron"),
        {"expert_dispatch": "hierarchical", "ep": 2},
        "software nanotron has no expert_dispatch=hierarchical and no overlap_ep",
    ),
    (
        "expert-overlap-needs-interleaving",
        task("mixtral-8x7b"),
        {"overlap_ep": 1, "ep": 2},
        "virtual_stages >= 2 or a dualpipe schedule",
    ),
    ("expert-axes-need-experts", task(), {"ep": 2, "etp": 4}, "ep=2 etp=4 need a model"),
    ("ep-divides-experts", task("mixtral-8x7b"), {"ep": 16}, "16 does not divide 8 experts"),
    ("etp-divides-expert-ffn", task("mixtral-8x7b"), {"etp": 3}, "expert tensor size 3"),
    (
        "experts-fold-into-ranks",
        task("mixtral-8x7b"),
        {"pp": 32, "ep": 8},
        "etp(1) x ep(8) does not divide tp(2) x cp(1) x dp(1) = 2",
    ),
    ("zero-needs-data-ranks", task(), {"pp": 32, "zero": 2}, "zero=2 has nothing to shard"),
    (
        "grad-overlap-needs-data-ranks",
        task(),
        {"pp": 32, "overlap_grad_reduce": 1},
        "dp x cp = 1",
    ),
    (
        "gather-overlap-needs-zero",
        task(),
        {"zero": 0, "overlap_param_gather": 1},
        "zero >= 1 and overlap_grad_reduce",
    ),
    (
        "schedule-matches-virtual-stages",
        task(),
        {"schedule": "zb-v", "virtual_stages": 4},
        "the zb-v schedule needs virtual_stages=2, not 4",
    ),
    (
        "schedule-matches-virtual-stages",
        task(),
        {"schedule": "dualpipe", "virtual_stages": 2},
        "virtual_stages=2 needs schedule=interleaved, not dualpipe",
    ),
    (
        "deep-schedule-micro-batches",
        task(),
        {"pp": 16, "schedule": "zb-v", "virtual_stages": 2, "micro_batch": 2},
        "16 micro-batches are fewer than 2 pp = 32, which the zb-v schedule needs; nearest: 32",
    ),
    (
        "dualpipe-halves",
        replace(task(), global_batch=112),
        {"pp": 2, "schedule": "dualpipe"},
        "not pp = 2 and 7; nearest: pp = 2 and 8",
    ),
    (
        "chimera-units",
        replace(task(), global_batch=112),
        {"pp": 2, "schedule": "chimera"},
        "not pp = 2 and 7; nearest: pp = 2 and 8",
    ),
    (
        "breadth-first-micro-batches",
        task(),
        {"pp": 16, "schedule": "breadth-first", "virtual_stages": 2, "micro_batch": 8},
        "4 micro-batches are fewer than pp = 16, which the breadth-first schedule needs",
    ),
    ("precision-on-accelerator", task(cluster="a100-80gb-sxm"), {"precision": "fp8"}, "no fp8"),
    (
        "precision-on-accelerator",
        task(cluster="h100-sxm"),
        {"precision": "nvfp4"},
        "has no nvfp4 arithmetic",
    ),
    (
        "scaled-parameters",
        task(),
        {"fp8_params": 1, "precision": "fp8", "zero": 0},
        "here precision=fp8 zero=0; nearest: fp8_params=0",
    ),
    (
        "state-formats-of-framework",
        task(),
        {"main_params_dtype": "bf16"},
        "main_params_dtype=bf16: Megatron-LM has usual, fp16, fp32; nearest: "
        "main_params_dtype=fp16",
    ),
    (
        "state-formats-of-framework",
        task(software="deepspeed"),
        {"precision_aware": 1},
        "is an optimizer of Megatron-LM, not of DeepSpeed",
    ),
    (
        "state-formats-of-recipe",
        task(),
        {"grad_reduce_dtype": "bf16", "precision": "fp32"},
        "grad_reduce_dtype=bf16: formats of state go with a precision of fp32 masters",
    ),
    (
        "state-formats-of-adam",
        task(),
        {"precision_aware": 1, "optimizer": "sgd"},
        "optimizer=sgd has its own; nearest: optimizer=adam",
    ),
    (
        "precision-aware-formats",
        task(),
        {"exp_avg_dtype": "bf16"},
        "exp_avg_dtype=bf16: Megatron-LM keeps these in fp32",
    ),
    (
        "precision-aware-sharding",
        task(),
        {"precision_aware": 1, "zero": 0},
        "here zero=0 offload_optimizer=0",
    ),
    (
        "sixteen-bit-masters",
        task(software="deepspeed"),
        {"exp_avg_dtype": "bf16", "zero": 1},
        "DeepSpeed has bf16 moments, both of them, with bf16 master weights",
    ),
    (
        "loss-of-stack",
        task(),
        {"loss": 3},
        "megatron-core computes the loss of a language model as",
    ),
    ("ends-in-16-bits", task(), {"bf16_last_layers": 2}, "precision=bf16; nearest"),
    (
        "ends-in-16-bits",
        task(),
        {"bf16_first_layers": 41, "bf16_last_layers": 40, "precision": "fp8"},
        "here 80 layers",
    ),
    (
        "muon-whole-matrices",
        task(),
        {"optimizer": "muon", "offload_optimizer": 100},
        "on the host (offload_optimizer=100)",
    ),
    ("muon-sharding", task(), {"optimizer": "muon", "zero": 3}, "has Muon up to ZeRO 1"),
    (
        "muon-exchanges",
        task(software="torchtitan"),
        {"optimizer": "muon", "zero": 3, "tp": 2},
        "zero=3 tp=2: torchtitan exchanges",
    ),
    ("sync-needs-replicas", task(), {"pp": 32, "sync": "gossip"}, "sync=gossip has nothing"),
    ("sync-of-whole-replicas", task(), {"cp": 2, "sync_period": 4}, "not modelled with cp = 2"),
    (
        "sync-of-whole-replicas",
        task("mixtral-8x7b"),
        {"ep": 2, "sync": "parameter-server"},
        "ep = 2, etp = 1",
    ),
    ("sync-needs-zero-0", task(), {"sync": "ring", "zero": 1}, "sync=ring needs zero = 0, not 1"),
    ("sync-needs-zero-0", task(), {"sync_period": 2, "zero": 3}, "sync_period=2 needs zero = 0"),
    ("topology-is-of-gossip", task(), {"topology": "ring"}, "topology=ring needs sync=gossip"),
    ("topology-is-of-gossip", task(), {"sync": "gossip", "topology": "none"}, "name its topology"),
    ("graph-fits-replicas", task(), {"sync": "gossip", "topology": "given"}, "--graph FILE"),
    (
        "graph-fits-replicas",
        replace(task(), graph=Graph(3, ((0, 1), (1, 2)))),
        {"sync": "gossip", "topology": "given"},
        "the graph has 3 nodes, the plan dp = 16 replicas",
    ),
    (
        "graph-fits-replicas",
        task(),
        {"sync": "hierarchical-gossip", "topology": "given"},
        "needs sync=gossip",
    ),
    (
        "local-steps-are-not-overlapped",
        task(),
        {"sync_period": 2, "overlap_grad_reduce": 1},
        "nothing to hide",
    ),
    (
        "compression-has-an-exchange",
        task(),
        {"compression": "qsgd", "levels": 5, "sync": "gossip"},
        "compression=qsgd with sync=gossip and sync_period=1 is not modelled",
    ),
    ("levels-are-of-qsgd", task(), {"compression": "qsgd"}, "needs levels >= 2, not 0"),
    ("levels-are-of-qsgd", task(), {"levels": 5}, "levels=5 needs compression=qsgd"),
    ("kept-entries-are-of-top-k", task(), {"compression": "neolithic"}, "from 1 to 1000"),
    ("kept-entries-are-of-top-k", task(), {"kept_per_thousand": 5}, "needs a compression by top-k"),
    (
        "buckets-need-overlap",
        task(),
        {"bucket_parameters": 5, "overlap_grad_reduce": 0},
        "bucket_parameters=5 needs overlap_grad_reduce",
    ),
    ("shards-fill-ranks", task(), {"shard": 3}, "shard=3 must divide 16 data ranks"),
    ("shards-fill-ranks", task(), {"shard": 2, "zero": 0}, "shard=2 needs zero >= 1"),
    ("shards-fill-ranks", task("mixtral-8x7b"), {"shard": 2}, "experts is not modelled"),
    ("sites-divide-replicas", task(), {"sites": 3}, "sites=3 must be 2 or more and divide 16"),
    ("sites-divide-replicas", task(), {"sites": 16}, "into groups of several"),
    ("sites-all-reduce", task(), {"sites": 2, "cp": 2}, "sites=2 is modelled with sync=all-reduce"),
    ("sites-all-reduce", task("mixtral-8x7b"), {"sites": 2}, "compression, shard, offload"),
    ("sites-are-named", linked(), {}, "the cluster has links between sites (site_bandwidth)"),
    ("outer-steps-are-of-sites", task(), {"outer_bits": 4}, "need sites that step on their own"),
    (
        "outer-steps-are-of-sites",
        task(),
        {"sites": 2, "outer_optimizer": "nesterov"},
        "outer_optimizer=nesterov fragments=1 outer_delay=0 outer_bits=0 need",
    ),
    (
        "fragments-divide-period",
        task(),
        {"sites": 2, "sync_period": 10, "fragments": 3},
        "fragments=3 must divide sync_period=10",
    ),
    (
        "outer-delay-ends-in-turn",
        task(),
        {"sites": 2, "sync_period": 10, "fragments": 5, "outer_delay": 3},
        "must end before the next of 5 in 10 steps; nearest: 2",
    ),
    (
        "grid-fills-tp",
        task(),
        {"tp_grid": "2x2"},
        "2d:2x2: 2 x 2 x 1 = 4 != tp = 2; grids of 2: 1d,",
    ),
    ("grid-fills-tp", task(), {"tp_grid": "auto"}, "tp_grid=auto is for a search"),
    ("grid-splits-dense-layers", task("deepseek-v3"), {"tp_grid": "2x1x1"}, "not for experts"),
    ("grid-splits-dense-layers", images(), {"tp_grid": "2x1x1"}, "a list of layers"),
    (
        "grid-divides-hidden",
        task("llama-3.1-70b", 63),
        {"tp": 7, "tp_grid": "1x7x1"},
        "over 7 ranks, which does not divide hidden size 8192",
    ),
    (
        "grid-divides-micro-batch",
        task(),
        {"tp_grid": "1x1x2", "micro_batch": 3},
        "over 2 ranks, which does not divide micro_batch=3; nearest: 2",
    ),
    ("tp-divides-heads", task(), {"tp": 3, "tp_grid": "3x1x1"}, "divide 64 heads (tp_grid)"),
    (
        "grid-splits-no-sequence",
        task(),
        {"tp_grid": "2x1x1", "sequence_parallel": 1},
        "needs sequence_parallel=0 and cp=1, not 1 and 1",
    ),
    (
        "tp-overlap-in-peer-memory",
        task(cluster="rtx-4090"),
        {"tp": 4, "overlap_tp": 1},
        "ranks on PCIe 4.0 x16 do not write into each other's memory; nearest: overlap_tp=0",
    ),
    (
        "tp-overlap-inside-domain",
        task(),
        {"tp": 16, "overlap_tp": 1},
        "inside a fast domain of 8 GPUs only, and tp=16 spans several; nearest: overlap_tp=0, or "
        "tp=8",
    ),
    (
        "documents-are-whole",
        replace(task(), documents=(512, 1536)),
        {"cp": 2},
        "cp=2 is not modelled with documents packed into sequences; nearest: 1",
    ),
    ("adapters-schedule", tuned(), {"schedule": "zb-h1"}, "schedule=zb-h1 is not modelled with"),
    ("adapters-in-sixteen-bits", tuned(), {"precision": "fp32"}, "precision=fp32 is not modelled"),
    ("adapters-grid", tuned(), {"tp_grid": "2x1x1"}, "nearest: 1d"),
    ("adapters-sync", tuned(), {"sync": "gossip", "topology": "ring"}, "sync=gossip sync_period=1"),
    ("adapters-keep-experts-whole", tuned("mixtral-8x7b"), {"ep": 2}, "ep=2 etp=1 is not modelled"),
    ("grid-in-sixteen-bits", task(), {"tp_grid": "2x1x1", "precision": "fp8"}, "recipe of fp8"),
]


@pytest.mark.parametrize(("name", "question", "changes", "message"), REFUSED)
def test_each_rule_refuses_with_its_numbers(name, question, changes, message):
    plan = resolve(Plan(**PLAN | changes), question.gpus)
    broken = dict(reversed(violations(plan, question)))
    assert name in broken
    assert message in broken[name]
    assert "\n" not in broken[name]
    assert not legal_rows(plan.table(), question)[0]


def test_every_rule_is_refused_somewhere():
    elsewhere = {"schedule-conditions"}  # tests/simulator/pipeline/test_schedules.py
    assert {name for name, *_ in REFUSED} | elsewhere == {rule.name for rule in RULES}


def test_names_are_distinct():
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_reads_only_the_fields_it_names(rule):
    """A search prunes with a rule as soon as those fields are known; the layout always is."""
    table = resolve(Plan(tp=[1, 2], pp=2), 64).table()
    known = {field: getattr(table, field) for field in rule.fields}
    named = rule.ok(SimpleNamespace(**known, layers_per_stage=()), task())
    np.testing.assert_array_equal(np.broadcast_to(named, (2,)), rule.ok(table, task()))


QUESTIONS = {id(question): question for _, question, *_ in REFUSED}.values()


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_a_rule_holds_where_its_fields_have_their_defaults(name):
    """Such rules are not evaluated; two are about more than columns, and no plan has dp = 0."""
    (rule,) = (rule for rule in RULES if rule.name == name)
    usual = SimpleNamespace(**RESOLVED_DEFAULTS, layers_per_stage=())
    asked = [q for q in QUESTIONS if rule not in binding_rules({"dp"}, q)]
    assert [q for q in asked if not np.all(rule.ok(usual, q))] == []


# Random plans, most of them illegal

sizes = st.integers(1, 130)
RANGES = {
    "virtual_stages": st.integers(1, 6),
    "micro_batch": st.integers(1, 70),
    "zero": st.integers(0, 3),
    "first_stage_layers": st.integers(0, 90),
    "last_stage_layers": st.integers(0, 90),
    "tp_grid": st.sampled_from(("1d", "auto", "2x2", "1x8", "2.5d:2x2x2", "4x1x2", "1x5x1")).map(
        partial(code, "tp_grid")
    ),
    **dict.fromkeys(
        ("offload_optimizer", "offload_parameters", "offload_activations"),
        st.sampled_from((0, 1, 50, 100)),
    ),
    "sites": st.sampled_from((0, 2, 4)),
    "outer_bits": st.sampled_from((0, 4, 32)),
}
flags = st.integers(0, 1)
fields = {name: RANGES.get(name, sizes) for name in AXES}
fields |= {name: st.integers(0, choice.maximum) for name, choice in CHOICES.items()}
switches = ("overlap", "sequence_parallel", "fp8", "precision_aware")
fields |= {name: flags for name in AXES if name.startswith(switches)}
anything = st.fixed_dictionaries(fields)
layouts = st.one_of(st.just(()), st.lists(st.integers(0, 90), max_size=6).map(tuple))
near = st.sampled_from((1, 2, 4, 8))
# Powers of two that multiply to the GPUs: legal now and then.
sensible = st.fixed_dictionaries(
    {**fields, **dict.fromkeys(("tp", "pp", "cp", "dp", "ep", "etp", "micro_batch"), near),
     "first_stage_layers": st.just(0), "last_stage_layers": st.just(0)}
)  # fmt: skip
# Of these, rules that hold for plain plans are not evaluated.
plain = sensible.map(lambda values: {**values, **OPT_IN, "tp_grid": 0})
plans = st.one_of(anything, sensible, plain)
tasks = st.sampled_from(
    [("llama-3.1-70b", 64), ("mixtral-8x7b", 16), ("deepseek-v3", 64), ("gpt3-1.3b", 8)]
)


@given(which=tasks, values=plans, layout=layouts)
def test_messages_never_raise_and_agree_with_legal(which, values, layout):
    question = task(*which)
    plan = Plan(**values, layers_per_stage=layout)
    broken = violations(plan, question)
    every = [rule.name for rule in RULES if not np.all(rule.ok(plan, question))]
    assert [name for name, _ in broken] == every
    for _, message in broken:
        assert message.strip()
        assert "\n" not in message
    assert legal_rows(plan.table(), question).tolist() == [not broken]
    if broken:
        with pytest.raises(InputError) as error:
            evaluate(question, plan)
        assert str(error.value) == broken[0][1]
    else:
        assert evaluate(question, plan).step_seconds > 0


@given(which=tasks, rows=st.lists(plans, min_size=1, max_size=12))
def test_column_version_equals_the_row_version(which, rows):
    question = task(*which)
    table = Plan(**{name: [row[name] for row in rows] for name in AXES})
    plans = list(table)
    for rule in RULES:
        column = np.broadcast_to(rule.ok(table, question), (len(rows),))
        assert column.tolist() == [bool(np.all(rule.ok(plan, question))) for plan in plans]
    keep = legal_rows(table, question)
    assert keep.tolist() == [not violations(plan, question) for plan in plans]
    if not keep.all():
        first = int(np.argmin(keep))
        where = f"row {first}: " if len(rows) > 1 else ""
        with pytest.raises(InputError) as error:
            check(table, question)
        assert str(error.value) == where + violations(plans[first], question)[0][1]


@given(number=st.integers(1, 10**6), wanted=st.integers(1, 10**6))
def test_nearest_divisors(number, wanted):
    near = [int(word) for word in nearest_divisors(number, wanted).split(", ")]
    assert all(number % d == 0 for d in not_empty(near))
    assert near == sorted(near)
    if number % wanted == 0:
        assert near == [wanted]
    assert not any(number % d == 0 for d in range(near[0] + 1, min(near[-1], wanted)))
