"""What one H200 took (hardware_profiles/measurements/h200-one-gpu.csv) and what is predicted of it.

The shipped profile was not fitted to these rows; bars are what was found, with a little room.
"""

from __future__ import annotations

from importlib.resources import files

import pytest

from plan3d.simulator.calibration.fit.comparison import compare
from plan3d.simulator.calibration.fit.fit import fit
from plan3d.simulator.calibration.readers.measurements import Measurements, read_csv

FILE = "h200-one-gpu.csv"


@pytest.fixture(scope="module")
def table() -> Measurements:
    path = files("plan3d.hardware_profiles").joinpath("measurements", FILE)
    return read_csv(path, path.read_text("utf-8"))  # type: ignore[arg-type]


def test_the_shipped_profile_predicts_what_it_has_not_seen(table):
    found = {one.subject.name: one.in_sample.median for one in compare(table, "h200-sxm")}
    assert found["training steps, torch"] < 0.03
    assert found["peak of allocated memory, torch"] < 0.003
    assert found["peak of reserved memory, torch"] < 0.03
    assert found["whole layers, megatron-core"] < 0.05
    # A profile without fp8 kernels of its own is compared by those of 16 bits.
    assert found["GEMM fp8"] == pytest.approx(0.178, abs=0.01)
    # The bare loop has no loader and no log, of which the stack's step has 55 ms.
    assert found["training steps, torchtitan"] < 0.20


def test_a_fit_serves_held_out_shapes(table):
    found = {one.subject.name: one for one in fit(table, "h200-sxm", stack="torch").fits}
    bars = {"GEMM bf16": 0.03, "GEMM fp8": 0.03, "attention": 0.06, "wgrad GEMMs": 0.045}
    bars |= {"optimizer": 0.035, "cross-entropy": 0.02, "host link": 0.015}
    for name, bar in bars.items():
        assert found[name].held_out.median < bar, name
    sustained = found["GEMMs in a long loop"].constants["sustained"].value
    assert sustained == pytest.approx(0.985, abs=0.01)
