"""Tokens per second that odd numbers of GPUs lose against fewer ones, and what a search says of it.

    python tests/benchmarks/odd_numbers.py

For each neighbour of five questions: the best rate of whole nodes fewer, of at most an eighth of the
GPUs, over that of all; a loss above LOSS has to be said.
"""

from __future__ import annotations

from dataclasses import replace

from plan3d.answers.question import Question
from plan3d.answers.search import SearchRequest, search
from plan3d.search.rank_plans import Ranking
from plan3d.search.whatif.best_change import FEWER, LOSS
from plan3d.search.whatif.cluster_size import with_gpus
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

QUESTIONS = (
    ("llama-3.1-8b", "h100-sxm", 64, 512, 8192),
    ("llama-3.1-70b", "h100-sxm", 256, 512, 8192),
    ("gpt3-175b", "a100-80gb-sxm", 512, 1536, 2048),
    ("mixtral-8x7b", "h100-sxm", 128, 1024, 4096),
    ("deepseek-v3", "gb200-nvl72", 256, 2048, 4096),
)
STEPS = (-3, -2, -1, 1, 2, 3, 5)
"""Nodes that a neighbour has more."""


def main() -> int:
    unsaid = 0
    for model, machine, gpus, batch, sequence in QUESTIONS:
        task = Task(
            Model.preset(model),
            Cluster.profile(machine, gpus=gpus),
            sequence=sequence,
            global_batch=batch,
        )
        node, rates = task.cluster.gpus_per_node, dict[int, float]()

        def rate(count: int) -> float:
            if count not in rates:
                best = search(
                    SearchRequest(
                        question=Question(task=with_gpus(replace(task), count)),
                        ranking=Ranking(top=1),
                        families=False,
                    )
                ).best
                rates[count] = best.costs.tokens_per_second if best else 0.0
            return rates[count]

        for more in STEPS:
            count = gpus + more * node
            fewer = range(count - int(FEWER * count) // node * node, count, node)
            loss = max(map(rate, fewer)) / rate(count) - 1 if rate(count) else float("inf")
            answer = search(
                SearchRequest(
                    question=Question(task=with_gpus(task, count)), ranking=Ranking(top=1)
                )
            )
            said = answer.rounder.description if answer.rounder else ""
            why = answer.infeasible[0] if answer.infeasible else ""
            unsaid += loss > LOSS and not said and not why
            print(f"{model:14} {count:4} GPUs: fewer are {loss:+7.1%} faster; {said or why or '-'}")
    print(f"{unsaid} losses above {LOSS:.0%} unsaid")
    return unsaid > 0


if __name__ == "__main__":
    raise SystemExit(main())
