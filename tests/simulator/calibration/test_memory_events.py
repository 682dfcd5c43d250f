"""The profiler's memory timeline of a rank: its peak, by what a prediction calls its tenants."""

import json

import pytest

from plan3d.cli.main import main
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.traces.memory_events import read_memory_timeline

SECOND = 10**9
RAW = [
    *([-1, 1, 400, 0], [7 * SECOND, 2, 1, 4], [9 * SECOND, 2, 599, 4], [10 * SECOND, 3, -600, 4]),
    *([10 * SECOND, 3, 600, 5], [11 * SECOND, 4, -100, 0], [12 * SECOND, 2, 50, 7]),
]
SUMS = [[1_000_000, 3_000_000], [[0, 9, 1, 2, 3, 4, 5, 6, 7], [0, 9, 1, 2, 3, 90, 5, 6, 7]]]


@pytest.mark.parametrize(
    ("document", "seconds", "wanted"),
    [
        (RAW, 2, {"weights": 400, "activations": 600}),
        (SUMS, 2, {"weights": 9, "optimizer": 1, "activations": 2 + 90 + 6, "buffers": 3,
                   "gradients": 5, "other": 7}),
    ],
)  # fmt: skip
def test_peaks_by_category(tmp_path, document, seconds, wanted):
    path = tmp_path / "m.json"
    path.write_text(json.dumps(document))
    found = read_memory_timeline(str(path))
    assert {name: size for name, size in found.memory.items() if size} == wanted
    assert (found.total, found.seconds) == (sum(wanted.values()), seconds)


@pytest.mark.parametrize(
    ("name", "document", "message"),
    [
        ("m.pickle", RAW, "is a pickle, which is not read"),
        ("m.json", [], "no moment is in it"),
        ("m.json", {"traceEvents": []}, "no moment is in it"),
        ("m.json", [[1, 2, 3]], "is no memory timeline"),
        ("m.json", [[0, 2, 5, 9], [0, 2, 5, 9]], "is no memory timeline"),
        ("m.json", [[0, 2, "x", 1]], "is no memory timeline"),
        ("m.json", [[0, 2, -1e18, 1]], "is no memory timeline"),
        ("m.json", [[1], [[0, 9]]], "is no memory timeline"),
    ],
)
def test_other_files_are_refused(tmp_path, name, document, message):
    path = tmp_path / name
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message):
        read_memory_timeline(str(path))


def test_explain_sets_it_beside_the_prediction(tmp_path, capsys):
    path = tmp_path / "m.json"
    path.write_text(json.dumps(RAW))
    words = ["explain", "gpt3-1.3b", "h100-sxm", "8", "--plan", "tp=2", "--memory", "--trace"]
    assert main([*words, str(path)]) == 0
    assert "Tensors at the peak of m.json" in capsys.readouterr().out
    assert main([*words, str(path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["measured"]
    assert record["memory_bytes"]["total"] == 1000
    assert record["predicted_bytes"]["weights"] > 1e9
    assert main([*words, str(path), str(path)]) == 2
    assert "of one rank" in capsys.readouterr().err
