"""Sampling backends keep their budget, repeat with their seed, and find what there is."""

from functools import cache

import numpy as np
import pytest
from not_empty import not_empty

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.objective import BARRIER, guided
from plan3d.search.result.options import Deadline, SearchOptions
from plan3d.search.result.search_record import SearchRecord
from plan3d.search.result.search_result import Trace
from plan3d.search.sampling import samplers
from plan3d.search.sampling.reinforcement_learning import ChoicePolicy, PolicyGradient
from plan3d.search.sampling.samplers import (
    BUDGET,
    SAMPLERS,
    STALE_SHARE,
    STALE_STARTS,
    STALE_TABLES,
    AskTell,
    KnownScores,
    Repeats,
    samplers_of_space,
    scorer,
)
from plan3d.search.sampling.zeroth_order import Annealing, CmaEs, Spsa, Stagnation
from plan3d.search.space.problem import draw, encode, nearest_points
from plan3d.search.space.space import Space
from plan3d.search.space.staged_problem import StagedProblem
from plan3d.search.space.uniform_problem import UniformProblem
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.fields import AXES
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TINY = {
    **{"tp": [2, 4], "cp": [1], "pp": [1, 2, 4], "micro_batch": [1, 2], "overlap_tp": [0]},
    **{"zero": [0, 1, 3], "virtual_stages": [1, 2], "overlap_grad_reduce": [1]},
}
every_backend = pytest.mark.parametrize("name", SAMPLERS)


@cache
def task(model="gpt3-1.3b", gpus=16, batch=64):
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    return Task(Model.preset(model), cluster, sequence=2048, global_batch=batch)


def limit_of(question):
    return 0.9 * question.cluster.accelerator.memory


def uniform(choose=None):
    return UniformProblem(Space.of(task(), choose))


def run(problem, name, seed=None, **options):
    asked = SearchOptions(**{"limit": limit_of(problem.task), "top": 3, **options})
    return samplers.sample(problem, SAMPLERS[name], asked, backend=name, seed=seed)


def rows(plans):
    return [tuple(getattr(plan, axis) for axis in AXES) for plan in plans]


def same(one, other):
    return (
        rows(one.plans) == rows(other.plans)
        and one.trace.best.tolist() == other.trace.best.tolist()
        and one.trace.evaluations.tolist() == other.trace.evaluations.tolist()
    )


@every_backend
def test_a_seed_repeats_the_run_and_another_does_not(name):
    """And none is the seed 0."""
    options = {"backend": name, "budget": 16, "top": 3}
    one, again, other = (rank_plans(task(), Ranking(seed=seed, **options)) for seed in (None, 0, 4))
    assert same(one, again)
    assert not same(one, other)


@every_backend
@pytest.mark.parametrize("budget", [1, 7, 24])
def test_the_budget_is_kept_to_the_plan(name, budget):
    result = rank_plans(task(), Ranking(backend=name, budget=budget, choose=TINY))
    assert result.counts.evaluated == budget
    assert result.backend == name
    assert not result.complete
    assert not result.interrupted
    assert (np.diff(result.trace.best) < 0).all()
    assert (np.diff(result.trace.evaluations) > 0).all()
    assert_best_of_all(result)
    assert result.counts.feasible + result.counts.removed["memory"] == budget


def assert_best_of_all(result):
    """No answer is worse than a plan that was costed, so never than what a search begins with."""
    assert (result.best is not None) == (result.trace.best.size > 0)
    if result.best is not None:
        assert result.best.step_seconds == pytest.approx(result.trace.best[-1], rel=1e-12)


@every_backend
def test_a_tiny_space_is_solved(name):
    choose = {**TINY, "micro_batch": [1], "zero": [1], "pp": [1, 2]}
    exact = rank_plans(task(), Ranking(choose=choose))
    assert 20 < exact.counts.evaluated < BUDGET
    result = rank_plans(task(), Ranking(backend=name, choose=choose))
    assert result.best.step_seconds == pytest.approx(exact.best.step_seconds, rel=1e-12)
    assert result.counts.candidates == exact.counts.candidates
    assert result.complete == (result.counts.evaluated == exact.counts.evaluated)


def test_a_space_that_is_costed_whole_is_complete():
    one = {**TINY, "tp": [2], "pp": [2], "zero": [1], "micro_batch": [1]}
    exact = rank_plans(task(), Ranking(choose=one, top=50, frontier=True))
    result = rank_plans(task(), Ranking(choose=one, top=50, frontier=True, backend="random"))
    assert result.complete
    assert result.counts.evaluated == exact.counts.evaluated
    assert rows(result.plans) == rows(exact.plans)
    found = (result.frontier.plans, exact.frontier.plans)
    assert rows(found[0]) == rows(found[1])
    assert result.smallest.memory_bytes == exact.smallest.memory_bytes


@cache
def regret(name):
    """Mean regret of two seeds after 500 plans, on a task that no setting was chosen on; of more
    seeds, plans and tasks in tests/benchmarks/search_backends.py."""
    cluster = Cluster.profile("h100-sxm", gpus=32, memory=80.5e9)
    question = Task(Model.preset("llama-3.1-8b"), cluster, sequence=8192, global_batch=128)
    optimum = rank_plans(question, Ranking(headroom=0.1)).best.step_seconds
    runs = (
        rank_plans(question, Ranking(backend=name, headroom=0.1, budget=500, seed=s))
        for s in range(2)
    )
    return float(np.mean([run.best.step_seconds / optimum - 1 for run in runs]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in SAMPLERS if name not in ("random", "pretrained-policy")]
)
def test_every_backend_beats_random_search(name):
    assert regret(name) < regret("random") / 1.5


@every_backend
def test_points_asked_for_are_legal_and_scores_are_told(name):
    problem = uniform()
    backend, known = SAMPLERS[name](problem, np.random.default_rng(1)), KnownScores()
    for spent in not_empty(np.linspace(0, 1, 10)):
        points = backend.ask(float(spent))
        assert legal_rows(problem.plans(points), problem.task).all()
        known.add(points, simulate(problem.task, problem.plans(points)).step)
        backend.tell(points, np.log(known.look_up(points)))


@every_backend
def test_one_legal_plan_is_no_search(name):
    one = {"tp": [2], "cp": [1], "pp": [2], "virtual_stages": [1], "micro_batch": [1], "zero": [1]}
    one |= {"recompute": [0], "sequence_parallel": [1], "overlap_tp": [0]}
    one |= {"overlap_grad_reduce": [1]}
    result = rank_plans(task(), Ranking(choose=one, backend=name))
    assert result.complete
    assert rows(result.plans) == rows(rank_plans(task(), Ranking(choose=one)).plans)


@every_backend
def test_points_that_never_fit_are_survived(name):
    problem = uniform(TINY)
    result = run(problem, name, limit=1.0, budget=60)
    assert result.plans == []
    assert result.trace.best.size == 0
    assert result.trace.at(60) == np.inf
    assert result.smallest is not None


@pytest.mark.parametrize("name", samplers_of_space("staged"))
def test_stages_that_differ_are_searched_too(name):
    problem = StagedProblem.of(task("llama-7b", 16, 64), {"pp": [1, 2, 4]})
    result = run(problem, name, budget=150)
    assert result.counts.evaluated == 150
    assert legal_rows(result.costs.plans, problem.task).all()
    (best,) = simulate(problem.task, result.plans[0].table()).step
    assert best == pytest.approx(result.trace.at(150), rel=1e-12)
    assert_best_of_all(result)


@pytest.mark.slow
def test_annealing_finds_stages_that_beat_all_uniform_ones():
    """A large vocabulary loads the last stage; an uneven cut relieves it."""
    question = task("llama-3.1-8b", 32, 64)
    options = {"backend": "annealing", "space": "staged", "budget": 800}
    result = rank_plans(question, Ranking(choose={"pp": [4]}, **options))
    assert all(plan.pp == 4 for plan in not_empty(result.plans))
    alike = {"cp": [1], "virtual_stages": [1], "pp": [4]}
    assert (
        result.best.step_seconds
        < 0.97 * rank_plans(question, Ranking(choose=alike)).best.step_seconds
    )


# The driver


class Script:
    """A sampler that asks for given tables and keeps what it was told."""

    def __init__(self, tables):
        self.tables, self.told, self.spent = list(tables), [], []

    def ask(self, spent):
        self.spent.append(spent)
        return self.tables.pop(0) if len(self.tables) > 1 else self.tables[0]

    def tell(self, points, scores):
        self.told.append((points, scores))


def driven(tables, budget=100, time_limit=None):
    problem = uniform(TINY)
    script, counted = Script(tables), []
    options = SearchOptions(
        limit=limit_of(problem.task),
        top=5,
        budget=budget,
        deadline=Deadline.after(time_limit),
        progress=counted.append,
    )
    seen = SearchRecord(problem.task, options)
    run = AskTell(problem, seen)
    run.run(lambda: script)
    run.keep()
    return script, counted, seen


def points(rows, seed=0):
    return draw(uniform(TINY), rows, np.random.default_rng(seed))


def test_a_small_space_is_costed_whole_and_looked_up(monkeypatch):
    """As its tables would be one by one; legal plans are numbered in the order of the space."""
    problem, options = uniform(TINY), SearchOptions(limit=limit_of(uniform(TINY).task))
    table = points(50)
    number = 0
    for plans in problem.space.chunks(rows=64):
        own = [str(plans.take(row)) for row in range(plans.rows)]
        of = problem.numbers(table)
        here = np.flatnonzero((of >= number) & (of < number + plans.rows))
        assert [str(problem.plans(table[[i]]).take(0)) for i in here] == [
            own[i - number] for i in of[here]
        ]
        number += plans.rows
    assert number == problem.size
    looked_up = scorer(problem, options)(table)
    monkeypatch.setattr(samplers, "MOST_COSTED_WHOLE", 0)
    assert looked_up == pytest.approx(scorer(problem, options)(table), rel=1e-12)


def test_repeats_are_answered_and_not_counted():
    table = points(6)
    distinct = len(np.unique(table, axis=0))
    script, counted, _ = driven([np.concatenate([table, table]), table])
    assert counted == [distinct] * len(counted)
    assert len(script.told) == 1 + STALE_TABLES * (1 + STALE_STARTS)
    first, second = script.told[0][1], script.told[1][1]
    assert first[:6].tolist() == first[6:].tolist() == second.tolist()


@pytest.mark.parametrize("stale", ["repeats", "no better"])
def test_a_sampler_that_is_stale_is_replaced_until_the_budget_is_spent(stale):
    """By one that finds the other plans, and sees its own share of what was left."""
    problem, every = uniform(TINY), np.unique(points(400), axis=0)
    record = SearchRecord(problem.task, SearchOptions(limit=limit_of(problem.task), budget=40))
    rows = [every[i : i + 1] for i in range(60)]
    first = Script(rows[:1] if stale == "repeats" else rows)
    scripts = [first, Script([every[60:75], every[75:]])]
    made = iter(scripts)
    run = AskTell(problem, record)
    if stale == "no better":  # the first plan is the best of those that the first sampler draws
        costs = simulate(problem.task, problem.plans(every[:60]))
        order = np.argsort(guided(costs, "step-time", record.options.limit), kind="stable")
        first.tables = [every[[i]] for i in order]
    run.run(lambda: next(made))
    spent = len(first.told)
    assert spent == (1 + STALE_TABLES if stale == "repeats" else 2 + int(STALE_SHARE * 40))
    assert run.plans_left == 0
    own = len({p.tobytes() for p, _ in first.told})
    assert scripts[1].spent[:2] == [0.0, pytest.approx(15 / (40 - own))]


def test_a_table_beyond_the_budget_is_cut_and_not_told():
    table = np.unique(points(40), axis=0)
    script, _, seen = driven([table[:5], table], budget=9)
    assert seen.counts.evaluated == 9
    assert [len(told) for told, _ in script.told] == [5]
    assert script.spent == [0.0, 5 / 9]


def test_the_time_limit_ends_a_run():
    _, counted, _ = driven([points(4)], time_limit=1e-9)
    assert counted == []


def test_progress_may_interrupt():
    def stop(costed):
        raise KeyboardInterrupt

    result = rank_plans(task(), Ranking(backend="annealing", progress=stop))
    assert result.interrupted
    assert not result.complete
    assert result.plans


def test_a_trace_answers_at_any_count():
    trace = Trace(np.array([3, 10]), np.array([2.0, 1.0]))
    assert [trace.at(n) for n in (2, 3, 9, 10, 99)] == [np.inf, 2.0, 2.0, 1.0, 1.0]
    assert [trace.until(x) for x in (3.0, 2.0, 1.5, 1.0, 0.5)] == [3, 3, 10, 10, np.inf]


def test_a_search_without_legal_plans_says_so():
    result = rank_plans(task(), Ranking(backend="random", choose={"dp": [5]}))
    assert (result.counts.evaluated, result.plans, result.complete) == (0, [], True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "draws nothing at random"),
        ({"backend": "spsa", "seed": -1}, "at least 0"),
        ({"backend": "anealing"}, "did you mean annealing"),
        ({"backend": "random", "budget": 0}, "above 0"),
        ({"backend": "random", "space": "stages"}, "did you mean staged"),
        ({"space": "staged"}, "exhaustive backend cannot search staged plans; random, "),
        ({"backend": "random", "space": "staged", "choose": {"tp": [2]}}, "on pp, not tp"),
        ({"backend": "random", "space": "staged", "choose": {"pp": [3]}}, "nearest: 2, 4"),
        ({"backend": "random", "space": "staged", "choose": {"pp": [64]}}, "at most 24 layers"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        rank_plans(task(), Ranking(**{"choose": TINY, **options}))


# Parts of the backends


def test_a_policy_without_experience_is_uniform_over_legal_values():
    problem = uniform()
    _, decisions = ChoicePolicy(problem).sample(64, np.random.default_rng(0))
    for decision in not_empty(decisions):
        legal_values = decision.chances > 0
        expected = legal_values / legal_values.sum(axis=1, keepdims=True)
        assert decision.chances == pytest.approx(expected)


def test_the_gradient_of_the_policy_is_that_of_its_log_chance():
    problem = uniform(TINY)
    random = np.random.default_rng(0)
    policy = ChoicePolicy(problem)
    for table in (*policy.tables.values(), *policy.logits):
        table += random.normal(size=table.shape)

    def sample(seed):
        taken, decisions = policy.sample(1, np.random.default_rng(seed))
        chances = [d.chances[0, d.chosen[0]] for d in decisions]
        return taken, decisions, np.log(chances).sum()

    taken, decisions, before = sample(5)
    key = next(k for k, t in policy.tables.items() if t.size > 4)
    tables = {k: t.copy() for k, t in policy.tables.items()}
    policy.ascend(taken, decisions, np.ones(1), 1.0, 0.0)
    slope = policy.tables[key] - tables[key]
    small = 1e-6
    for name, value in tables.items():
        policy.tables[name] = value.copy()
    for logits, decision in zip(policy.logits, decisions, strict=True):
        logits -= decision.score_function[0]
    policy.tables[key] += small * slope
    again, _, after = sample(5)
    assert (again == taken).all()
    assert (after - before) / small == pytest.approx((slope**2).sum(), rel=1e-4)


def test_learning_makes_good_points_likelier():
    problem = uniform()
    agent = PolicyGradient(problem, np.random.default_rng(0))
    goal = draw(problem, 1, np.random.default_rng(9))[0]

    def far(table):
        return (table != goal).sum(axis=1).astype(float)

    before = far(agent.ask(0.0)).mean()
    for _ in range(60):
        table = agent.ask(0.5)
        agent.tell(table, far(table))
    assert far(agent.ask(0.5)).mean() < 0.5 * before


def test_rewards_keep_the_order_of_scores():
    agent = PolicyGradient(uniform(TINY), np.random.default_rng(0))
    scores = np.array([0.5, 2.0, BARRIER + 0.1, BARRIER + 0.7])
    rewards = agent.rewards(scores)
    assert (np.diff(rewards) < 0).all()
    assert rewards[:2].tolist() == [-0.5, -2.0]
    advantage = agent.advantage(rewards)
    assert (advantage >= agent.LEAST_ADVANTAGE).all()
    assert advantage[0] > 0
    assert agent.advantage(np.ones(8)).tolist() == [0.0] * 8
    # The others' means are 4, 3, 2 and 3; the deviation of all is the root of 18 / 4.
    found = agent.advantage(np.array([0.0, 3.0, 6.0, 3.0]))
    assert found == pytest.approx([-0.5, 0.0, 4 / 4.5**0.5, 0.0])


def test_a_trace_has_what_is_better_than_all_before_it_and_fits():
    found = samplers._Improvements()
    found.add(0, np.array([BARRIER + 1, BARRIER, 3.0, 5.0, 3.0]))
    found.add(10, np.array([3.0, 2.0, 2.0, 1.0]))
    assert found.evaluations == [3, 12, 14]
    assert found.trace().best.tolist() == pytest.approx(np.exp([3.0, 2.0, 1.0]))


def test_a_walker_is_as_good_as_the_better_of_its_two_points():
    agent, told = Spsa(uniform(TINY), np.random.default_rng(0)), []
    table = agent.ask(0.0)
    agent.tell(table, np.zeros(len(table)))
    agent.stagnation.stagnant_rows = lambda scores: told.append(scores) or np.zeros(0, int)
    walkers = agent.WALKERS
    up = np.arange(walkers, dtype=float)
    agent.tell(agent.ask(0.5), np.concatenate([up, up[::-1]]))
    assert told[0].tolist() == [min(i, walkers - 1 - i) for i in range(walkers)]


def test_a_centre_is_likeliest_and_the_others_fall_off_by_the_slope():
    """Ordered values by half a unit a step away, others all by half a unit."""
    policy = ChoicePolicy(uniform({"schedule": ["1f1b", "gpipe", "zb-h1"], "pp": [1, 2, 4]}))
    variables = policy.problem.variables
    policy.centre(np.array([len(v.values) // 2 for v in variables]), 0.5)
    for variable, logits in zip(variables, policy.logits, strict=True):
        at = len(logits) // 2
        away = [abs(i - at) if variable.ordered else float(i != at) for i in range(len(logits))]
        assert (-2 * logits).tolist() == away
    assert {variable.ordered for variable in variables} == {True, False}


def test_a_bonus_for_entropy_makes_choices_more_even():
    policy, random = ChoicePolicy(uniform()), np.random.default_rng(0)
    policy.centre(np.array([len(v.values) - 1 for v in policy.problem.variables]), 1.0)
    points, decisions = policy.sample(64, random)
    first = decisions[0]
    policy.ascend(points, [first], np.zeros(64), rate=0.1, bonus=1.0)
    before = first.chances[0]
    after = np.exp(policy.logits[first.variable]) * (before > 0)
    before, after = (p[p > 0] / p.sum() for p in (before, after))
    assert -(after * np.log(after)).sum() > -(before * np.log(before)).sum()


def test_steps_of_spsa_shorten_with_age():
    """By (A / (A + age))^0.602: at an age of A by 2^-0.602."""
    lengths = []
    for age in (0.0, Spsa.DELAY):
        sampler = Spsa(uniform(), np.random.default_rng(0))
        points = sampler.ask(0.0)
        sampler.tell(points, np.arange(len(points), dtype=float))
        sampler.age[:] = age
        points, before = sampler.ask(0.0), sampler.centres.copy()
        up, down = np.split(np.zeros(len(points)), 2)
        sampler.tell(points, np.concatenate([up - 0.01, down]))
        lengths.append(np.abs(sampler.centres - before).max())
    assert lengths[0] == pytest.approx(0.01 * Spsa.GAIN)
    assert lengths[1] / lengths[0] == pytest.approx(2**-0.602)


def test_both_sides_of_spsa_lie_across_a_few_places_of_each_walker():
    """Three tenths of the places are perturbed in the mean, where that is less than ten."""
    sampler, random = Spsa(uniform(), np.random.default_rng(0)), np.random.default_rng(1)
    points = sampler.ask(0.0)
    sampler.tell(points, random.random(len(points)))
    places, apart = [], 0.0
    for _ in range(100):
        up, down = np.split(encode(sampler.problem, sampler.ask(0.0)), 2)
        apart += ((up - down) * sampler.signs).sum()
        places.append(np.count_nonzero(sampler.signs, axis=1).mean())
    assert apart > 0
    width = sampler.centres.shape[1]
    assert 3 * width < 10 * 10
    assert np.mean(places) == pytest.approx(0.3 * width, rel=0.1)


def test_repeats_count_tables_without_news():
    repeats, one, two = Repeats(), np.array([[1, 2]]), np.array([[1, 2], [3, 4]])
    assert [repeats.add(table) for table in (one, one, one, two, two)] == [0, 1, 2, 0, 1]


def test_walkers_tire_when_nothing_gets_better():
    stagnation = Stagnation(2, 3)
    scores = [(5, 5), (4, 5), (3, 5), (2, 5), (1, 5)]
    rows = [stagnation.stagnant_rows(np.array(pair, float)).tolist() for pair in scores]
    assert rows == [[], [], [], [1], []]


def test_annealing_only_accepts_what_is_little_worse():
    problem = uniform()
    chains = Annealing(problem, np.random.default_rng(0))
    start = chains.ask(0.0)
    chains.tell(start, np.arange(len(start), dtype=float))
    held = chains.points.copy()
    asked = chains.ask(0.0)
    chains.tell(asked, chains.scores + 10)
    assert (chains.points == held).all()
    asked = chains.ask(0.0)
    chains.tell(asked, chains.scores - 1)
    assert (chains.points == asked).all()


def test_the_gaussian_starts_again_wider_when_all_is_known():
    problem = uniform()
    search = CmaEs(problem, np.random.default_rng(0))
    one = nearest_points(problem, encode(problem, draw(problem, 1, np.random.default_rng(0))))
    for _ in range(search.PATIENCE + 1):
        size = len(search.ask(0.0))
        search.tell(np.repeat(one, size, axis=0), np.zeros(size))
    assert len(search.ask(0.0)) == 2 * CmaEs.POPULATION


@pytest.mark.parametrize("rows", [1, 3, 4, 7])
def test_restarts_take_the_initial_points_in_turn(rows):
    """As long as no score is known; then the best point in most of their places."""
    problem = uniform()
    initial = draw(problem, 3, np.random.default_rng(1))
    start = samplers.StartPoints(problem, np.random.default_rng(2), initial)
    turn = [initial[i] for i in (0, 1, 2, 0, 1, 2, 0)]
    assert start.restart(rows).tolist() == [row.tolist() for row in turn[:rows]]
    best = initial[2] * 0
    start.add(np.stack([initial[0], best]), np.array([2.0, 1.0]))
    start.add(initial, np.array([1.0, 3.0, 4.0]))
    many = start.restart(3000)
    is_best = (many == best).all(axis=1)
    others = np.tile(initial, (1000, 1))
    kept = (others == best).all(axis=1).mean()
    assert is_best.mean() == pytest.approx(0.8 + 0.2 * kept, abs=0.03)
    assert (many[~is_best] == others[~is_best]).all()
