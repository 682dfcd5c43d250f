"""Tokens per second that odd numbers of GPUs lose against fewer ones, and what a search says of it.

    python tests/benchmarks/odd_numbers.py

For each neighbour of five questions: the best rate of whole nodes fewer, by at most an eighth of
the GPUs, over that of all; a loss above MOST has to be said.
"""

from __future__ import annotations

from functools import cache

from plan3d.answers.question import Question
from plan3d.answers.search import SearchAnswer, SearchRequest, search
from plan3d.search.rank_plans import Ranking
from plan3d.search.whatif.best_change import FEWER
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
MOST = 0.06
"""Share of the tokens per second that may be lost without a word."""
STEPS = (-3, -2, -1, 1, 2, 3, 5)
"""Nodes that a neighbour has more."""


@cache
def answer(question: int, gpus: int) -> SearchAnswer:
    """The search of a question on so many GPUs."""
    model, machine, _, batch, sequence = QUESTIONS[question]
    cluster = Cluster.profile(machine, gpus=gpus)
    task = Task(Model.preset(model), cluster, sequence=sequence, global_batch=batch)
    return search(SearchRequest(question=Question(task=task), ranking=Ranking(top=1)))


def rate(question: int, gpus: int) -> float:
    """Tokens per second of plan 1; 0 where none fits."""
    best = answer(question, gpus).best
    return best.costs.tokens_per_second if best else 0.0


def main() -> int:
    unsaid = 0
    for number, (model, machine, gpus, *_) in enumerate(QUESTIONS):
        node = Cluster.profile(machine, gpus=gpus).gpus_per_node
        for more in STEPS:
            count = gpus + more * node
            least = -(-(count - int(FEWER * count)) // node) * node
            best = max((rate(number, n) for n in range(least, count, node)), default=0.0)
            loss = best / rate(number, count) - 1 if rate(number, count) else float("inf")
            found = answer(number, count)
            change = found.rounder
            said = f"{change.description} ({change.gain:+.1%})" if change else ""
            why = found.infeasible[0] if found.infeasible else ""
            unsaid += loss > MOST and not said and not why
            print(
                f"{model:14} {count:4} GPUs: fewer {loss:+7.1%}; {said or why or '-'}", flush=True
            )
    print(f"{unsaid} losses above {MOST:.0%} unsaid")
    return unsaid > 0


if __name__ == "__main__":
    raise SystemExit(main())
