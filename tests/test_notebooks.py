"""The notebooks run from a fresh kernel, and are kept short and without outputs."""

from __future__ import annotations

import ast
import inspect
import json
import queue
import time
from pathlib import Path
from typing import Any

import pytest
from not_empty import not_empty

import plan3d

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
QUICK = ("textbook",)
"""Notebooks that run with the other tests; of all, what cells call is there and takes what they
give. All run with -m slow."""
MOST_CELLS = 14
SMALLER = {
    "budget=200, seeds=2": "budget=60, seeds=1",
    "for a in range(13)": "for a in range(4, 5)",
    "range(1, 6)": "range(1, 4)",
}
"""What cells ask for, and what they are asked for here."""
SECONDS = 120
"""Limit of one cell: a whole notebook takes six seconds, half a minute on a busy machine."""
MOVES = ({}, {"inter_node_bandwidth": 3e9}, {"memory": 8 * 2**30}, {"global_batch": 7})
"""Of the sliders of what_if.ipynb: none, slower, too small, and a batch that few plans divide."""


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Any:
    """The JSON of one notebook."""
    return json.loads(request.param.read_text(encoding="utf-8"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a notebook's JSON in a folder of its own; the executed notebook."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))

    def execute(content: Any) -> Any:
        opened = nbformat.reads(json.dumps(content), as_version=4)
        nbformat.validate(opened)
        where = {"metadata": {"path": str(tmp_path)}}
        client = nbclient.NotebookClient(opened, timeout=SECONDS, resources=where)
        client.on_notebook_start = lambda notebook: _ask_often(client.kc.shell_channel)
        return client.execute()

    return execute


def _ask_often(channel: Any) -> None:
    """Makes a client look every second whether a reply is there: one that arrives beside messages
    of widgets does not always wake it."""
    waits = channel.get_msg

    async def get_msg(timeout: float) -> Any:
        end = time.monotonic() + timeout
        while True:
            try:
                return await waits(timeout=1)
            except queue.Empty:
                if time.monotonic() >= end:
                    raise

    channel.get_msg = get_msg


def test_there_are_six() -> None:
    names = ["calibration", "search_backends", "systems", "textbook", "tune", "what_if"]
    assert [path.stem for path in NOTEBOOKS] == names


def test_what_is_asked_for_in_smaller_is_there() -> None:
    every = "".join(path.read_text(encoding="utf-8") for path in NOTEBOOKS)
    assert all(every.count(json.dumps(asked)[1:-1]) == 1 for asked in SMALLER)


def test_short_and_stripped(notebook: Any) -> None:
    assert len(notebook["cells"]) <= MOST_CELLS
    assert all(
        cell["outputs"] == [] and cell["execution_count"] is None
        for cell in not_empty(code_of(notebook))
    )
    assert all(cell["metadata"] == {} for cell in not_empty(notebook["cells"]))
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert notebook["metadata"]["language_info"] == {"name": "python"}


def test_cells_call_what_is_there(notebook: Any) -> None:
    sources = ("".join(cell["source"]) for cell in code_of(notebook))
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    names = {
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "plan3d"
        for alias in node.names
    }
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[0] in names
        and not any(isinstance(one, ast.Starred) for one in node.args)
        and all(keyword.arg for keyword in node.keywords)
    ]
    for node in not_empty(calls):
        called: Any = plan3d
        for name in ast.unparse(node.func).split("."):
            called = getattr(called, name)
        given = {str(keyword.arg): keyword.value for keyword in node.keywords}
        inspect.signature(called).bind(*node.args, **given)


def code_of(notebook: Any) -> list[Any]:
    """The cells that hold code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow)
        for path in NOTEBOOKS
    ],
    indirect=True,
)
def test_runs_without_a_warning(notebook: Any, run: Any) -> None:
    explores = any("explore(task)" in "".join(cell["source"]) for cell in notebook["cells"])
    moved = [_code(place) for place in range(len(MOVES))] if explores else []
    if explores:
        pytest.importorskip("anywidget")
    done = run({**notebook, "cells": [*map(_smaller, notebook["cells"]), *moved]})
    outputs = [out for cell in done["cells"] for out in cell.get("outputs", ())]
    assert not [out["text"] for out in outputs if out.get("name") == "stderr"]
    assert any("image/png" in out.get("data", {}) for out in outputs)
    if explores:
        explorer_answers(done)


def _smaller(cell: dict[str, Any]) -> dict[str, Any]:
    source = "".join(cell["source"])
    for asked, less in SMALLER.items():
        source = source.replace(asked, less)
    return {**cell, "source": source}


def explorer_answers(done: Any) -> None:
    """The last cells of what_if.ipynb moved its sliders."""
    told = [json.loads(cell["outputs"][0]["text"]) for cell in done["cells"][-len(MOVES) :]]
    asked, slower, small, odd = told
    assert asked[0] < slower[0]
    assert asked[1] < asked[0] < asked[2]
    assert small == []
    assert odd[3] == 7
    state = done["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    (shown,) = [one["state"] for one in state.values() if one["model_name"] == "AnyModel"]
    assert "function explorer(" in shown["_esm"]


def _code(place: int) -> dict[str, Any]:
    """A cell that asks at the position of a move; its step, interval and batch, if one fits."""
    source = f"""
import json
plans = view.answer("search", {MOVES[place]})["plans"][:1]
print(json.dumps([n for one in plans for n in (one["step_seconds"], *one["step_seconds_interval"],
    one["plan"]["dp"] * one["plan"]["micro_batch"] * one["plan"]["micro_batches"])]))"""
    return {
        "cell_type": "code",
        "id": f"move-{place}",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": source,
    }
