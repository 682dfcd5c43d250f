"""The verb `help`: every option of a verb, and every word of a screen."""

from __future__ import annotations

import argparse

from plan3d.simulator.base.errors import InputError, did_you_mean

from ..arguments.help_pages import help_page
from ..options.table import OPTIONS
from ..screen.output import Progress, Screen
from ..verbs import VERBS
from .words import WORDS, words_table

ABOUT = """Explain a verb with all its options, or the words of a screen.

  plan3d help search
  plan3d help words
  plan3d help MFU"""
EVERY_WORD = "words"


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Print what is known of a verb or a word."""
    topic = args.topic
    if topic is None:
        from ..main import parser

        parser().print_help()
    elif topic in VERBS:
        print(verb_page(topic, full=True))
    elif topic == EVERY_WORD:
        Screen(args.verbose).table(words_table())
    else:
        Screen(args.verbose).lines([f"{topic}: {meaning_of(topic)}"])
    return 0


def verb_page(verb: str, full: bool = False) -> str:
    """The help of a verb."""
    about = VERBS[verb].load().ABOUT
    if verb == "calibrate":
        return f"usage: plan3d calibrate WHAT [options]\n\n{about}"
    return help_page(verb, about, [option for option in OPTIONS if verb in option.verbs], full)


def meaning_of(word: str) -> str:
    """What a word means, with or without its unit; InputError for one that no screen has."""
    for name, meaning in WORDS.items():
        if word.lower() in (name.lower(), name.lower().rpartition(" ")[0]):
            return meaning
    known = [*VERBS, EVERY_WORD, *WORDS]
    raise InputError(f"help {word!r}: no verb and no word{did_you_mean(word, known)}")
