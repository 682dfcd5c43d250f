"""Requests as the words of the command that asks the same, and what is refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan3d.cli.options.table import OPTIONS
from plan3d.simulator.base.errors import InputError
from plan3d.web.openapi import EXAMPLES, document
from plan3d.web.questions import ENDPOINTS, NO_FILE, aliases, fields, question
from plan3d.web.settings import Settings

MOST = 4096
SIZED = {"model": "llama-7b", "cluster": "h100-sxm", "gpus": 64}
FEW = {"model": "llama-7b"}
LAUNCH = {"launch_file": {"name": "run.sh", "text": "torchrun"}, "cluster": "h100-sxm"}
RECORD = {
    **{"tp": 2, "pp": 4, "dp": 8, "cp": 1, "ep": 1, "virtual_stages": 1, "micro_batch": 1},
    **{"micro_batches": 8, "schedule": "1f1b", "zero": 1, "sequence_parallel": True},
    **{"recompute": "full", "overlap_tp": False},
}


def words(name: str, **body: Any) -> list[str]:
    return list(question(name, body, MOST).words)


@pytest.mark.parametrize(
    ("name", "body", "expected"),
    [
        ("search", SIZED, "search llama-7b h100-sxm 64"),
        ("search", {**SIZED, "batch": 512}, "search llama-7b h100-sxm 64 --global-batch 512"),
        ("search", {**SIZED, "fix": {"tp": 8}}, "search llama-7b h100-sxm 64 --fix tp=8"),
        (
            "search",
            {**SIZED, "choose": {"tp": [1, 2], "zero": "1,3"}},
            "search llama-7b h100-sxm 64 --choose tp=1,2 --choose zero=1,3",
        ),
        ("search", {**FEW, "pareto": True, "all_plans": False}, "search llama-7b --pareto"),
        (
            "search",
            {**FEW, "what_if": {"memory": 6.5e10, "inter_node_bandwidth": 25e9}},
            "search llama-7b --memory 65000000000B --inter-node-bandwidth 25000000000B/s",
        ),
        ("search", {**FEW, "network_latency": 5e-6}, "search llama-7b --network-latency 5e-06s"),
        ("search", {**FEW, "offload_optimizer": True}, "search llama-7b --offload-optimizer 100"),
        ("search", {"cluster": "h100-sxm"}, "search --cluster h100-sxm"),
        ("search", {**SIZED, "sequence": None}, "search llama-7b h100-sxm 64"),
        ("estimate", {**SIZED, "plan": {"tp": 2}}, "estimate llama-7b h100-sxm 64 --plan tp=2"),
        ("explain", {**SIZED, "plan": "-x=1"}, "explain llama-7b h100-sxm 64 --plan=-x=1"),
        ("memory", {**SIZED, "plan": "tp=2"}, "explain llama-7b h100-sxm 64 --plan tp=2 --memory"),
        ("explain", LAUNCH, "explain run.sh h100-sxm"),
        ("import", LAUNCH, "import run.sh --cluster h100-sxm"),
        ("search", LAUNCH, "search run.sh h100-sxm"),
        ("explain", {**LAUNCH, "arguments": ["7B", 2]}, "explain run.sh h100-sxm -- 7B 2"),
        ("sweep", {**FEW, "over": ["gpus=8..64"]}, "sweep llama-7b --over gpus=8..64"),
        (
            "export",
            {"plan": "tp=2", "model": "llama-7b", "framework": "megatron"},
            "export tp=2 --model llama-7b --to megatron",
        ),
    ],
)  # fmt: skip
def test_a_request_is_the_command_that_asks_the_same(
    name: str, body: dict[str, Any], expected: str
) -> None:
    assert words(name, **body) == expected.split()


def test_a_plan_of_an_answer_is_asked_in_words() -> None:
    asked = words("estimate", **SIZED, plan=RECORD)
    assert asked[-1] == "tp=2 pp=4 dp=8 recompute=full"


def test_a_config_is_a_file_of_the_request() -> None:
    config = {"model_type": "llama", "hidden_size": 64}
    asked = question("search", {"model": config, "cluster": "h100-sxm"}, MOST)
    assert asked.words[1] == "llama.json"
    assert json.loads(asked.files["llama.json"]) == config
    hostile = {"_name_or_path": "../../../etc/--csv", "model_type": "x"}
    assert question("search", {"model": hostile}, MOST).words[1] == "csv.json"
    named = question("search", {"model": {"name": "config", "layers": []}}, MOST)
    assert list(named.files) == ["model.json"]


@pytest.mark.parametrize(
    ("name", "body", "line"),
    [
        ("search", [], "the request must be a JSON object, not []"),
        ("search", {"modle": "x"}, "modle: unknown field of search; did you mean"),
        ("search", {**SIZED, "csv": "x"}, "csv: unknown field of search"),
        ("search", {**SIZED, "report": "x"}, "report: unknown field of search"),
        ("search", {**SIZED, "calibration": "x"}, "calibration: unknown field of search"),
        ("sweep", {**SIZED, "scheduler": "tcp://x"}, "scheduler: unknown field of sweep"),
        ("explain", {**SIZED, "trace": "x"}, "trace: unknown field of explain"),
        ("export", {"plan": "tp=1", "output": "x"}, "output: unknown field of export"),
        ("search", {**SIZED, "pareto": 1}, "pareto must be true or false, not 1"),
        ("search", {**SIZED, "top": {}}, "top cannot be {}"),
        ("search", {**SIZED, "top": True}, "top cannot be True"),
        ("search", {**SIZED, "gpus": float("inf")}, "gpus cannot be inf"),
        ("search", {**SIZED, "gpus": 4097}, "gpus 4097: at most 4,096 can be asked of a server"),
        ("sweep", {"over": "gpus=1..8192"}, "gpus 8192: at most 4,096 can be asked of a server"),
        ("search", {**SIZED, "batch": 1, "global_batch": 1}, "batch and global_batch say the same"),
        ("search", {**SIZED, "fix": ["tp=1"] * 257}, "a list has 257 values; at most 256"),
        ("search", {**SIZED, "plan": "x"}, "plan: unknown field of search"),
        ("estimate", {**SIZED, "plan": "x" * 20_001}, "plan: has 20,001 characters"),
        ("search", {**SIZED, "what_if": {"gpus": 1}}, "what_if must be an object of"),
        ("search", {"model": "--csv=x"}, "model '--csv=x' must not be empty or begin with '-'"),
        ("search", {"model": "/etc/passwd"}, f"model '/etc/passwd': {NO_FILE}"),
        ("search", {"model": "config.json"}, f"model 'config.json': {NO_FILE}"),
        ("search", {"model": "a/../b"}, f"model 'a/../b': {NO_FILE}"),
        ("search", {"cluster": "./h.toml"}, f"cluster './h.toml': {NO_FILE}"),
        ("search", {"software": "s.toml"}, f"software 's.toml': {NO_FILE}"),
        ("sweep", {"over": "cluster=h100-sxm,/x"}, f"cluster '/x': {NO_FILE}"),
        ("search", {**LAUNCH, "cluster": "run.sh"}, f"cluster 'run.sh': {NO_FILE}"),
        ("search", {**LAUNCH, "model": "llama-7b"}, "model and launch_file both say the model"),
        ("search", {"launch_file": "run.sh"}, "launch_file must be an object"),
        ("search", {"launch_file": {"name": "../x", "text": ""}}, "'../x' must be the plain name"),
        ("search", {"launch_file": {"name": "-x", "text": ""}}, "'-x' must be the plain name"),
        ("search", {"launch_file": {"name": "x", "text": 1}}, "x: its text must be a string"),
        ("search", {"files": {str(n): "" for n in range(9)}}, "files must be an object of at most"),
        ("import", {}, "import needs launch_file"),
        ("search", {**SIZED, "arguments": ["x"]}, "arguments must be a list of texts, beside"),
        ("import", {"file": "run.sh"}, "file: unknown field of import"),
        ("export", {"plan": "tp=1", **LAUNCH}, "launch_file: unknown field of export"),
        ("search", {**SIZED, "memory": 1, "what_if": {"memory": 2}}, "memory stands in what_if"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_request_is_one_line(name: str, body: Any, line: str) -> None:
    with pytest.raises(InputError) as refused:
        question(name, body, MOST)
    assert str(refused.value).startswith(line)


def test_no_field_names_a_file() -> None:
    named = {option.name for option in OPTIONS if option.metavar in ("FILE", "DIR")}
    asked = {field for name in ENDPOINTS for field in fields(name)}
    assert {"csv", "plot", "report", "trace", "calibration", "output", "graph", "runs"} <= named
    assert not asked & named
    assert {"model", "cluster", "plan", "fix", "to", "over"} <= asked


def test_the_description_has_every_field() -> None:
    described = document(Settings())
    for name in ENDPOINTS:
        operation = described["paths"][f"/api/{name}"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert {*fields(name), *aliases(name)} <= set(schema["properties"])
        assert schema["additionalProperties"] is False
        assert question(name, EXAMPLES[name], MOST).words[0] == ENDPOINTS[name].verb
        assert set(EXAMPLES[name]) <= set(schema["properties"])
        for field in schema["properties"]:  # each is one that a request may have
            if field not in ("launch_file", "files", "arguments", "what_if", "batch", "framework"):
                assert field in fields(name)
    assert json.dumps(described)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
HOSTILE = ["--json", "-o", "@/etc/passwd", "/etc/passwd", "last#1", "x.toml", "a=b"]
VALUES = st.recursive(
    SCALARS | st.sampled_from(HOSTILE),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(max_size=5), inside),
    max_leaves=5,
)
FIELDS = sorted({field for name in ENDPOINTS for field in fields(name)} | {"files", "what_if"})
REQUESTS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4)


@settings(max_examples=15, deadline=None, database=None)
@given(st.sampled_from(list(ENDPOINTS)), REQUESTS)
def test_no_value_of_a_request_becomes_an_option(name: str, body: dict[str, Any]) -> None:
    with contextlib.suppress(InputError):
        asked = question(name, body, MOST).words
        flags = {option.flag for option in fields(name).values()} | {"--memory", "--verbose"}
        before = asked[: asked.index("--")] if "--" in asked else asked
        assert {word.partition("=")[0] for word in before if word.startswith("-")} <= flags
        assert asked[0] == ENDPOINTS[name].verb
