"""Gymnasium accepts a problem as an environment, and an episode pays its plan's cost."""

import subprocess
import sys

import numpy as np
import pytest

from plan3d.search.result.objective import BARRIER
from plan3d.search.sampling.gymnasium_environment import ILLEGAL_COST, Episodes, environment
from plan3d.search.space.space import Space
from plan3d.search.space.staged_problem import StagedProblem
from plan3d.search.space.uniform_problem import UniformProblem
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-1.3b"),
    Cluster.profile("h100-sxm", gpus=8),
    sequence=2048,
    global_batch=16,
)
UNIFORM = UniformProblem(Space.of(TASK))
LIMIT = 6e10


def test_without_the_package_one_line_says_how_to_get_it():
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "from plan3d.search.sampling.gymnasium_environment import environment\n"
        "from plan3d.simulator.base.errors import InputError\n"
        "try:\n    environment(None, limit=1.0)\n"
        "except InputError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'plan3d[gymnasium]'" in done.stdout
    assert done.stdout.count("\n") == 1


def test_an_observation_counts_from_one_and_has_room_for_the_longest_list_of_values():
    """Without the package: zero is what is still open."""
    episodes, random = Episodes(UNIFORM, "step-time", LIMIT), np.random.default_rng(0)
    longest = max(len(variable.values) for variable in UNIFORM.variables)
    actions = []
    while (legal := np.flatnonzero(episodes.action_masks())).size:
        assert episodes.action_masks().size == longest
        actions.append(int(random.choice(legal)))
        seen, *_ = episodes.step(actions[-1])
        still_open = [0] * (len(UNIFORM.variables) - len(actions))
        assert seen["chosen"].tolist() == [action + 1 for action in actions] + still_open
    assert len(actions) == len(UNIFORM.variables)


@pytest.fixture(params=["uniform", "staged"])
def env(request):
    pytest.importorskip("gymnasium")
    problem = UNIFORM if request.param == "uniform" else StagedProblem.of(TASK, {"pp": [2, 4]})
    return environment(problem, limit=LIMIT)


def episode(env, seed):
    """A random legal episode: the last reward and what is said of it."""
    random = np.random.default_rng(seed)
    env.reset(seed=seed)
    rewards, over, info = [], False, {}
    while not over:
        action = random.choice(np.flatnonzero(env.action_masks()))
        seen, reward, over, cut, info = env.step(action)
        assert env.observation_space.contains(seen)
        assert not cut
        rewards.append(reward)
    assert rewards[:-1] == [0.0] * (len(rewards) - 1)
    assert len(rewards) == len(env.problem.variables)
    assert not env.action_masks().any()
    return rewards[-1], info


def test_the_checker_accepts_it(env):
    from gymnasium.utils.env_checker import check_env

    check_env(env, skip_render_check=True)


def test_an_episode_pays_minus_the_logarithm_of_the_step(env):
    for seed in range(8):
        reward, info = episode(env, seed)
        costs = evaluate(TASK, Plan.parse(info["plan"]))
        if costs.memory_bytes <= LIMIT:
            assert reward == pytest.approx(-np.log(costs.step_seconds), rel=1e-9)
        else:
            assert -ILLEGAL_COST < reward <= -BARRIER


def test_an_illegal_action_ends_the_episode_below_every_plan(env):
    env.reset()
    while env.action_masks().all():
        env.step(int(np.flatnonzero(env.action_masks())[0]))
    action = int(np.flatnonzero(~env.action_masks())[0])
    _, reward, over, _, info = env.step(action)
    assert (reward, over, info) == (-ILLEGAL_COST, True, {"illegal": True})


def test_nothing_legal_is_refused():
    pytest.importorskip("gymnasium")
    empty = UniformProblem(Space.of(TASK, {"dp": [5]}))
    with pytest.raises(InputError, match="no legal plan"):
        environment(empty, limit=LIMIT)
