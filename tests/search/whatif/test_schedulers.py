"""The same answers wherever independent questions run: here, or on an executor."""

import pickle
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest

from plan3d import Cluster, Model, Task, compare_backends, compare_systems, find_cluster, sweep
from plan3d.search.whatif.schedulers import in_turn, results_on
from plan3d.simulator.base.errors import InputError

TASK = Task(
    Model.preset("gpt3-1.3b"), Cluster.profile("h100-sxm", gpus=8), sequence=2048, global_batch=48
)
FEW = {"cp": [1], "micro_batch": [1, 2], "recompute": ["none"], "overlap_tp": [0]}


class Elsewhere(Executor):
    """Runs what is submitted at once, through the pickles that another process would get."""

    def __init__(self) -> None:
        self.calls = 0

    def submit(self, function, /, *values):  # type: ignore[no-untyped-def]
        self.calls += 1
        future: Future[object] = Future()
        sent = pickle.loads(pickle.dumps((function, values)))
        future.set_result(pickle.loads(pickle.dumps(sent[0](*sent[1]))))
        return future


class Client:
    """As a client of Dask has it."""

    def __init__(self) -> None:
        self.executor = Elsewhere()

    def get_executor(self) -> Executor:
        return self.executor


def test_a_sweep_has_the_same_rows_on_an_executor():
    client, over = Client(), {"gpus": [1, 2]}
    here = sweep(TASK, over, plan="recompute=full")
    assert sweep(TASK, over, plan="recompute=full", scheduler=client).rows == here.rows
    assert client.executor.calls == 2


def test_backends_and_systems_are_compared_alike_on_an_executor():
    executor = Elsewhere()
    asked = {"budget": 30, "seeds": 2, "choose": FEW}
    here = compare_backends(TASK, ["random", "branch-and-bound"], **asked)
    there = compare_backends(TASK, ["random", "branch-and-bound"], scheduler=executor, **asked)
    assert executor.calls == 3
    for one, other in zip(here.entries, there.entries, strict=True):
        assert (one.backend, *one.best, *one.evaluations) == (
            *(other.backend, *other.best),
            *other.evaluations,
        )
    systems = ["ddp", "megatron"]
    by_system = compare_systems(TASK, systems, choose={"micro_batch": [1]})
    there = compare_systems(TASK, systems, choose={"micro_batch": [1]}, scheduler=executor)
    assert [str(entry.best) for entry in by_system.entries] == [
        str(entry.best) for entry in there.entries
    ]


def test_sizes_of_a_cluster_are_searched_on_an_executor():
    only = {"pp": [1], "tp": [1], "zero": [1], "virtual_stages": [1]}
    asked = {"tokens": "100B", "days": 20, "choose": {**FEW, **only}}
    here = find_cluster(TASK, **asked)
    there = find_cluster(TASK, scheduler=Elsewhere(), **asked)
    assert there.task.gpus == here.task.gpus
    assert str(there.plans[0]) == str(here.plans[0])


def test_results_come_in_turn_and_what_waits_is_taken_back():
    with ThreadPoolExecutor(2) as pool:
        assert list(in_turn(pool, abs, [-3, 1, -2])) == [3, 1, 2]
        first = in_turn(pool, abs, range(100))
        assert next(first) == 0
        first.close()


@pytest.mark.parametrize("other", [3, object(), None])
def test_what_is_no_scheduler_is_refused(other):
    with pytest.raises(InputError, match="scheduler must be an executor"):
        list(results_on(other, abs, {0: 1}))
