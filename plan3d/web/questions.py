"""Questions of the JSON interface: a JSON object as the words of the command that asks the same.

Fields are the options of a verb by name, read by the readers of the command line; those that name
files of the disk are no fields. A launch file or a config.json is in the request, as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from plan3d.simulator.base import units
from plan3d.simulator.base.errors import InputError, check_name, did_you_mean
from plan3d.simulator.base.units import doublings, is_whole
from plan3d.simulator.hardware.leaves import describe, is_path
from plan3d.simulator.workload.presets import is_hub_id, is_preset

from ..cli.arguments.positional import PLACES
from ..cli.options import parser
from ..cli.options.parser import Option
from ..cli.options.table import OPTIONS


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One question of the interface."""

    verb: str
    summary: str
    words: tuple[str, ...] = ()
    """Options that make it this question."""
    without: frozenset[str] = frozenset()
    """Fields of the verb that it does not take."""


ENDPOINTS = {
    "search": Endpoint("search", "the plans that fit, the fastest first"),
    "estimate": Endpoint("estimate", "time and memory of one plan"),
    "explain": Endpoint("explain", "where a plan's step goes, and what to change"),
    "memory": Endpoint(
        "explain",
        "bytes of each rank through a step, by tenant",
        ("--memory",),
        frozenset({"memory", "against", "measured_step"}),
    ),
    "fits": Endpoint("fits", "does fine-tuning of a model fit, and with what"),
    "compare": Endpoint("compare", "search backends, or training systems, beside each other"),
    "sweep": Endpoint("sweep", "the same question over one or two numbers"),
    "timeline": Endpoint("timeline", "one plan simulated event by event", ("--verbose",)),
    "export": Endpoint("export", "a plan as the launch file of a framework"),
    "import": Endpoint("import", "a launch file as task and plan"),
}
"""Questions by the last part of their path."""
OF_FILES = frozenset({"FILE", "DIR", "ADDRESS", "COMMAND"})
"""Metavars of options that name a file, a folder or a host."""
OF_SCREENS = frozenset({"json", "quiet", "verbose", "resume", "second_pool"})
"""Options of the terminal, and those that continue a file."""
MACHINE = (
    *("inter_node_bandwidth", "intra_node_bandwidth", "memory", "network_latency"),
    *("latency_per_node", "power_limit", "expert_imbalance", "nic_gpus"),
    *("site_bandwidth", "site_latency"),
)
"""Numbers of the machine that `what_if` may replace."""
NAMES = ("model", "cluster", "software")
"""Fields whose values would be files, where they are no names."""
TAKES_FILES = ("search", "estimate", "explain", "fits", "import")
"""Verbs that take a launch file in place of a model."""
UNITS: Mapping[object, str] = {
    units.parse_bytes: "B",
    parser.memory: "B",
    parser.memory_or_timeline: "B",
    units.parse_bandwidth: "B/s",
    units.parse_seconds: "s",
}
"""SI units of numbers without one."""
LONGEST_TEXT, LONGEST_LIST, MOST_FILES = 20_000, 256, 8
"""Characters of a value, values of a list, and files of a request."""
NO_FILE = "a question to the server names no file: put its text into the request"


@dataclass(frozen=True, slots=True)
class Question:
    """One question as its command, and the files that it carries."""

    words: tuple[str, ...]
    files: Mapping[str, str]
    """Texts by name."""


PRESETS = Question(("presets",), {})
"""What names and values fields can have; the command line has a verb for each list."""


@cache
def fields(name: str) -> Mapping[str, Option]:
    """The options of an endpoint by field; `model`, `cluster` and `gpus` first."""
    endpoint = ENDPOINTS[name]
    out = {
        option.name: option
        for option in OPTIONS
        if endpoint.verb in option.verbs
        and option.metavar not in OF_FILES
        and option.name not in (OF_SCREENS | endpoint.without)
    }
    if endpoint.verb == "export":
        plan = next(one for one in OPTIONS if one.flag == "--plan")
        return {"plan": plan, **out}
    return out


def aliases(name: str) -> Mapping[str, str]:
    """Other names of fields of an endpoint."""
    launched = {"export": {"framework": "to"}, "import": {"framework": "from"}}
    return {"batch": "global_batch"} | launched.get(name, {})


def question(name: str, body: object, most_gpus: int) -> Question:
    """The question of a request; InputError, one line, for what is wrong with it."""
    if not isinstance(body, dict):
        raise InputError(f"the request must be a JSON object, not {describe(body)}")
    given = _flat(name, body)
    files = _files(given)
    _attach_model(given, files)
    arguments = given.pop("arguments", None)
    known, endpoint = fields(name), ENDPOINTS[name]
    for field in given:
        if field not in known and (field != "launch_file" or endpoint.verb not in TAKES_FILES):
            raise InputError(f"{field[:60]}: unknown field of {name}{did_you_mean(field, known)}")
    _check_sizes(given, most_gpus)
    _check_names(given, files)
    words = [endpoint.verb, *_positional(endpoint.verb, given)]
    for field, value in given.items():
        words += _words(known[field], value)
    words += [*endpoint.words, *_script_arguments(arguments, endpoint.verb)]
    return Question(tuple(words), files)


def _flat(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are given, with those of `what_if` and under their own names."""
    given = {field: value for field, value in body.items() if value is not None}
    what_if = given.pop("what_if", {})
    if not isinstance(what_if, dict) or not set(what_if) <= set(MACHINE):
        raise InputError(f"what_if must be an object of {', '.join(MACHINE)}")
    if twice := sorted(what_if.keys() & given.keys()):
        raise InputError(f"{twice[0]} stands in what_if and beside it: give one")
    given |= {field: value for field, value in what_if.items() if value is not None}
    for alias, field in aliases(name).items():
        if alias in given and field in given:
            raise InputError(f"{alias} and {field} say the same: give one")
        if alias in given:
            given[field] = given.pop(alias)
    return given


def _files(given: dict[str, Any]) -> dict[str, str]:
    """The files of a request by name; of `launch_file` its name stays."""
    launch, beside = given.get("launch_file"), given.pop("files", {})
    if not isinstance(beside, dict) or len(beside) > MOST_FILES:
        raise InputError(f"files must be an object of at most {MOST_FILES} texts by name")
    files = {_file_name(name): _file_text(name, text) for name, text in beside.items()}
    if launch is None:
        return files
    if not isinstance(launch, dict) or set(launch) != {"name", "text"}:
        raise InputError('launch_file must be an object {"name": ..., "text": ...}')
    name = _file_name(launch["name"])
    files[name] = _file_text(name, launch["text"])
    given["launch_file"] = name
    return files


def _file_name(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[\w][\w.+ -]{0,99}", name, re.ASCII):
        raise InputError(f"{describe(name)} must be the plain name of a file, such as pretrain.sh")
    return name


def _file_text(name: str, text: object) -> str:
    if not isinstance(text, str):
        raise InputError(f"{name[:60]}: its text must be a string")
    return text.encode(errors="replace").decode()


def _attach_model(given: dict[str, Any], files: dict[str, str]) -> None:
    """A model that is an object becomes a file named after it."""
    import json

    from plan3d.simulator.workload.hf_config import name_of

    config = given.get("model")
    if not isinstance(config, dict):
        return
    stated = config.get("name") if isinstance(config.get("layers"), list) else None
    stem = re.sub(r"[^\w.-]", "-", str(stated or name_of(config)), flags=re.ASCII).strip("-.")[:60]
    name = f"{stem if stem not in ('', 'config') else 'model'}.json"
    files[name] = json.dumps(config)
    given["model"] = name


def _check_sizes(given: Mapping[str, Any], most_gpus: int) -> None:
    """InputError for a question of too many GPUs."""
    sizes = [("gpus", given.get("gpus")), ("nodes", given.get("nodes"))]
    for field, values in _varied(given):
        sizes += [(field, value) for value in values if field in ("gpus", "nodes")]
    for field, value in sizes:
        text = str(value).strip()
        if is_whole(text) and int(text) > most_gpus:
            raise InputError(f"{field} {text}: at most {most_gpus:,} can be asked of a server")


def _positional(verb: str, given: dict[str, Any]) -> list[str]:
    """The words without a flag: a plan, or as many of model, cluster and GPUs as come first."""
    if verb == "export":
        plan = _text("plan", given.pop("plan", None) or "")
        return [check_word(plan, "plan")]
    words: list[str] = []
    file = given.pop("launch_file", None)
    if verb == "import":
        if file is None:
            raise InputError("import needs launch_file: its name and text")
        return [file]
    places = [place.name for place in PLACES[verb]]
    if file is not None and "model" in given and verb != "explain":
        raise InputError("model and launch_file both say the model: give one")
    if file is not None:
        words, places = [file], places[1:]
    for place in places:
        if place not in given:
            break
        words.append(check_word(_text(place, given.pop(place)), place))
    return words


def check_word(text: str, what: str) -> str:
    """A text that is not taken for an option."""
    if text.startswith("-") or not text.strip():
        raise InputError(f"{what} {text[:60]!r} must not be empty or begin with '-'")
    return text


def _words(option: Option, value: object) -> list[str]:
    """An option and its value as words."""
    field = option.name
    if not option.metavar:
        if not isinstance(value, bool):
            raise InputError(f"{field} must be true or false, not {describe(value)}")
        return [option.flag] if value else []
    if option.value_if_bare and value is True:
        return [option.flag, option.value_if_bare]
    texts = [_text(field, one, option) for one in _listed(value, option)]
    out: list[str] = []
    for text in texts:
        joined = text.startswith("-") or not text
        out += [f"{option.flag}={text}"] if joined else [option.flag, text]
    return out


def _listed(value: object, option: Option | None = None) -> list[object]:
    """The values of an option that may be repeated: of a list, or of an object of plan fields."""
    if option is not None and not option.repeatable:
        return [value]
    if isinstance(value, dict):
        value = [f"{name}={_text(name, one)}" for name, one in value.items()]
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(values) > LONGEST_LIST:
        raise InputError(f"a list has {len(values)} values; at most {LONGEST_LIST} can be asked")
    return values


def _text(field: str, value: object, option: Option | None = None) -> str:
    """A value as the command line has it: SI units, lists with commas, plans in words."""
    if isinstance(value, dict) and field in ("plan", "against"):
        return plan_words(value)
    if isinstance(value, list) and not any(isinstance(one, (list, dict)) for one in value):
        if len(value) > LONGEST_LIST:
            raise InputError(f"{field}: at most {LONGEST_LIST} values can be asked")
        return ",".join(_text(field, one) for one in value)
    if isinstance(value, bool) and option is None:
        return str(int(value))
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        number = str(value) if isinstance(value, int) or value % 1 else f"{value:.0f}"
        return number + (UNITS.get(option.read, "") if option else "")
    if not isinstance(value, str):
        raise InputError(f"{field} cannot be {describe(value)}")
    if len(value) > LONGEST_TEXT:
        raise InputError(f"{field}: has {len(value):,} characters; at most {LONGEST_TEXT:,} can be")
    return value


def plan_words(record: Mapping[str, Any]) -> str:
    """A plan that an answer holds, or fields by name, as the words of a plan."""
    from plan3d.simulator.plan.plan import is_record, plan_of_record

    if is_record(record):
        return str(plan_of_record(record))
    named = {name: value for name, value in record.items() if name != "micro_batches"}
    return " ".join(f"{name}={_text(name, value)}" for name, value in named.items()) or "tp=1"


def _check_names(given: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """InputError where a name of a model, machine or stack would be read as that of a file."""
    named = [(field, str(given[field])) for field in NAMES if field in given]
    for field, values in _varied(given):
        named += [(field, value) for value in values if field in NAMES]
    for field, name in named:
        check_name(name, field)
        if field == "model" and (name in files or is_preset(name) or is_hub_id(name)):
            continue
        if is_path(name) or name in files or name.endswith((".json", ".csv")):
            raise InputError(f"{field} {name[:60]!r}: {NO_FILE}")


def _varied(given: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """The fields of `over` with their values."""
    texts = [str(text).partition("=") for text in _listed(given.get("over", ()))]
    names = [name.strip().replace("-", "_") for name, _, _ in texts]
    values = [doublings(text, "over") for _, _, text in texts]
    return list(zip(names, values, strict=True))


def _script_arguments(arguments: object, verb: str) -> list[str]:
    """The arguments of a script, after --."""
    if arguments is None:
        return []
    if verb not in ("explain", "import") or not isinstance(arguments, list):
        raise InputError("arguments must be a list of texts, beside a launch_file that is a script")
    return ["--", *(_text("arguments", one) for one in _listed(arguments))]
