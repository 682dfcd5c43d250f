"""Ctrl-C at any moment of a search: the best so far is printed, and the exit code says so."""

import json
import sys
from contextlib import contextmanager

import pytest

from plan3d.cli.main import main
from plan3d.search.exact import branch_and_bound, exhaustive
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.search_record import SearchRecord
from plan3d.search.stage_dp import stage_search
from plan3d.search.whatif import climb

SEARCH = ["search", "--model", "gpt3-1.3b", "--cluster", "a100-80gb-sxm", "--gpus", "16"]
SEARCH += ["--sequence", "2048", "--global-batch", "64", "--fix", "cp=1", "--json"]
SEARCH += ["--choose", "tp=1,2", "--fix", "micro_batch=1"]
UNEQUAL = [*SEARCH, "--backend", "dynamic-programming"]


@contextmanager
def interrupted_in(function, searches=0):
    """Ctrl-C comes when a function is called after so many exhaustive searches."""
    ended, came = [], []

    def on_call(frame, event, _):
        if event == "return" and frame.f_code is exhaustive.search.__code__:
            ended.append(event)
        if event == "call" and frame.f_code is function.__code__ and len(ended) == searches:
            came.append(event)
            raise KeyboardInterrupt

    sys.setprofile(on_call)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert came, f"{function.__name__} was not called then"


@pytest.mark.parametrize(
    ("words", "function", "searches"),
    [
        (SEARCH, SearchRecord.add, 0),
        (SEARCH, climb._top, 1),
        # The uniform plans with whole stages, all of them, the stages, and the default search.
        (UNEQUAL, SearchRecord.add, 0),
        (UNEQUAL, SearchRecord.add, 1),
        (UNEQUAL, stage_search.StageSearch.run, 2),
        (UNEQUAL, SearchRecord.add, 2),
        (UNEQUAL, climb._top, 3),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_interrupt_is_never_lost(capsys, words, function, searches):
    with interrupted_in(function, searches):
        code = main(words)
    out, err = capsys.readouterr()
    assert (code, json.loads(out)["complete"]) == (130, False)
    assert err.endswith("plan3d: interrupted: the best so far\n")


def test_the_answer_is_printed_where_bounds_are_interrupted(capsys):
    """Of Llama 3.1 8B on 16 H100 plan 1 is at the edge of memory; no plan beside it is sure yet."""
    words = "search llama-3.1-8b h100-sxm 16 --sequence 8192"
    with interrupted_in(branch_and_bound.better_than, 1):
        assert main(words.split()) == 130
    out, err = capsys.readouterr()
    assert "at the edge" in out
    assert "safe " not in out
    assert err.endswith("plan3d: interrupted: the best so far\n")


@pytest.mark.parametrize(
    ("options", "function", "searches"),
    [
        ({}, climb._top, 1),
        ({"backend": "dynamic-programming"}, SearchRecord.add, 2),
        ({"backend": "dynamic-programming"}, climb._top, 3),
    ],
)
def test_an_interrupt_is_never_lost_in_python(options, function, searches):
    from plan3d import Cluster, Model, Task
    from plan3d import find_plans as launchable

    cluster = Cluster.profile("a100-80gb-sxm", gpus=16)
    task = Task(Model.preset("gpt3-1.3b"), cluster, sequence=2048, global_batch=64)
    with interrupted_in(function, searches):
        found = launchable(task, **options)
    assert found.plans
    assert (found.interrupted, found.complete) == (True, False)


def test_no_second_search_follows_an_interrupted_one():
    """Where nothing that was asked for was costed, or nothing fits for sure, find_plans asks
    again."""
    from plan3d import Cluster, Model, Task

    cluster = Cluster.profile("a100-80gb-sxm", gpus=16)
    task = Task(Model.preset("gpt3-1.3b"), cluster, sequence=2048, global_batch=64)
    with interrupted_in(SearchRecord.add):
        found = rank_plans(task, Ranking(choose={"tp": [2]}))
    assert found.interrupted


def test_parts_of_a_search_pass_an_interrupt_on():
    from plan3d import Cluster, Model, Task
    from plan3d.search.result.options import SearchOptions
    from plan3d.search.space.space import Space

    cluster = Cluster.profile("a100-80gb-sxm", gpus=16)
    space = Space.of(Task(Model.preset("gpt3-1.3b"), cluster, sequence=2048, global_batch=64))
    for searches in (0, 1):
        with interrupted_in(SearchRecord.add, searches):
            of = exhaustive.UniformPlans.of_default_space
            uniform = of(space, SearchOptions(limit=cluster.accelerator.memory))
        assert uniform.whole_stages.interrupted
        assert not uniform.complete
