"""Searches that draw plans at random and only see their scores, by name."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from plan3d.simulator.base.registry import Registry

from ..exact.uniform_steps import UniformPlans
from ..result.options import SearchOptions
from ..result.search_result import SearchResult
from ..space.space import Space
from ..space.staged import StagedProblem
from ..space.uniform import UniformProblem
from . import ask_tell
from .ask_tell import MakeSampler

_HERE = __package__
SAMPLERS: Registry[MakeSampler] = Registry(
    "backend",
    "plan3d.samplers",
    {
        "random": f"{_HERE}.zeroth_order:RandomSearch",
        "annealing": f"{_HERE}.zeroth_order:Annealing",
        "spsa": f"{_HERE}.zeroth_order:Spsa",
        "cma-es": f"{_HERE}.zeroth_order:CmaEs",
        "reinforcement-learning": f"{_HERE}.reinforcement_learning:PolicyGradient",
        "pretrained-policy": f"{_HERE}.pretrained_policy:PretrainedPolicy",
    },
)
"""They take a seed."""
ALIKE_ONLY = ("pretrained-policy",)
"""Those whose plans have stages that are alike, as all they learned from."""


def of_space(space: str) -> tuple[str, ...]:
    """The names of those that search a space."""
    return tuple(name for name in SAMPLERS if space == "uniform" or name not in ALIKE_ONLY)


def of_stages(name: str) -> MakeSampler:
    """A backend of SAMPLERS as it searches staged plans: those with equal stages first, unless it
    draws without learning."""
    from .two_phase import TwoPhase

    make = SAMPLERS[name]
    return make if name == "random" else partial(TwoPhase, make)


def search(
    name: str, subject: Space | StagedProblem, options: SearchOptions, *, seed: int | None = None
) -> SearchResult:
    """The search of one sampler, over plans whose stages are alike or may differ."""
    if isinstance(subject, Space):
        make = SAMPLERS[name]
        return ask_tell.search(UniformProblem(subject), make, options, backend=name, seed=seed)
    whole = Space.of(subject.task)
    uniform = UniformPlans.of_default_space(whole, options)
    if uniform.whole.interrupted:
        return replace(uniform.whole, backend=name, frontier=None)
    result = ask_tell.search(subject, of_stages(name), options, backend=name, seed=seed)
    return replace(result, compared=uniform.steps(result.costs))
