"""Help: every option of a verb, every word of a screen, every field of a plan. Needs no numpy.

Parts of a step and of the memory are explained by docs/model.md.
"""

from __future__ import annotations

import argparse
import textwrap

from plan3d.simulator.base.errors import InputError, did_you_mean
from plan3d.simulator.base.text_tables import Table

from ...screens.output import Progress, Screen
from ..arguments.help_pages import help_page
from ..options.table import OPTIONS
from ..verbs import VERBS

ABOUT = """Explain a verb with all its options, or the words of a screen.

  plan3d help search
  plan3d help words
  plan3d help MFU"""
EVERY_WORD = "words"
"""The topic that lists all of them."""
FIELD_WIDTH = 56
"""Columns of the text beside a field's name."""


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


def words_table() -> Table:
    """Every word, by group."""
    rows: list[tuple[str, str]] = []
    for title, group in GROUPS.items():
        rows += [("", ""), (title.upper(), ""), *group.items()]
    return Table(headers=("word", "meaning"), rows=tuple(rows[1:]), words=frozenset({0, 1}))


def fields_table() -> Table:
    """Every field of a plan with its meaning, and below it its values, default and flags."""
    from plan3d.launch_files.registry import flags_by_framework
    from plan3d.simulator.plan.fields import FIELDS

    rows: list[tuple[str, str]] = []
    for name, record in FIELDS.items():
        default = record.spell(record.default) if record.is_column else None
        default = int(default) if isinstance(default, bool) else default
        stated = f"; default {default}" if record.is_column else ""
        flags = [f"{framework} {flag}" for framework, flag in flags_by_framework(name).items()]
        texts = [
            record.help,
            f"  {record.values.description}{stated}; seen by {record.seen_by.value}",
        ]
        texts += [f"  {', '.join(flags)}"] if flags else []
        lines = [
            line
            for text in texts
            for line in textwrap.wrap(
                text, FIELD_WIDTH, subsequent_indent="  ", break_on_hyphens=False
            )
        ]
        rows += zip((name, *("" for _ in lines[1:])), lines, strict=True)
    return Table(headers=("field", "meaning"), rows=tuple(rows), words=frozenset({0, 1}))


PLANS = {
    "plan": "fields that differ from their defaults; dp fills the GPUs",
    "family": "plans that split the model in the same ways: TP+PP, ZeRO-3 ...",
    "instead": "the best plan of another family",
    "with": "its most telling differences from the best plan",
    "alike": "plans of the family within 1 % of its fastest; the simplest is listed",
    "rank": "place in the list; of a pipeline: one stage's GPUs, 0 holds the embedding",
    "edit": "one field of the plan changed; what follows from it follows",
    "step s": "seconds from one update of the weights to the next",
    "change %": "of the step: +10 is ten percent slower",
    "change GiB": "of the memory of the fullest rank",
    "at 80 %": "four of five such runs are expected between the two numbers",
    "MFU %": "model FLOPs over those of the GPUs' dense peak; recompute does not count",
    "causal": "MFU with half of the attention, as Megatron-LM logs it",
    "MFU points": "what a loss takes of the 100 % that the arithmetic would reach at peak",
    "MFU % if free": "the MFU were this loss free",
    "tokens/s": "of all GPUs together",
    "hub id": "name on the Hugging Face Hub, which works as well",
    "way": "all weights trained, or adapters beside frozen ones",
    "longest": "tokens of the longest sequence that fits with a micro-batch of one",
    "mem GiB": "bytes on the fullest GPU, 1 GiB = 2^30 bytes",
    "fits %": "probability that the peak of memory stays below the GPU's",
    "verdict": "fits from 95 % on, edge from 50 % on",
    "part of a step": "seconds that are not hidden behind others; they add up",
    "share %": "of the whole",
    "of GPU %": "of the GPU's usable memory",
    "of node %": "of the node's usable memory",
    "memory of worst rank": "by part, of the rank that needs most",
    "host memory of a node": "what its GPUs keep in host memory",
    "s": "seconds",
    "GiB": "2^30 bytes",
}
SCREEN = {
    "asked": "the question as it was understood",
    "assumed": "what the question left open, and the option that says it",
    "memory": "whether the plan fits, how likely, and what is left",
    "measured": "the published run that is nearest to the question",
    "why": "FLOP/s a GPU reaches, the largest losses and their causes",
    "next step": "the one change of plan, precision, batch, network or GPUs with most tokens/s",
    "launch": "writes the launch file of the plan",
    "failures": "what training takes when jobs fail and start again from a checkpoint",
    "warning": "why another plan may be the one to take",
    "proof": "what the search has proven of the plan",
    "step": "the largest parts of the step, and of the memory of the fullest rank",
    "learned": "what a measured step says of the constants",
    "check": "what to look at where measured and predicted differ",
    "against": "how the other plan differs, and where its time goes",
    "limit": "whether memory stands between the plan and a faster one",
    "machine": "the number of the hardware that matters most",
    "system": "the training system whose plans were searched",
    "goal": "what reaching the accuracy takes",
    "host": "what is kept in host memory",
    "more": "how to see the rest",
}
STAGES = {
    "states GiB": "weights, gradients and optimizer",
    "activations GiB": "kept between forward and backward",
    "other GiB": "logits, buffers, allocator and context",
    "total GiB": "all of it",
    "ms a micro-batch": "forward and backward of one micro-batch on this rank",
    "busy s": "computing",
    "idle s": "waiting",
    "idle %": "waiting, of the step",
}
QUESTIONS = {
    "scaling %": "tokens/s a GPU over that of the first point of the series",
    "days": "of training on all tokens",
    "GPU-hours": "GPUs times hours",
    "USD": "GPU-hours times the price given",
    "MWh": "board power times time, an estimate",
    "speed-up": "step of one device over the step",
    "iterations": "steps to the accuracy, by published rates",
    "to accuracy": "time that they take",
    "backend": "a method of searching",
    "regret %": "how much slower than the optimum, or than the best measured layout",
    "plans costed": "plans that were evaluated",
    "to 1 %": "plans costed until the regret was at most 1 %",
    "seeds within 1 %": "runs of the method that came that near",
    "GPUs": "used by the plan",
    "hardware number": "one number of the profile",
    "elasticity": "-0.6: 1 % more of it makes the step 0.6 % shorter",
    "step % if halved": "change of the step with half of it",
    "step % if doubled": "change of the step with twice as much",
    "memory of a GPU GiB": "with less, the same and more memory than the GPU has",
    "this plan": "whether it fits",
    "best step s": "of the best plan that fits",
    "best plan": "which that is",
    "from ideal to predicted": "what is lost on the way from the arithmetic at peak",
}
PREDICTIONS = {
    "source": "where runs were published, or a number comes from",
    "rows": "published runs",
    "median %": "|predicted / measured - 1|, the middle one",
    "mean %": "the same, its mean",
    "p90 %": "nine of ten are below",
    "bias %": "the signed median: above 0 is predicted too slow",
    "in interval %": "runs whose measured step lies in the 80 % interval",
}
CATALOGUES = {
    "model": "a name for --model",
    "parameters": "of the whole model",
    "active": "parameters that a token passes through",
    "batch tokens": "of a step, as published",
    "trained on": "tokens, as published",
    "layers": "transformer layers, of a model or of a pipeline rank",
    "hidden": "width of the model",
    "heads": "of attention; kv_heads share keys and values",
    "kv_heads": "groups of heads with keys and values of their own",
    "ffn": "width of the MLP",
    "experts": "of a mixture; a token passes through a few",
    "vocabulary": "tokens that the model knows",
    "sequence": "tokens of one sequence",
    "cluster": "a name for --cluster",
    "accelerator": "its GPU",
    "memory GiB": "usable of one GPU",
    "16-bit TFLOP/s": "dense peak",
    "fast GPUs": "joined by NVLink or xGMI",
    "fast GB/s": "of one GPU in one direction, inside",
    "network GB/s": "of one GPU in one direction, across nodes",
    "number": "one number of a profile",
    "kind": "measured, datasheet, fitted, rule or prior",
    "learned from": "published runs that it was fitted to",
    "software": "a name for --software: a training stack",
}
TERMS = {
    "TP, PP, DP, CP, EP": "tensor, pipeline, data, context and expert parallelism",
    "ZeRO": "sharding over dp: 1 optimizer, 2 and gradients, 3 and weights",
    "FSDP": "ZeRO-3 by units, as PyTorch has it",
    "micro-batch": "sequences that pass through a stage at once",
    "bubble": "what pipeline ranks wait at the start and the end of a step",
    "imbalance": "how much longer the slowest pipeline rank works than the mean",
    "contended": "how much longer kernels run beside the communication that they hide",
    "virtual stages": "chunks of layers a rank; more of them shrink the bubble",
    "recompute": "activations computed again in backward instead of kept",
    "headroom": "memory that a search leaves free",
    "domain": "GPUs joined by fast links: a node, or a rack",
    "profile": "the numbers of a machine or a stack, with their sources",
}
GROUPS = {
    "plans": PLANS,
    "first screens": SCREEN,
    "pipeline ranks": STAGES,
    "questions": QUESTIONS,
    "predictions": PREDICTIONS,
    "catalogues": CATALOGUES,
    "terms": TERMS,
}
WORDS = {word: text for group in GROUPS.values() for word, text in group.items()}
"""Every word with its meaning."""
