"""Which question does a published run answer? A row -> task and plan, or why it has none.

Rows state sizes, not names, so models are built from their columns; what a row leaves out comes
from run_conventions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..base.errors import InputError, did_you_mean
from ..hardware.cluster import Cluster
from ..hardware.software_stack import Software, software_profile
from ..plan.plan import Plan, resolve
from ..rules.validity import violated
from ..task import Task
from ..workload.blocks import Attention, Block, Experts, Mlp
from ..workload.model import Model
from .published_runs import PublishedRun
from .run_conventions import FAMILIES, KERNELS, LISTED, NETWORKS, ModelFamily
from .run_plans import plan_of

SHAPE = ("layers", "hidden", "ffn_hidden", "heads", "sequence")
"""Columns of a transformer that nothing can stand in for."""
NEEDED = ("accelerator", "gpus", "global_batch", "tp", "pp", "dp")
"""Those of every run."""

SIZE_AGREES = (0.75, 1.33)
"""Built over stated parameters: outside, the columns leave out part of the model's shape
(rounded names and renamed vocabularies stay inside)."""


@dataclass(frozen=True)
class Question:
    """A row that can be predicted."""

    run: PublishedRun
    task: Task
    """One object for all rows that share it."""
    plan: Plan


def questions(runs: Iterable[PublishedRun]) -> list[Question | str]:
    """For each row its question, or the reason why it has none."""
    builder = _Builder()
    out: list[Question | str] = []
    for run in runs:
        try:
            out.append(builder.question(run))
        except InputError as error:
            out.append(str(error))
    return out


class _Builder:
    """Builds once what rows share: models, clusters, software and tasks."""

    def __init__(self) -> None:
        self.built: dict[tuple[Any, ...], Any] = {}

    def once(self, make: Callable[..., Any], *key: Any) -> Any:
        """make(*key), the same object for the same key."""
        if (make, *key) not in self.built:
            self.built[make, *key] = make(*key)
        return self.built[make, *key]

    def question(self, run: PublishedRun) -> Question:
        """The question of a row; InputError with the reason where there is none."""
        _check(run)
        size = (run["gpus"], run["gpus_per_node"], run.convention.rack)
        where = (run["accelerator"], *size, run["inter_node_network"])
        profile = run.convention.software.format(dtype=run.dtype)
        changes = tuple(run.convention.changes.items())
        stack = (profile, changes, run["flash_attention"], run.kernel)
        sizes = (run.given("sequence", 1), run["global_batch"])
        task: Task = self.once(self.task, _model_of(run), where, stack, sizes)
        _check_size(run, task.model)
        plan = resolve(plan_of(run), task.gpus)
        for name, _ in violated(plan, task):
            raise InputError(f"its layout breaks the rule {name}")
        return Question(run, task, plan)

    def task(
        self,
        model: tuple[Any, ...],
        where: tuple[Any, ...],
        stack: tuple[Any, ...],
        sizes: tuple[int, int],
    ) -> Task:
        return Task(
            self.once(*model),
            self.once(_cluster, *where),
            sequence=sizes[0],
            global_batch=sizes[1],
            software=self.once(_software, *stack),
        )


def _check(run: PublishedRun) -> None:
    """Raise InputError for what is no training that the simulator knows."""
    family, listed = run.given("family", ""), run["model"] in LISTED
    if family not in FAMILIES and not listed:
        raise InputError(f"family {family!r} is no decoder-only transformer")
    needed = NEEDED if listed else (*SHAPE, *NEEDED)
    absent = [column for column in needed if run[column] is None]
    if run["micro_batch"] is None and not run.convention.micro_batch:
        absent.append("micro_batch")
    if absent:
        raise InputError(f"{', '.join(absent)} not stated")
    if run.noted("LoRA"):
        raise InputError("LoRA: most weights are frozen")
    if run.noted("CPU offload|offload=Y"):
        raise InputError("offload of weights to the host is not modelled")


def _check_size(run: PublishedRun, model: Model) -> None:
    stated = run["n_params_b"]
    low, high = SIZE_AGREES
    if stated and not low < model.parameters / (1e9 * stated) < high:
        raise InputError("its sizes do not give the parameters it states")


def _model_of(run: PublishedRun) -> tuple[Any, ...]:
    """What builds the model of a row, and from which arguments."""
    if run["model"] in LISTED:
        return Model.preset, LISTED[run["model"]]
    tied = run.noted("tied_emb=(True|False)")
    shape = tuple(run[name] for name in ("layers", "hidden", "ffn_hidden", "heads"))
    return (
        _model,
        run.given("model", "unnamed"),
        _family(run, tied[1] == "True" if tied else None),
        (*shape, run.given("kv_heads", run["heads"])),
        (run.given("experts", 0), run.given("experts_per_token", 0)),
        (run.given("vocab", run.convention.vocabulary), run["sequence"]),
    )


def _family(run: PublishedRun, tied: bool | None) -> ModelFamily:
    """The look of a row's family, corrected by what its notes say.

    A GPT with grouped queries is a later one: no biases, rotary positions, untied (Nemotron 4).
    """
    look = FAMILIES[run["family"]]
    if run["family"] == "gpt" and run.given("kv_heads", run["heads"]) < run["heads"]:
        look = replace(look, biases=False, tied=False, learned_positions=False)
    if run.noted("3 matrices"):
        look = replace(look, gated=True)
    return look if tied is None else replace(look, tied=tied)


def _model(
    name: str,
    look: ModelFamily,
    shape: tuple[int, int, int, int, int],
    experts: tuple[int, int],
    text: tuple[int, int],
) -> Model:
    """The model of stated sizes: layers, hidden, ffn, heads, key/value heads; experts and how
    many a token takes; vocabulary and sequence."""
    layers, hidden, ffn, heads, kv_heads = shape
    width, bias = hidden // heads, look.biases
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        value_dim=width,
        qkv_bias=bias,
        out_bias=bias,
    )
    mlp, (count, top_k) = Mlp(ffn=ffn, gated=look.gated, bias=bias), experts
    routed = Experts(count=count, top_k=top_k, ffn=ffn, gated=look.gated, bias=bias)
    block = (
        Block(attention=attention, experts=routed) if count else Block(attention=attention, mlp=mlp)
    )
    return Model(
        name=name,
        hidden=hidden,
        vocabulary=text[0],
        kinds=(block,),
        order=(0,) * layers,
        tied=look.tied,
        norm_bias=look.layer_norm,
        learned_positions=text[1] if look.learned_positions else 0,
        embedding_norm=look.embedding_norm,
    )


def _cluster(
    accelerator: str, gpus: int, gpus_per_node: int | None, rack: int, network: str | None
) -> Cluster:
    """The profile of the accelerator with the node size and the network that a row names."""
    cluster = Cluster.profile(accelerator, gpus=gpus, gpus_per_node=gpus_per_node)
    fabric = next((NETWORKS[name] for name in NETWORKS if name in (network or "")), None)
    if fabric is not None:
        cluster = Cluster.profile(
            accelerator,
            gpus=gpus,
            gpus_per_node=gpus_per_node,
            inter_node_bandwidth=fabric.node_bandwidth / cluster.gpus_per_node,
        )
        cluster = replace(cluster, network=replace(cluster.network, **fabric.constants))
    used = min(rack or cluster.fast.gpus, cluster.fast.gpus)
    return replace(cluster, fast=replace(cluster.fast, gpus=used))


def _software(
    name: str, changes: tuple[tuple[str, Any], ...], flash: bool | None, kernel: str
) -> Software:
    """The stack's profile, with the attention that a row states."""
    stack = replace(software_profile(name), **dict(changes))
    if kernel and kernel not in KERNELS:
        raise InputError(f"unknown kernel {kernel!r}{did_you_mean(kernel, KERNELS)}")
    if kernel:
        return replace(stack, **KERNELS[kernel])
    if flash is None or flash == stack.flash_attention:
        return stack
    return replace(stack, flash_attention=flash, score_bytes=0.0 if flash else 9.0)
