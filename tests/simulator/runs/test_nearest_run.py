"""The measured run nearest to a question, and the file of measured runs."""

from __future__ import annotations

import importlib.util
from dataclasses import astuple, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.runs.nearest_run import (
    LONGEST,
    MAX_DISTANCE,
    MeasuredRun,
    Nearest,
    distances,
    feature_columns,
    features,
    measured_runs,
    nearest_run,
)
from plan3d.simulator.runs.published_runs import read_runs
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

ROOT = Path(__file__).parents[3]
GPT = Model.preset("gpt3-175b")


def task(model: Model = GPT, cluster: str = "a100-80gb-sxm", gpus: int = 1024, **more: int) -> Task:
    sizes = {"sequence": 2048, "global_batch": 768} | more
    return Task(model, Cluster.profile(cluster, gpus=gpus), **sizes)


def distance(run: MeasuredRun, question: dict[str, Any]) -> float:
    """That of one run."""
    (out,) = distances(feature_columns((run,)), question)
    return float(out)


def maker() -> ModuleType:
    """The script that writes the file."""
    spec = importlib.util.spec_from_file_location(
        "make_measured_runs", ROOT / "tests/benchmarks/make_measured_runs.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_run_of_the_same_task_is_nearest() -> None:
    """MegaScale, table 2: 175B on 1,024 A100 with a batch of 768, 59.0 % as published, there with
    the FLOPs of its own count."""
    found = nearest_run(task())
    assert found is not None
    assert (found.run.published, found.run.gpus) == ("MegaScale 2024", 1024)
    assert found.run.mfu == pytest.approx(0.590, abs=0.01)
    assert found.differences == {}
    assert found.distance < 0.01
    assert "micro_batch=1" in found.run.assumed
    assert str(found).startswith(
        "closest measured run: GPT 175B on 1,024 A100-80GB-SXM4, "
        "tp=8 pp=8 virtual_stages=6 zero=2 recompute=none: 59.6 %"
    )


def test_a_distance_by_hand() -> None:
    """Another accelerator of the generation 0.5, another stack 1.25, fp8 1; 4 times the GPUs and
    half the sequence 3 x 0.25; another model 0.5, twice the parameters and half the active ones
    2 x 0.5."""
    asked = features(task(), "bf16")
    run = replace(
        measured_runs()[0],
        **{
            **asked,
            "accelerator": "A100-40GB-SXM4",
            "software": "torchtitan",
            "precision": "fp8",
            "gpus": 4096,
            "sequence": 1024,
            "parameters": 2 * GPT.parameters,
            "active_parameters": GPT.parameters // 2,
        },
    )
    assert distance(run, asked) == pytest.approx(0.5 + 1.25 + 1 + 0.5 + 0.25 + 0.5 + 1, rel=1e-6)
    assert distance(replace(run, **asked), asked) == 0
    far = replace(run, **{**asked, "generation": "Hopper", "kind": "moe"})
    assert distance(far, asked) == 3 + 2 > MAX_DISTANCE


def test_the_same_model_is_nearer_than_one_of_its_size() -> None:
    """Mixtral was timed on a quarter of these GPUs, a part of Grok at twice the length."""
    mixtral = Model.preset("mixtral-8x7b")
    found = nearest_run(task(mixtral, "h100-sxm", 256, sequence=4096, global_batch=1024))
    assert found is not None
    assert found.run.model == "mixtral 8x7b"


def test_nothing_is_said_where_nothing_is_near() -> None:
    """The largest measured model has a tenth of these parameters."""
    huge = replace(GPT, order=GPT.order * 60)
    assert nearest_run(task(huge)) is None
    assert nearest_run(task(Model.preset("resnet-50"), sequence=1)) is None


def test_a_generation_weighs_more_than_the_number_of_gpus() -> None:
    found = nearest_run(task(cluster="h100-sxm", gpus=4096))
    assert found is not None
    assert found.run.generation == "Hopper"


def test_the_short_sentence_says_what_makes_its_mfu_anothers() -> None:
    """In another format, or at another length."""
    same, fp8 = nearest_run(task()), nearest_run(task(), "fp8")
    long = nearest_run(replace(task(), sequence=1024))
    assert same is not None
    assert fp8 is not None
    assert long is not None
    assert same.brief.startswith("GPT 175B on 1,024 A100-80GB-SXM4: 59.6 % MFU")
    assert ", 16-bit: " in fp8.brief
    assert f", {long.run.sequence:,} tokens: " in long.brief


def test_the_sentence_is_one_bounded_line() -> None:
    asked = task(Model.preset("mixtral-8x7b"), "h100-sxm", 8, global_batch=100)
    found = nearest_run(asked, "fp8")
    assert found is not None
    assert "; there / here: " in str(found)
    long = Nearest(replace(found.run, model="x\n" * 400), found.distance, found.differences)
    assert len(str(long)) <= LONGEST
    assert str(long).isprintable()


def test_the_file_is_made_of_the_runs_that_are_shipped() -> None:
    """Written again by python tests/benchmarks/make_measured_runs.py."""
    make = maker()
    text = (ROOT / "simulator/runs/measured_runs.csv").read_text(encoding="utf-8")
    assert text.splitlines()[0].endswith(f"is {make.digest()}")
    some = [run for run in read_runs() if run.source == "megascale24"]
    assert make.measured(some) == [
        run for run in measured_runs() if run.run.startswith("megascale24-")
    ]
    # Its cells stand on screens as they are.
    assert [line for line in text.splitlines() if not line.isprintable()] == []
    texts = [cell for run in measured_runs() for cell in astuple(run) if isinstance(cell, str)]
    assert 0 < max(map(len, texts)) <= 80
