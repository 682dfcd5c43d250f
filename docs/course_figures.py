"""The pictures of course.md, written into docs/figures by

    python -P docs/course_figures.py [NAME...]

all, or those of some names. Points are plan3d's, dashed lines the lectures' formulas.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from plan3d import Cluster, Model, Plan, Task, closed_forms, compare_backends, evaluate, find_plans
from plan3d.simulator.analysis.textbook_pipeline import idle_share, unit_timeline
from plan3d.simulator.reporting import palette
from plan3d.simulator.reporting.palette import CYCLE, GREY, Picture, open_frame

FOLDER = Path(__file__).parent / "figures"
SMALL = Task(
    Model.preset("gpt3-125m"), Cluster.profile("a100-80gb-sxm", gpus=4), sequence=2048,
    global_batch=32,
)  # fmt: skip
"""The small problem of the third lecture."""
CUT = {"pp": 4, "micro_batch": 2, "recompute": "none"}
"""Its plans of four stages, which cut 12 layers in any way."""
WORKERS = (2, 4, 8, 16, 32, 64, 128, 256)
NODES_OF_8 = (16, 32, 64, 128, 256, 512)


def _axes(title: str, across: str, up: str) -> tuple[Any, Any]:
    drawn = palette.figure(6, 3.4)
    axes = drawn.add_subplot()
    axes.set(title=title, xlabel=across, ylabel=up)
    open_frame(axes)
    return drawn, axes


def _log_log(axes: Any, counts: Sequence[int]) -> None:
    """Both axes logarithmic, a tick at each count, and the legend."""
    axes.set(xscale="log", yscale="log")
    palette.decade_ticks(axes.yaxis)
    axes.set_xticks(counts, [str(n) for n in counts])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize="small")


def bubble() -> Any:
    """Idle over useful time of 8 stages against micro-batches, even and uneven, and in chunks."""
    drawn, axes = _axes("GPT-3 175B in 8 stages", "micro-batches m", "idle over useful time / %")
    counts = (8, 16, 32, 64, 128)
    formula = [100 * closed_forms.bubble(8, m) for m in counts]
    axes.plot(counts, formula, "--", color=GREY, label="(p - 1) / m")
    even = [100 * idle_share(unit_timeline("1f1b", 8, 1, m)) for m in counts]
    axes.plot(counts, even, "o", color=CYCLE[0], label="even stages, event by event")
    chunks = [100 * idle_share(unit_timeline("interleaved", 8, 4, m)) for m in counts]
    axes.plot(counts, chunks, "s-", color=CYCLE[2], label="4 chunks a stage")
    uneven = []
    for m in counts:
        cluster = Cluster.profile("a100-80gb-sxm", gpus=64)
        asked = Task(Model.preset("gpt3-175b"), cluster, sequence=2048, global_batch=m)
        layers = (10, 12, 12, 12, 12, 12, 12, 14)
        seconds = evaluate(asked, Plan(tp=8, pp=8, layers_per_stage=layers)).seconds
        uneven.append(100 * (seconds["bubble"] + seconds["imbalance"]) / seconds["compute"])
    axes.plot(counts, uneven, "^-", color=CYCLE[1], label="10 to 14 layers a stage")
    _log_log(axes, counts)
    return drawn


def exchange() -> Any:
    """Seconds of one exchange against workers, by the way replicas are kept together."""
    drawn, axes = _axes(
        "ResNet-50 on nodes of 8 V100, the network of statement D4", "workers n", "exchange / s"
    )
    ways = {
        "parameter server": "sync=parameter-server",
        "ring": "sync=ring",
        "tree": "sync=tree",
        "two neighbours": "sync=gossip topology=ring",
        "one peer": "sync=gossip topology=one-peer-exponential",
    }
    # As tests/benchmarks/synchronisation.py fits it to D4's two times.
    network = {"inter_node_bandwidth": 1.674e9 / 8, "nic_gpus": 8, "network_latency": 2.143e-3,
               "latency_per_node": 2.143e-3}  # fmt: skip
    for (name, text), colour in zip(ways.items(), CYCLE, strict=False):
        seconds = []
        for n in NODES_OF_8:
            cluster = Cluster.profile("v100-16gb-sxm", gpus=n, **network)
            asked = Task(Model.preset("resnet-50"), cluster, sequence=1, global_batch=32 * n)
            plan = Plan.parse(f"micro_batch=32 precision=fp32 overlap_grad_reduce=0 {text}")
            seconds.append(evaluate(asked, plan).seconds["data_comm"])
        axes.plot(NODES_OF_8, seconds, "o-", color=colour, label=name)
    _log_log(axes, NODES_OF_8)
    return drawn


def zero() -> Any:
    """Bytes of one of 64 GPUs under data parallelism, by what ZeRO divides."""
    drawn, axes = _axes("GPT-3 1.3B on 64 A100, fp32, one sequence a GPU", "", "GB on a GPU")
    cluster = Cluster.profile("a100-80gb-sxm", gpus=64)
    asked = Task(Model.preset("gpt3-1.3b"), cluster, sequence=2048, global_batch=64)
    memory = [evaluate(asked, Plan(zero=z, precision="fp32")).memory for z in range(4)]
    names = ["data parallel", "ZeRO 1", "ZeRO 2", "ZeRO 3"]
    below = [0.0] * 4
    for part, colour in zip(
        ("weights", "gradients", "optimizer", "activations"), CYCLE, strict=False
    ):
        sizes = [one[part] / 1e9 for one in memory]
        axes.bar(names, sizes, 0.6, below, color=colour, label=part)
        below = [a + b for a, b in zip(below, sizes, strict=True)]
    formulas = [closed_forms.zero_bytes(asked.model.parameters, 64, z) / 1e9 for z in range(4)]
    for place, size in enumerate(formulas):
        axes.plot([place - 0.4, place + 0.4], [size, size], "--", color="black", linewidth=1.2,
                  label=None if place else "the formula's states")  # fmt: skip
    axes.legend(frameon=False, fontsize="small")
    return drawn


def speed_up() -> Any:
    """Tokens a second over those of one GPU, with the same batch on every GPU."""
    drawn, axes = _axes("GPT-3 1.3B, data parallel, A100", "GPUs n", "speed-up")
    model, counts = Model.preset("gpt3-1.3b"), (1, *WORKERS)
    clusters = {
        "25 GB/s a GPU": 25e9,
        "3 GB/s a GPU": 3e9,
        "0.4 GB/s a GPU": 0.4e9,
    }
    axes.plot(counts, counts, "--", color=GREY, label="linear")
    for (name, rate), colour in zip(clusters.items(), CYCLE, strict=False):
        speeds = []
        for n in counts:
            cluster = Cluster.profile("a100-80gb-sxm", gpus=n, inter_node_bandwidth=rate)
            asked = Task(model, cluster, sequence=2048, global_batch=4 * n)
            speeds.append(evaluate(asked, Plan(micro_batch=4, zero=0)).tokens_per_second)
        axes.plot(counts, [speed / speeds[0] for speed in speeds], "o-", color=colour, label=name)
    _log_log(axes, counts)
    return drawn


def every_cut(task: Task = SMALL) -> dict[tuple[int, ...], float]:
    """Seconds of a step by the layers of four stages, of every cut: brute force."""
    layers, stages = task.model.layers, CUT["pp"]
    seconds = {}
    for ends in combinations(range(layers + stages - 1), stages - 1):
        bounds = (-1, *ends, layers + stages - 1)
        cut = tuple(b - a - 1 for a, b in pairwise(bounds))
        seconds[cut] = evaluate(task, Plan(**CUT, layers_per_stage=cut)).step_seconds
    return seconds


def cuts() -> Any:
    """Every cut of the small problem in the order of its time, and where the searches end."""
    drawn, axes = _axes(
        "GPT-3 125M in 4 stages: every cut of its 12 layers", "cuts, fastest first", "step / ms"
    )
    seconds = every_cut()
    ranked = sorted(seconds.values())
    axes.plot(range(1, len(ranked) + 1), [1e3 * s for s in ranked], color=GREY, label="brute force")
    choose = {name: [value] for name, value in CUT.items()}
    for place, backend in enumerate(("dynamic-programming", "integer-programming")):
        best = find_plans(SMALL, backend=backend, choose=choose).best.step_seconds
        axes.plot(1, 1e3 * best, "os"[place], markersize=10 - 4 * place, color=CYCLE[place],
                  label=backend.replace("-", " "))  # fmt: skip
    even = seconds[3, 3, 3, 3]
    axes.plot(ranked.index(even) + 1, 1e3 * even, "^", color=CYCLE[2], label="three layers each")
    axes.legend(frameon=False, fontsize="small")
    return drawn


def race() -> Any:
    """Regret of the searches that draw plans at random."""
    return compare_backends(SMALL, budget=300, seeds=5).plot().figure


PICTURES: dict[str, Callable[[], Any]] = {
    one.__name__: one for one in (zero, bubble, exchange, speed_up, race, cuts)
}


def main() -> None:
    """Draw those that are named, or all."""
    for name in sys.argv[1:] or PICTURES:
        Picture(PICTURES[name]()).save(str(FOLDER / f"{name}.png"))


if __name__ == "__main__":
    main()
