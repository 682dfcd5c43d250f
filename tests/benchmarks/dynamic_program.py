"""The dynamic program: how fast it proves its plans, and what those gain.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/dynamic_program.py

Prints two Markdown tables. The first: the search with its bound; seconds are CPU seconds of one
core, the exhaustive search it starts from and its baselines included. The second: simulated steps
of the best plan with as many stages as the best uniform plan whose first and last stage may have
any number of layers.
"""

from __future__ import annotations

import time
from dataclasses import replace

from plan3d.search.exact.exhaustive import UniformPlans
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.options import SearchOptions
from plan3d.search.result.search_result import SearchResult
from plan3d.search.space.space import Space
from plan3d.search.stage_dp import dynamic_programming
from plan3d.search.stage_dp.stage_search import StageSearch
from plan3d.search.stages.stage_space import shapes, stage_space
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.plan_timeline import timeline_of
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

WIDE_VOCABULARY = 256_000


def task(model: Model, cluster: str, gpus: int, sequence: int, batch: int, software: str) -> Task:
    return Task(
        model,
        Cluster.profile(cluster, gpus=gpus),
        sequence=sequence,
        global_batch=batch,
        software=software_profile(software),
    )


def searches() -> list[Task]:
    gpt3, llama = Model.preset("gpt3-175b"), Model.preset("llama-3.1-70b")
    return [
        task(gpt3, "a100-80gb-sxm", 512, 2048, 1536, "megatron-core"),
        task(gpt3, "a100-80gb-sxm", 512, 2048, 1536, "megatron-lm-2021"),
        task(gpt3, "a100-40gb-sxm", 512, 2048, 1536, "megatron-lm-2021"),
        task(llama, "h100-sxm", 64, 8192, 256, "megatron-core"),
        task(llama, "a100-40gb-sxm", 128, 8192, 128, "megatron-core"),
        task(gpt3, "a100-80gb-sxm", 1024, 2048, 1536, "megatron-core"),
        task(Model.preset("mixtral-8x7b"), "h100-sxm", 128, 4096, 512, "megatron-core"),
        task(Model.preset("llama-3.1-405b"), "h100-sxm", 16384, 8192, 2048, "megatron-core"),
        task(Model.preset("deepseek-v3"), "h800-sxm", 2048, 4096, 15360, "megatron-core"),
    ]


def proof(question: Task) -> None:
    """One row: the best plan of the set, with its proof, and how much work that was."""
    began = time.process_time()
    result = rank_plans(question, Ranking(backend="dynamic-programming"))
    seconds = time.process_time() - began
    compared = result.compared
    assert compared is not None
    about = f"{name(question)}, {question.software.name}"
    row(about, compared.overall, result, seconds, work(question, result.limit))


def work(question: Task, limit: float, choose: dict[str, list[int]] | None = None) -> StageSearch:
    """What the search did, counted."""
    space, options = Space.of(question, choose), SearchOptions(limit=limit)
    stages = stage_space(space, "benchmark", "step-time", dynamic_programming.STAGE_SCHEDULES)
    found = shapes(question, space.axes, "benchmark", dynamic_programming.STAGE_SCHEDULES)
    uniform = UniformPlans.of(space, stages, options)
    return dynamic_programming.solve(stages, uniform, options, found).search


def unequal(question: Task, stages: int) -> None:
    """One row: stages of unequal numbers of GPUs, without context parallelism."""
    uniform = rank_plans(question, Ranking(choose={"virtual_stages": [1]})).best
    assert uniform is not None
    began = time.process_time()
    choose = {"pp": [stages], "cp": [1], "sequence_parallel": [1], "virtual_stages": [1]}
    result = rank_plans(question, Ranking(backend="dynamic-programming", choose=choose, top=1))
    seconds = time.process_time() - began
    about = f"{name(question)}, pp={stages}, stages of unequal size, cp=1"
    row(about, uniform.step_seconds, result, seconds, work(question, result.limit, choose))


def row(
    about: str, uniform: float, result: SearchResult, seconds: float, done: StageSearch
) -> None:
    best, gap = result.best, result.gap
    assert best is not None
    assert gap is not None
    step = best.step_seconds
    print(
        f"| {about} | {uniform:.4g} | {step:.4g} | {100 * (uniform / step - 1):+.2f} % "
        f"| {100 * gap:.1g} % | {seconds:.1f} | {done.stages_costed:,} | {done.labels_kept:,} "
        f"| {done.passes} | {code(str(result.plans[0]))} |",
        flush=True,
    )


def name(question: Task) -> str:
    model, cluster = question.model, question.cluster
    return f"{model.name}, {question.gpus} {cluster.accelerator.name}"


def code(text: str) -> str:
    """Text of a plan in a Markdown table."""
    return f"`{text}`".replace("|", r"\|")


def events(vocabulary: int, gpus: int, pp: int, batch: int) -> None:
    """One row: simulated steps with one number of stages, and what the last stage does."""
    llama = replace(Model.preset("llama-3.1-70b"), vocabulary=vocabulary)
    question = task(llama, "h100-sxm", gpus, 8192, batch, "megatron-core")
    usual = llama.layers // pp
    ends = [0, *range(1, usual + 2)]
    uniform = rank_plans(
        question,
        Ranking(
            choose={
                "pp": [pp],
                "virtual_stages": [1],
                "first_stage_layers": ends,
                "last_stage_layers": ends,
            },
            top=30,
        ),
    )
    result = rank_plans(
        question,
        Ranking(
            backend="dynamic-programming",
            choose={"pp": [pp], "virtual_stages": [1]},
        ),
    )
    best, other = shortest(result), shortest(uniform)
    gain = other[0] / best[0] - 1
    print(
        f"| {vocabulary // 1000}k, {gpus} H100, pp={pp}, batch {batch} | {other[0]:.4g} "
        f"| {best[0]:.4g} | {100 * gain:+.2f} % | {slack(question, other[1])} "
        f"| {slack(question, best[1])} | {code(other[1])} | {code(best[1])} |"
    )


def shortest(result: SearchResult) -> tuple[float, str]:
    """Seconds and text of the ranked plan with the shortest simulated step."""
    row = int(result.event_seconds.argmin())
    return float(result.event_seconds[row]), str(result.plans[row])


def slack(question: Task, text: str) -> str:
    """Idle share of the pipeline's ranks, least and mean."""
    timeline = timeline_of(question, Plan.parse(text))
    share = timeline.timeline.idle / timeline.pipeline_seconds
    return f"{100 * share.min():.1f} / {100 * share.mean():.1f} %"


def main() -> None:
    print(
        "| task | best uniform s | best plan s | gain | gap | CPU s | stages costed | labels "
        "| t_max tried | plan |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    for question in searches():
        proof(question)
    unequal(searches()[3], 3)
    print(
        "\n| llama-3.1-70b with vocabulary | uniform s | best plan s | gain | idle, least / mean: "
        "uniform | best plan | uniform plan | best plan |"
    )
    print("|---|---:|---:|---:|---:|---:|---|---|")
    for vocabulary in (Model.preset("llama-3.1-70b").vocabulary, WIDE_VOCABULARY):
        for gpus, pp, batch in ((64, 8, 256), (128, 8, 128), (128, 16, 256), (128, 16, 64)):
            events(vocabulary, gpus, pp, batch)


if __name__ == "__main__":
    main()
