"""The description of the interface in OpenAPI 3.1, made from the options of the command line."""

from __future__ import annotations

from typing import Any

from plan3d.simulator.base.documents import SCHEMA
from plan3d.simulator.base.units import parse_count, parse_fraction

from ..cli.options.parser import Option, integer, number, seconds
from .questions import (
    ENDPOINTS,
    LONGEST_LIST,
    LONGEST_TEXT,
    MACHINE,
    TAKES_FILES,
    UNITS,
    aliases,
    fields,
)
from .settings import Settings

NUMBERS = frozenset({integer, number, seconds, parse_count, parse_fraction, *UNITS})
"""Readers that also take numbers."""
Json = dict[str, Any]
TEXT: Json = {"type": "string", "maxLength": LONGEST_TEXT}
TEXTS: Json = {"type": "array", "items": TEXT, "maxItems": LONGEST_LIST}
PLAN: Json = {
    "description": "'tp=8 pp=8 ...', or fields by name, such as `plan` of an answer",
    "anyOf": [TEXT, {"type": "object"}],
}
FILE: Json = {
    "type": "object",
    "description": "in place of a model: a launch file, a configuration or a log",
    "properties": {"name": {"type": "string", "maxLength": 100}, "text": {"type": "string"}},
    "required": ["name", "text"],
    "additionalProperties": False,
}
ANSWER: Json = {
    "type": "object",
    "description": "the record that the command prints with --json (docs/json.md)",
    "properties": {
        "schema": {"const": SCHEMA},
        "plan3d": {"type": "string", "description": "version of the program"},
        "command": {"type": "string", "description": "the command that asks the same"},
        "warnings": {"type": "array", "items": {"type": "string"}},
        "task": {"type": "object"},
        "profile": {"type": "object"},
        "plans": {"type": "array", "items": {"$ref": "#/components/schemas/Plan"}},
    },
    "required": ["schema"],
}
PLAN_RECORD: Json = {
    "type": "object",
    "properties": {
        "rank": {"type": "integer"},
        "plan": {"type": "object", "description": "fields by name"},
        "step_seconds": {"type": "number"},
        "step_seconds_interval": {
            "type": "array",
            "items": {"type": "number"},
            "description": "the ends of the 80 % interval",
        },
        "seconds": {"type": "object", "description": "parts that add up to the step"},
        "memory_bytes": {"type": "object", "description": "parts that add up to the total"},
        "fits": {"type": "boolean"},
        "probability_fits": {"type": ["number", "null"]},
        "tokens_per_second": {"type": "number"},
        "mfu": {"type": "number"},
    },
}
ERROR: Json = {
    "type": "object",
    "properties": {
        "schema": {"const": SCHEMA},
        "error": {"type": "string", "description": "the line that the terminal prints"},
    },
    "required": ["schema", "error"],
}
ASKED: Json = {"model": "llama-3.1-8b", "cluster": "h100-sxm", "gpus": 64}
SCRIPT = "torchrun pretrain_gpt.py --use-checkpoint-args"
EXAMPLES: dict[str, Json] = {
    **dict.fromkeys(("estimate", "explain", "memory", "timeline"), ASKED | {"plan": "tp=2 pp=2"}),
    "search": ASKED | {"fix": {"tp": 2}, "what_if": {"inter_node_bandwidth": "50GB/s"}},
    "fits": {"model": "llama-3.1-8b", "cluster": "rtx-4090"},
    "compare": ASKED | {"systems": "ddp,fsdp"},
    "sweep": {"model": "llama-3.1-8b", "cluster": "h100-sxm", "over": ["gpus=32,64"]},
    "export": ASKED | {"plan": "tp=2 pp=2", "to": "megatron"},
    "import": {"cluster": "h100-sxm", "launch_file": {"name": "run.sh", "text": SCRIPT}},
}
"""A request of every question."""
STATUSES = {
    "400": "the question is wrong",
    "403": "asked by a page of another site",
    "408": "the request did not arrive in time",
    "413": "the request is too long",
    "415": "the request is not application/json",
    "421": "the Host header is not this server's",
    "422": "the question exceeds the time or the memory of the server",
    "500": "internal error, or the process that answered ended",
    "503": "too many questions wait (Retry-After says how long), or the server ends",
}


def document(settings: Settings) -> Json:
    """The whole description."""
    from .. import __version__

    paths: Json = {f"/api/{name}": {"post": _operation(name)} for name in ENDPOINTS}
    paths["/api/presets"] = {
        "get": {
            "operationId": "presets",
            "summary": "names and values that fields can have",
            "responses": {"200": _content("names by field", {"type": "object"})},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "plan3d", "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Answer": ANSWER, "Plan": PLAN_RECORD, "Error": ERROR}},
    }


def _operation(name: str) -> Json:
    endpoint = ENDPOINTS[name]
    schema = {"type": "object", "properties": _properties(name), "additionalProperties": False}
    content = {"application/json": {"schema": schema, "example": EXAMPLES[name]}}
    answer, wrong = ({"$ref": f"#/components/schemas/{one}"} for one in ("Answer", "Error"))
    done = _content("the answer", answer)
    done["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "operationId": name,
        "summary": endpoint.summary,
        "description": f"plan3d {endpoint.verb}",
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": done,
            **{status: _content(why, wrong) for status, why in STATUSES.items()},
        },
    }


def _content(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _properties(name: str) -> Json:
    known = fields(name)
    out = {field: _property(option) for field, option in known.items()}
    if "model" in known:
        config = {"type": "object", "description": "the content of a config.json"}
        out["model"] = {"description": "preset, hub id, or config.json", "anyOf": [TEXT, config]}
        out["files"] = {
            "type": "object",
            "description": "texts of files that the launch file or `model` names",
            "additionalProperties": {"type": "string"},
        }
    for alias, field in aliases(name).items():
        if field in known:
            out[alias] = {**out[field], "description": f"the same as {field}"}
    if set(MACHINE) & set(known):
        numbers = {field: out[field] for field in MACHINE if field in known}
        out["what_if"] = {
            "type": "object",
            "description": "numbers of the machine in place of the profile's",
            "properties": numbers,
            "additionalProperties": False,
        }
    if ENDPOINTS[name].verb in TAKES_FILES:
        out["launch_file"] = FILE
    if ENDPOINTS[name].verb in ("explain", "import"):
        out["arguments"] = TEXTS | {"description": "arguments of the script"}
    return out


def _property(option: Option) -> Json:
    """The schema of a field."""
    said = option.help.replace("%%", "%")
    if not option.metavar:
        return {"type": "boolean", "description": said}
    if option.name in ("plan", "against"):
        return {**PLAN, "description": said}
    if option.repeatable:
        values = {"type": "object", "description": "values by plan field"}
        return {"description": said, "anyOf": [TEXT, TEXTS, values]}
    kinds = ["string", "number"] if option.read in NUMBERS else ["string"]
    if option.read is integer:
        kinds = ["integer", "string"]
    return TEXT | {"type": kinds, "description": said}
