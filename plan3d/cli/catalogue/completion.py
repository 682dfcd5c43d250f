"""The verb `completion`: a script that completes verbs, options and names in bash, zsh or fish.

It is made from the parser: verbs, their options with help, and what a value or a word may be.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from plan3d.simulator.base.errors import InputError, did_you_mean

from ..arguments.positional import PLACES
from ..screen.output import Progress
from ..verbs import VERBS

ABOUT = """Print a completion script for a shell; it is made from the parser.

  plan3d completion bash > ~/.local/share/bash-completion/completions/plan3d
  plan3d completion zsh > "${fpath[1]}/_plan3d"
  plan3d completion fish > ~/.config/fish/completions/plan3d.fish"""
SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Flag:
    """One option of a verb."""

    name: str
    help: str
    values: str
    """What a shell completes after it: 'model', 'file' ..., '' where nothing is known."""
    takes_value: bool


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Print the script of one shell."""
    if args.shell not in SHELLS:
        said = f"completion {args.shell!r}: must be {', '.join(SHELLS)}"
        raise InputError(said + did_you_mean(args.shell, SHELLS))
    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](flags(), names()))
    return 0


def names() -> dict[str, list[str]]:
    """Names that an option or a word may have, by what it is."""
    from plan3d.search.systems.systems import SYSTEMS
    from plan3d.simulator.hardware.profile_file import profile_names
    from plan3d.simulator.hardware.software_stack import SOFTWARE
    from plan3d.simulator.workload.presets import preset_names

    known = {"model": preset_names(), "cluster": profile_names(), "software": SOFTWARE}
    return {kind: sorted(values) for kind, values in {**known, "system": SYSTEMS}.items()}


def flags() -> dict[str, list[Flag]]:
    """The options of every verb, as the parser has them."""
    from ..main import ALL, parser

    (verbs,) = (
        action.choices
        for action in parser(ALL)._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return {
        verb: [_flag(action) for action in sub._actions if action.option_strings]
        for verb, sub in verbs.items()
    }


def _flag(action: Any) -> Flag:
    name = next(name for name in reversed(action.option_strings))
    text = " ".join(str(action.help or "").replace("%%", "%").split())
    return Flag(name, text, getattr(action, "completes", ""), action.nargs != 0)


def words_of(verb: str) -> list[str]:
    """What the words after a verb are, in order."""
    if verb in PLACES:
        return ["model", "cluster"]
    positional = VERBS[verb].positional
    return [positional.completes] if positional else []


def bash(flags: dict[str, list[Flag]], names: dict[str, list[str]]) -> str:
    """A function that fills COMPREPLY."""
    lines = ["_plan3d() {", "  local cur=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} words="]
    lines += ["  if (( COMP_CWORD == 1 )); then", f'    words="{" ".join(flags)}"', "  else"]
    lines += ['    case "${COMP_WORDS[COMP_CWORD-1]}" in']
    for kind, options in _by_kind(flags).items():
        if kind in names:
            lines += [f'      {"|".join(options)}) words="{" ".join(names[kind])}" ;;']
    lines += ["    esac", '    if [[ -z $words ]]; then case "$verb:$COMP_CWORD" in']
    for verb in flags:
        for at, kind in enumerate(words_of(verb), 2):
            if kind in names:
                lines += [f'      {verb}:{at}) words="{" ".join(names[kind])}" ;;']
    lines += ["    esac; fi", '    if [[ $cur == -* ]]; then case "$verb" in']
    for verb, own in flags.items():
        lines += [f'      {verb}) words="{" ".join(flag.name for flag in own)}" ;;']
    lines += ["    esac; fi", "  fi", '  COMPREPLY=($(compgen -W "$words" -- "$cur"))', "}"]
    return "\n".join([*lines, "complete -o default -o bashdefault -F _plan3d plan3d"])


def zsh(flags: dict[str, list[Flag]], names: dict[str, list[str]]) -> str:
    """A function for the completion system, by _describe and compadd."""
    lines = ["#compdef plan3d", "_plan3d() {", "  local -a found"]
    lines += ["  if (( CURRENT == 2 )); then", "    found=("]
    lines += [f"      {_quoted(f'{verb}:{VERBS[verb].summary}')}" for verb in flags]
    lines += ["    )", "    _describe verb found", "    return", "  fi"]
    lines += ["  case ${words[CURRENT-1]} in"]
    for kind, options in _by_kind(flags).items():
        if kind in names:
            lines += [f"    ({'|'.join(options)}) compadd -- {' '.join(names[kind])}; _files ;;"]
    lines += ["  esac", "  case ${words[2]}:$CURRENT in"]
    for verb in flags:
        for at, kind in enumerate(words_of(verb), 3):
            if kind in names:
                lines += [f"    ({verb}:{at}) compadd -- {' '.join(names[kind])} ;;"]
    lines += ["  esac", "  case ${words[2]} in"]
    for verb, own in flags.items():
        lines += [f"    ({verb}) found=("]
        lines += [f"      {_quoted(f'{flag.name}:{flag.help}')}" for flag in own]
        lines += ["    ) ;;"]
    lines += ["  esac", "  if [[ $PREFIX == -* ]]; then _describe option found; else _files; fi"]
    return "\n".join([*lines, "}", 'compdef _plan3d plan3d 2>/dev/null || _plan3d "$@"'])


def fish(flags: dict[str, list[Flag]], names: dict[str, list[str]]) -> str:
    """One `complete` a verb, an option and a word."""
    lines = [
        f"complete -c plan3d -f -n __fish_use_subcommand -a {verb} "
        f"-d {_quoted(VERBS[verb].summary)}"
        for verb in flags
    ]
    for verb, options in flags.items():
        seen = f"complete -c plan3d -n {_quoted(f'__fish_seen_subcommand_from {verb}')}"
        lines += [
            f"{seen} -l {flag.name[2:]}{_values(flag, names)} -d {_quoted(flag.help)}"
            for flag in options
        ]
        known = [names[kind] for kind in words_of(verb) if kind in names]
        lines += [f"{seen} -a {_quoted(' '.join(values))}" for values in known]
    return "\n".join(lines)


def _values(flag: Flag, names: dict[str, list[str]]) -> str:
    if not flag.takes_value:
        return ""
    known = names.get(flag.values)
    return " -r" if known is None else f" -r -a {_quoted(' '.join(known))}"


def _by_kind(flags: dict[str, list[Flag]]) -> dict[str, list[str]]:
    """Options by what completes their value."""
    out: dict[str, list[str]] = {}
    for option in (option for options in flags.values() for option in options):
        known = out.setdefault(option.values, [])
        known += [] if option.name in known else [option.name]
    return out


def _quoted(text: str) -> str:
    """A text in single quotes, as all three shells read it."""
    return "'" + text.replace("\\", "").replace("'", '"') + "'"
