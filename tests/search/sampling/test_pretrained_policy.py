"""A policy of other tasks: what it sees, what its networks compute, that it serves new tasks."""

from functools import cache
from importlib.resources import files

import numpy as np
import pytest

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.sampling.pretrained_policy import (
    ROLES,
    WEIGHTS_FILE,
    Proposals,
    Weights,
    _consequences,
    features,
    logs_of,
    shipped_weights,
)
from plan3d.search.space.space import Space
from plan3d.search.space.uniform_problem import UniformProblem
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.fields import EXPANSION
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


@cache
def task(model="llama-3.1-70b", cluster="h800-sxm", gpus=64):
    where = Cluster.profile(cluster, gpus=gpus)
    return Task(Model.preset(model), where, sequence=4096, global_batch=256)


def test_sizes_are_logarithms_and_ratios_their_differences():
    logs = logs_of(task())
    assert (logs["hidden"], logs["gpus"], logs["domain"]) == (13.0, 6.0, 3.0)
    assert (logs["experts"], logs["routed_parameters"], logs["peer_memory"]) == (0.0, 0.0, 1.0)
    chosen = {"tp": np.array([4, 8]), "pp": np.array([4, 2]), "micro_batch": np.array([2, 1])}
    table = features(logs, chosen, 2)[:, len(logs) :]
    sizes, rest = table[:, :6], table[:, 6:]
    assert sizes.tolist() == [[2, 0, 2, 0, 1, 0], [3, 0, 1, 0, 0, 0]]
    # 64 / (4 x 4) and 64 / (8 x 2) replicas; 256 / (4 x 2) and 256 / 4 micro-batches; 80 layers
    assert rest[:, :3].tolist() == [[2, 5, 0], [2, 6, 0]]
    parameters, memory = task().model.parameters, task().cluster.accelerator.memory
    share = np.log2(16 * parameters / 16 / memory)
    assert rest[:, 3] == pytest.approx([share, share])
    held = 34 * 80 * 4096 * 8192 / memory
    assert rest[:, 4] == pytest.approx(np.log2([held * 2 / 4, held / 8]))
    assert rest[:, 5:9].tolist() == [[2 - 5, -1, -1, -1], [1 - 6, 0, 0, 0]]
    assert not rest[:, 9:].any()


def test_experts_are_told_apart_from_the_other_parameters():
    """Mixtral: 32 layers of 8 experts of three matrices of 4,096 x 14,336."""
    logs = logs_of(task("mixtral-8x7b"))
    routed = 32 * 8 * 3 * 4096 * 14_336
    assert logs["routed_parameters"] == pytest.approx(np.log2(routed))
    assert logs["dense_parameters"] == pytest.approx(np.log2(46_702_792_704 - routed))


def test_uneven_chunks_and_codes_are_seen():
    logs = logs_of(task())
    chosen = {"pp": np.array([8]), "virtual_stages": np.array([3]), "zero": np.array([2])}
    row = features(logs, chosen, 1)[0, len(logs) :]
    assert row[8] == pytest.approx(24 * 4 / 80 - 1)
    assert row[-4:].tolist() == [0, 1, 0, 0]


def test_a_network_is_two_layers_of_relu():
    first, second = np.array([[1.0, -1.0]]), np.array([[2.0, 0.0], [0.0, 3.0]])
    network = first, np.array([0.5, 0.0]), second, np.array([0.0, -1.0]), np.array([1.0, 10.0])
    weights = Weights(np.array([1.0]), np.array([2.0]), {"tp": network})
    # (5 - 1) / 2 = 2: (2.5, 0) then (5, 0); (-3 - 1) / 2 = -2: (0, 2) then (0, 5)
    assert weights.logits("tp", np.array([[5.0], [-3.0]])).tolist() == [5.0, 50.0]


def test_a_field_that_is_given_counts_like_one_that_was_chosen():
    free = UniformProblem(Space.of(task()))
    given = UniformProblem(Space.of(task(), {"tp": [4]}))
    names = [variable.name for variable in free.variables]
    assert names[:3] == ["tp", "cp", "pp"]
    four = free.variables[0].values.index(4)
    seen = Proposals(free, shipped_weights())(2, np.array([[four, 0]]))
    assert Proposals(given, shipped_weights())(1, np.array([[0]])) == pytest.approx(seen)


def test_fields_come_in_the_order_of_a_search():
    places = [EXPANSION.index(role) for role in ROLES]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("model", "cluster", "gpus"),
    [
        ("llama-3.1-70b", "h800-sxm", 64),
        pytest.param("mixtral-8x7b", "b300", 32, marks=pytest.mark.slow),
        ("qwen2.5-7b", "l40s", 16),
    ],
)
def test_few_plans_do_for_models_and_clusters_it_was_not_trained_on(model, cluster, gpus):
    asked = task(model, cluster, gpus)
    optimum = rank_plans(asked, Ranking(top=1)).best.step_seconds

    def regret(name):
        runs = (
            rank_plans(asked, Ranking(backend=name, budget=50, top=1, seed=s)) for s in range(3)
        )
        return np.mean([run.best.step_seconds / optimum - 1 for run in runs])

    assert regret("pretrained-policy") < min(regret("random") / 2, 0.03)


def test_what_it_was_not_trained_on_is_refused():
    with pytest.raises(InputError, match="cannot search staged plans; random, annealing"):
        rank_plans(task(), Ranking(backend="pretrained-policy", space="staged"))
    with pytest.raises(InputError, match=r"bert-large is a list of layers.*reinforcement-learning"):
        rank_plans(
            Task(
                Model.preset("bert-large"),
                Cluster.profile("h100-sxm", gpus=8),
                sequence=1,
                global_batch=64,
            ),
            Ranking(
                backend="pretrained-policy",
            ),
        )


def test_the_weights_are_small():
    assert len(files("plan3d.search.sampling").joinpath(WEIGHTS_FILE).read_bytes()) < 100_000


def test_what_follows_from_the_fields_by_hand():
    """512 GPUs in domains of 8; 80 layers of a hidden size of 8192 on 64 GiB."""
    logs = {
        **{"gpus": 9.0, "global_batch": 11.0, "layers": np.log2(80), "hidden": 13.0},
        **{"memory": 36.0, "domain": 3.0, "sequence": 12.0},
        **{"dense_parameters": 36.0, "routed_parameters": 38.0},
    }
    names = ("tp", "cp", "pp", "ep", "micro_batch", "virtual_stages")
    log = dict(zip(names, map(np.array, ([2.0], [1.0], [3.0], [4.0], [1.0], [2.0])), strict=True))
    found = [float(np.ravel(value)[0]) for value in _consequences(logs, log)]
    # 2^9 / 2^6 replicas; 2^11 sequences over 2^3 replicas of 2 at a time; 32 chunks of 3 layers
    # for 80; weights of 2^34 each, 16 bytes each, on 2^3 stages; 2^10 tokens of 34 bytes a layer.
    replicas, micro_batches, uneven, weights = 3.0, 7.0, 96 / 80 - 1, 35 + 4 - 36 - 3
    activations = 10 + 13 + np.log2(80 * 34) - 36
    spans = [2 - 3, 3 - 3, 6 - 3]
    expected = [replicas, micro_batches, uneven, weights, activations, 3 - 2 - 7.0, *spans]
    assert found == pytest.approx(expected, abs=1e-12)
