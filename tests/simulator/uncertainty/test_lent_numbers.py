"""Machines that have the numbers of another: how wide their intervals are, and what they hold."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.profile_file import profile_names, read_profile
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.constants import CONSTANTS, lent_spreads
from plan3d.simulator.uncertainty.forecast import step_interval
from plan3d.simulator.uncertainty.learned import (
    FITTED_STACKS,
    shipped_prior,
    widened_for_machine,
)
from plan3d.simulator.workload.model import Model

SIX = """
base = "{base}"
[accelerator]
memory = {{ value = {memory}, unit = "B", source = "s", kind = "datasheet" }}
memory_bandwidth = {{ value = {hbm}, unit = "B/s", source = "s", kind = "datasheet" }}
[accelerator.peak]
bf16 = {{ value = {peak}, unit = "FLOP/s", source = "s", kind = "datasheet" }}
[node]
gpus = {{ value = {node:.0f}, unit = "GPUs", source = "s", kind = "datasheet" }}
[links.fast]
bandwidth = {{ value = {link}, unit = "B/s", source = "s", kind = "datasheet" }}
[links.network]
bandwidth = {{ value = {network}, unit = "B/s", source = "s", kind = "datasheet" }}
[sources]
s = "the datasheet"
"""
QUESTIONS = (
    ("llama-3.1-8b", 8, 8192, 64, "zero=3 recompute=full"),
    ("llama-3.1-8b", 64, 8192, 512, "tp=2 micro_batch=2 zero=1"),
    ("llama-3.1-70b", 64, 8192, 512, "tp=8 pp=4 virtual_stages=2 recompute=full"),
    ("gpt3-175b", 256, 2048, 1536, "tp=8 pp=8 micro_batch=2 recompute=full"),
    ("mixtral-8x7b", 64, 4096, 256, "tp=2 pp=4 ep=8"),
    ("llama-7b", 8, 2048, 32, "tp=8"),
)


def six_numbers(name: str, base: str, folder: Path) -> str:
    """The path of a profile of six numbers of a shipped machine, which stands on another."""
    numbers = read_profile(name).numbers
    text = SIX.format(
        base=base,
        memory=numbers["accelerator.memory"],
        hbm=numbers["accelerator.memory_bandwidth"],
        peak=numbers["accelerator.peak.bf16"],
        node=numbers["node.gpus"],
        link=numbers["links.fast.bandwidth"],
        network=numbers["links.network.bandwidth"],
    )
    if "links.fast.switch_all_reduce.bandwidth" not in numbers:
        text = 'without = ["links.fast.switch_all_reduce"]' + text
    path = folder / f"{name}.toml"
    path.write_text(text)
    return str(path)


def asked(machine: str, question: tuple[str, int, int, int, str]) -> tuple[float, float, float]:
    """The step, and its 80 % interval."""
    model, gpus, sequence, batch, plan = question
    cluster = Cluster.profile(machine, gpus=gpus)
    task = Task(Model.preset(model), cluster, sequence=sequence, global_batch=batch)
    costs = evaluate(task, Plan.parse(plan))
    (low,), (high,) = step_interval(costs, level=0.95)
    return costs.step_seconds, low, high


@pytest.mark.parametrize("name", ["a100-80gb-sxm", "h200-sxm", "b200"])
def test_six_numbers_hold_the_steps_of_a_machine_that_is_known(name: str, tmp_path: Path) -> None:
    mine = six_numbers(name, "h100-sxm", tmp_path)
    for question in QUESTIONS:
        known, known_low, known_high = asked(name, question)
        _, low, high = asked(mine, question)
        assert low < known < high, question
        # Wider than where the numbers are known, and still an answer.
        assert high / low < 1.8 * known_high / known_low


def test_spreads_are_those_of_two_measured_machines() -> None:
    """Root mean square of log ratios; bandwidths as shares of their link, which is not PCIe."""
    profiles = [read_profile(name) for name in profile_names()]
    for constant in CONSTANTS.values():
        key = constant.profile_key
        if not key:
            assert constant.lent_spread == 0
            continue
        shares = [
            profile.numbers[key] / profile.numbers.get("links.fast.bandwidth", 1.0)
            if key.endswith("bandwidth")
            else profile.numbers[key]
            for profile in profiles
            if profile.provenance[key].measured
            and not (key.startswith("links.") and "PCIe" in profile.texts["links.fast.name"])
        ]
        # One part in two memories is one measurement.
        distinct = sorted(set(shares))
        squares = [np.log(a / b) ** 2 for a, b in permutations(distinct, 2)]
        assert np.sqrt(np.mean(squares)) == pytest.approx(constant.lent_spread, abs=0.006), key


def test_what_a_machine_has_of_its_own_is_not_widened(tmp_path: Path) -> None:
    names = tuple(CONSTANTS)
    assert not any(lent_spreads(Cluster.profile("h800-sxm", gpus=8), names))
    path = Path(six_numbers("a100-80gb-sxm", "h100-sxm", tmp_path))
    lent = dict(zip(names, lent_spreads(Cluster.profile(path, gpus=8), names), strict=True))
    assert {name for name, spread in lent.items() if spread} == {
        *("gemm", "attention", "fast_bandwidth", "fast_latency"),
    }
    own = '[kernels.gemm.16bit]\nefficiency = { value = 0.8, unit = "1", source = "s", '
    path.write_text(path.read_text().replace("[sources]", own + "measured = true }\n[sources]"))
    again = dict(zip(names, lent_spreads(Cluster.profile(path, gpus=8), names), strict=True))
    assert again == lent | {"gemm": 0.0}


def test_constants_of_a_lent_machine_add_the_spreads_of_machines(tmp_path: Path) -> None:
    """In squares, and to those that the machine has of another alone."""
    path = Path(six_numbers("a100-80gb-sxm", "h100-sxm", tmp_path))
    for cluster in (Cluster.profile(path, gpus=8), Cluster.profile("h800-sxm", gpus=8)):
        prior = shipped_prior(FITTED_STACKS)
        lent = np.array(lent_spreads(cluster, prior.names))
        wider = widened_for_machine(prior, cluster).covariance - prior.covariance
        assert np.diag(wider) == pytest.approx(lent * lent)
        assert wider - np.diag(np.diag(wider)) == pytest.approx(0 * wider)
