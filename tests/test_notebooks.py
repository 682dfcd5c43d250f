"""The notebooks run from a fresh kernel, and are kept short and without outputs."""

from __future__ import annotations

import json
import queue
import time
from pathlib import Path
from typing import Any

import pytest
from not_empty import not_empty

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_CELLS = 14
SMALLER = {
    "budget=200, seeds=2": "budget=60, seeds=1",
    "for a in range(13)": "for a in range(4, 5)",
    "range(1, 6)": "range(1, 4)",
}
"""What cells ask for, and what they are asked for here."""
SECONDS = 120
"""Limit of one cell: a whole notebook takes six seconds, half a minute on a busy machine."""
MOVES = (
    "sliders['network'].value = 25",
    "sliders['tp'].value = 1; sliders['pp'].value = 1",
    "sliders['micro_batch'].value = 4",
)
"""Of the sliders of what_if.ipynb: slower, too large, and more than the batch has."""


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Any:
    """The JSON of one notebook."""
    return json.loads(request.param.read_text(encoding="utf-8"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a notebook's JSON in a folder of its own; the executed notebook."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    for package in ("ipykernel", "ipywidgets"):
        pytest.importorskip(package)
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
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(
        cell["outputs"] == [] and cell["execution_count"] is None for cell in not_empty(code)
    )
    assert all(cell["metadata"] == {} for cell in not_empty(notebook["cells"]))
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert notebook["metadata"]["language_info"] == {"name": "python"}


def test_runs_without_a_warning(notebook: Any, run: Any) -> None:
    sliders = any("sliders = {" in "".join(cell["source"]) for cell in notebook["cells"])
    moved = [*map(_code, ("", *MOVES))] if sliders else []
    done = run({**notebook, "cells": [*map(_smaller, notebook["cells"]), *moved]})
    outputs = [out for cell in done["cells"] for out in cell.get("outputs", ())]
    assert not [out["text"] for out in outputs if out.get("name") == "stderr"]
    assert any("image/png" in out.get("data", {}) for out in outputs)
    if sliders:
        sliders_answer(done)


def _smaller(cell: dict[str, Any]) -> dict[str, Any]:
    source = "".join(cell["source"])
    for asked, less in SMALLER.items():
        source = source.replace(asked, less)
    return {**cell, "source": source}


def sliders_answer(done: Any) -> None:
    """The last cells of what_if.ipynb moved its sliders."""
    moves = done["cells"][-1 - len(MOVES) :]
    first, slower, large, refused = [cell["outputs"][0]["text"] for cell in moves]
    assert "MFU" in first
    assert _seconds(slower) > 1.02 * _seconds(first)
    assert "does not fit" in large
    assert "global batch" in refused
    assert _drawn_below_the_sliders(done) == refused


def _code(move: str) -> dict[str, Any]:
    """A cell that moves a slider, then asks what all of them say."""
    source = f"{move}\nask(**{{name: one.value for name, one in sliders.items()}})"
    return {
        "cell_type": "code",
        "id": f"move-{MOVES.index(move) if move else 'none'}",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": source,
    }


def _seconds(answer: str) -> float:
    return float(answer.split()[1])


def _drawn_below_the_sliders(done: Any) -> str:
    """The text in the output that belongs to the sliders."""
    state = done["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    (shown,) = [one["state"] for one in state.values() if one["model_name"] == "OutputModel"]
    return "".join(out.get("text", "") for out in shown["outputs"])
