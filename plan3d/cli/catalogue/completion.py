"""Completion scripts of verbs, options and names, which shtab makes from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TypeAlias

from plan3d.simulator.base.errors import InputError, did_you_mean

from ...screens.output import Progress
from ..arguments.positional import PLACES

ABOUT = """Print a completion script for a shell; it is made from the parser.

  plan3d completion bash > ~/.local/share/bash-completion/completions/plan3d
  plan3d completion zsh > "${fpath[1]}/_plan3d"
  plan3d completion fish > ~/.config/fish/completions/plan3d.fish"""
SHELLS = ("bash", "zsh", "fish")
Completer: TypeAlias = dict[str, str | dict[str, str]]
"""What shtab writes for each shell, and the functions that it needs there."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Print the script of one shell."""
    if args.shell not in SHELLS:
        message = f"completion {args.shell!r}: must be {', '.join(SHELLS)}"
        raise InputError(message + did_you_mean(args.shell, SHELLS))
    print(script(args.shell))
    return 0


def script(shell: str) -> str:
    """The completion script of a shell."""
    import shtab

    from plan3d.search.systems.systems import SYSTEMS
    from plan3d.simulator.hardware.profile_file import profile_names
    from plan3d.simulator.hardware.software_stack import SOFTWARE
    from plan3d.simulator.workload.presets import preset_names

    from ..main import ALL, parser

    completers = {
        "file": shtab.FILE,
        "model": _names_or_files("model", preset_names()),
        "cluster": _names_or_files("cluster", profile_names()),
        "software": _names_or_files("software", SOFTWARE),
        "system": _names_or_files("system", SYSTEMS),
    }
    top = parser(ALL)
    for verb, sub in _subparsers(top).items():
        for place in PLACES.get(verb, ()):
            word = sub.add_argument(place.name.upper(), help=place.said)
            setattr(word, "completes", place.name)  # noqa: B010
        for one in (sub, *_subparsers(sub).values()):
            for action in one._actions:
                if completer := completers.get(getattr(action, "completes", "")):
                    setattr(action, "complete", completer)  # noqa: B010
    return str(shtab.complete(top, shell))


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    groups = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return {name: sub for group in groups for name, sub in group.choices.items()}


def _names_or_files(kind: str, names: Iterable[str]) -> Completer:
    """Completes names, or files where no name begins with the word."""
    words = " ".join(sorted(names))
    bash = f"_plan3d_{kind}_or_file"
    return {
        "bash": bash,
        "zsh": f"{{compadd -- {words} || _files}}",
        "fish": f"{words} (__fish_complete_path (commandline -ct))",
        "preamble": {"bash": f'{bash}() {{ compgen -W "{words}" -- "$1" || compgen -f -- "$1"; }}'},
    }
