"""The verbs of the command line: summary, the module that answers, the argument without a flag.

A module, or an object in one, has ABOUT, the long help, and run(args, progress), which returns the
exit code. It is loaded when its verb is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Positional:
    """An argument without a flag."""

    name: str
    help: str
    completes: str
    """What a shell completes: 'file', 'model', 'cluster', 'software', 'system'."""
    optional: bool = False


@dataclass(frozen=True)
class Verb:
    """One verb."""

    summary: str
    module: str
    """Where it is answered, inside this package: a module, or MODULE:OBJECT."""
    positional: Positional | None = None

    def load(self) -> Any:
        """The module, or the object in it, that answers."""
        module, _, name = self.module.partition(":")
        loaded = import_module(f".{module}", __package__)
        return getattr(loaded, name) if name else loaded


VERBS = {
    "search": Verb("rank the plans of a model on a cluster", "plans.search"),
    "estimate": Verb("time and memory of one plan", "plans.estimate"),
    "explain": Verb(
        "why a plan is as fast as it is, and what to change",
        "plans.explain",
    ),
    "fits": Verb("does fine-tuning of a model fit on some GPUs, and with what", "plans.fits"),
    "textbook": Verb("formulas of textbooks beside the simulator", "catalogue.textbook"),
    "tune": Verb("time a few plans on your own machine, and know the best", "plans.tune"),
    "sweep": Verb("the same question over one or two numbers", "plans.sweep"),
    "compare": Verb("search backends against the optimum", "plans.compare"),
    "timeline": Verb("one plan simulated event by event: trace and picture", "plans.timeline"),
    "export": Verb(
        "write a plan as a launch file of a framework",
        "plans.export",
        Positional("PLAN", "'tp=8 pp=8 ...', a file, last#2 or result.json#3", "file"),
    ),
    "import": Verb(
        "read a launch file of a framework as task and plan",
        "plans.import_",
        Positional("FILE", "launch script or configuration", "file"),
    ),
    "validate": Verb("errors of the predictions on published runs", "evidence.validate"),
    "calibrate": Verb("measure a machine and fit a hardware profile to it", "evidence.calibrate"),
    "serve": Verb("a local page, and a JSON interface for other programs", ".web.verb"),
    "models": Verb(
        "list known models, or show one",
        "catalogue.catalogues:MODEL_CATALOGUE",
        Positional("NAME", "preset or config.json", "model", optional=True),
    ),
    "clusters": Verb(
        "list hardware profiles, or show one",
        "catalogue.profiles:CLUSTER_CATALOGUE",
        Positional("NAME", "profile or TOML file", "cluster", optional=True),
    ),
    "software": Verb(
        "list training stacks, or show one",
        "catalogue.profiles:STACK_CATALOGUE",
        Positional("NAME", "stack or TOML file", "software", optional=True),
    ),
    "systems": Verb(
        "list training systems, or show one",
        "catalogue.catalogues:SYSTEM_CATALOGUE",
        Positional("NAME", "a system that --system knows", "system", optional=True),
    ),
    "help": Verb(
        "every option of a verb, or the words of a screen",
        "catalogue.help",
        Positional("TOPIC", "a verb, 'words', or one of them", "", optional=True),
    ),
    "completion": Verb(
        "a completion script for bash, zsh or fish",
        "catalogue.completion",
        Positional("SHELL", "bash, zsh or fish", ""),
    ),
}
"""Every verb, in the order of help."""
