"""Parsed options as a Task, as constraints of a search and as a plan."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from plan3d.simulator.analysis.closed_forms import chinchilla_tokens
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import exists, is_folder, read_text
from plan3d.simulator.base.units import doublings, is_whole
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.workload.layer_list import lists_layers
from plan3d.simulator.workload.model import Model, Network, with_imbalance
from plan3d.simulator.workload.presets import is_hub_id, is_preset

from . import (
    launch_file_arguments,
    restrictions,
    training_arguments,
    usual_sizes,
)

AUTO_SHARES = "0,25,50,75,100"
"""Percents that a search tries of what may be on the host, where auto is asked for."""
PLAN_FIELDS = (
    *("precision", "optimizer", "tp_grid"),
    *("offload_optimizer", "offload_parameters", "offload_activations"),
)
"""Fields of a plan that have an option of their own."""
LAYOUTS = ("layers_per_stage", "pipeline_model_parallel_layout")
"""Options that give the layers of every stage, in two notations."""


HUB = "https://huggingface.co/"
"""What an address of the Hub has before the id of a model."""


def model_of(name: str) -> Model:
    """A preset, by hub id too, or the model of a config.json (or of a folder that holds one)."""
    name = name.removeprefix(HUB)
    if not name.strip():
        raise InputError("the model has no name; 'plan3d models' lists all")
    if is_preset(name):
        return Model.preset(name)
    path = Path(name)
    if lists_layers(path):
        return Network.from_file(path)
    if is_folder(path):
        return Model.from_config(path / "config.json")
    if launch_file_arguments.is_launch_file(name):
        return launch_file_arguments.launch_of(name).model or _no_model(name)
    if is_hub_id(name) and not exists(path):
        return Model.preset(name)
    if "/" in name or name.endswith(".json") or exists(path):
        return Model.from_config(name)
    return Model.preset(name)


def _no_model(name: str) -> Model:
    raise InputError(f"{name[:200]}: describes no model: give its name or its config.json")


def cluster_of(args: argparse.Namespace) -> Cluster:
    """The cluster, with the numbers that the user replaced; one node when its size is asked."""
    size = {"gpus": args.gpus, "nodes": args.nodes}
    if asks_for_gpus(args):
        size = {"nodes": 1}
    return Cluster.profile(
        args.cluster,
        **size,
        gpus_per_node=args.gpus_per_node,
        gpus_per_domain=args.gpus_per_domain,
        inter_node_bandwidth=args.inter_node_bandwidth,
        intra_node_bandwidth=args.intra_node_bandwidth,
        memory=args.memory,
        network_latency=args.network_latency,
        latency_per_node=args.latency_per_node,
        nic_gpus=args.nic_gpus,
        site_bandwidth=args.site_bandwidth,
        site_latency=args.site_latency,
        network=args.network,
        power_limit=args.power_limit,
    )


def second_pool(text: str) -> Cluster:
    """The cluster of --second-pool, CLUSTER:GPUS."""
    name, _, gpus = text.rpartition(":")
    if not name or not is_whole(gpus) or int(gpus) < 1:
        raise InputError(
            f"--second-pool {text[:60]!r} must be CLUSTER:GPUS, such as a100-80gb-sxm:64"
        )
    return Cluster.profile(name, gpus=int(gpus))


def asks_for_gpus(args: argparse.Namespace) -> bool:
    """Whether the inverse question is asked: the fewest GPUs."""
    return getattr(args, "days", None) is not None or getattr(args, "budget_usd", None) is not None


def check_question(args: argparse.Namespace) -> None:
    """Refuse options that another option contradicts or leaves without effect."""
    inverse = asks_for_gpus(args)
    if inverse and (args.gpus is not None or args.nodes is not None):
        raise InputError("--days and --budget-usd ask for the number of GPUs: leave out --gpus")
    tokens, price = getattr(args, "tokens", None), getattr(args, "price", None)
    if inverse and tokens is None:
        raise InputError("--days and --budget-usd need --tokens, such as --tokens 300B")
    if getattr(args, "budget_usd", None) is not None and price is None:
        raise InputError("--budget-usd needs --price, USD per GPU-hour")
    if price is not None and tokens is None:
        raise InputError("--price needs --tokens, such as --tokens 300B")
    if args.global_batch is not None and args.global_batch_tokens is not None:
        raise InputError("--global-batch and --global-batch-tokens say the same: give one")


def task_of(args: argparse.Namespace) -> Task:
    """The question that search and estimate answer."""
    check_question(args)
    model = model_of(args.model)
    if args.expert_imbalance is not None:
        model = with_imbalance(model, args.expert_imbalance)
    adapters, cluster = training_arguments.adapters_of(args), cluster_of(args)
    longest = training_arguments.usual_sequence(model) if adapters else None
    stated = longest if args.sequence is None else args.sequence
    sequence = usual_sizes.sequence_of(model, stated)
    batch = stated_batch(args, sequence)
    if adapters and batch is None:
        batch = training_arguments.BATCH
    usual = usual_sizes.usual_batch
    batch = usual(args, model, sequence, cluster.gpus) if batch is None else batch
    asked = Task(
        model,
        cluster,
        sequence=sequence,
        global_batch=batch,
        software=args.software,
        adapters=adapters,
        documents=documents_of(args),
        graph=training_arguments.graph_of(args),
        goal=training_arguments.goal_of(args),
    )
    return with_calibration(args, restrictions.launched(args, asked))


def documents_of(args: argparse.Namespace) -> tuple[int, ...]:
    """The lengths of --documents, written out or one a line of a file."""
    text = getattr(args, "documents", None)
    if text is None:
        return ()
    if not text.replace(",", "").replace(" ", "").isdecimal():
        if not exists(text):
            raise InputError(
                f"--documents {text[:60]!r} is neither lengths, 512,1024, nor a file of them"
            )
        text = read_text(Path(text), f"--documents {text}")
    words = text.replace(",", " ").split()
    wrong = next((word for word in words if not word.isdecimal() or len(word) > 10), None)
    if wrong is not None or not words:
        raise InputError(f"--documents: {wrong or 'nothing'!r} is no length in whole tokens"[:120])
    return tuple(int(word) for word in words)


def with_calibration(args: argparse.Namespace, task: Task) -> Task:
    """The task with what --calibration says of its stack and machine."""
    if getattr(args, "calibration", None) is None:
        return task
    from plan3d.simulator.uncertainty.calibration import calibrated, read_calibration

    return calibrated(task, read_calibration(args.calibration))


def stated_batch(args: argparse.Namespace, sequence: int) -> int | None:
    """Sequences of --global-batch or --global-batch-tokens; None when neither is given."""
    if args.global_batch is not None:
        return int(args.global_batch)
    if args.global_batch_tokens is None:
        return None
    tokens = args.global_batch_tokens
    batch, rest = divmod(tokens, sequence)
    if rest or not batch:
        near = sorted({max(int(batch), 1) * sequence, (int(batch) + 1) * sequence})
        raise InputError(
            f"--global-batch-tokens {tokens:.0f} is not a multiple of the sequence {sequence}; "
            f"nearest: {', '.join(map(str, near))}"
        )
    return int(batch)


def tokens_of(args: argparse.Namespace, model: Model) -> float | None:
    """Training tokens; 'chinchilla' is worked out from the model."""
    if args.tokens == "chinchilla":
        return chinchilla_tokens(model.parameters)
    return None if args.tokens is None else float(args.tokens)


FIELDS_APART = re.compile(r"[,\s]+(?=[A-Za-z][\w-]*=)")
"""Between the fields of one text: tp=2,pp=2 or tp=2 pp=2."""


def choices_of(args: argparse.Namespace) -> dict[str, list[str]]:
    """Values by plan field from --fix, --choose and the options that name a field."""
    given = [
        (option, text)
        for option, texts in (("--fix", args.fix), ("--choose", args.choose))
        for several in texts or []
        for text in FIELDS_APART.split(several)
    ]
    given += [
        (f"--{name.replace('_', '-')}", f"{name}={getattr(args, name)}")
        for name in PLAN_FIELDS
        if getattr(args, name) is not None
    ]
    given += [(option, f"layers_per_stage={text}") for option, text in layout_of(args)]
    out: dict[str, list[str]] = {}
    origin: dict[str, str] = {}
    for option, text in given:
        name, values = _choice(option, text)
        if name in out:
            raise InputError(f"{option}: {name} is constrained by {origin[name]} already")
        out[name], origin[name] = values, option
    return out


def layout_of(args: argparse.Namespace) -> list[tuple[str, str]]:
    """The option that gives a layout, with its text; empty when none does."""
    given = [
        (f"--{name.replace('_', '-')}", getattr(args, name))
        for name in LAYOUTS
        if getattr(args, name, None) is not None
    ]
    if len(given) > 1:
        raise InputError(f"{' and '.join(option for option, _ in given)} say the same: give one")
    return given


def _choice(option: str, text: str) -> tuple[str, list[str]]:
    from plan3d.simulator.plan.fields import ON_HOST, field_called

    name, equals, value = text.partition("=")
    name = field_called(name)
    if name in ON_HOST and value == "auto":
        value = AUTO_SHARES
    values = doublings(value, f"{option} {name}")
    if not equals or not all(values):
        from .plan_arguments import with_equals

        near = with_equals(text) or ", for example tp=8"
        raise InputError(f"{option} {text!r} must be FIELD=VALUE{near}")
    if name == "layers_per_stage" and option == "--choose":
        raise InputError(f"--choose {text}: one layout at a time, --fix layers_per_stage=11,12,...")
    several = option != "--fix" and name in ON_HOST
    if option != "--choose" and len(values) > 1 and name != "layers_per_stage" and not several:
        raise InputError(f"{option} {text} gives {len(values)} values; use --choose for several")
    return name, values
