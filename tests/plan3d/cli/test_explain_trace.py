"""`plan3d explain --trace`: predicted beside measured, what explains the difference, and edits."""

import json
import re

import pytest

from plan3d.cli.main import main

TASK = ["gpt3-6.7b", "a100-80gb-sxm", "32", "--global-batch", "64"]
PLAN = ["--plan", "pp=4 tp=2"]


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """The trace of a step that plan3d simulates."""
    path = tmp_path_factory.mktemp("traced") / "step.json"
    assert main(["timeline", *TASK, *PLAN, "--trace", str(path)]) == 0
    return path.read_text()


@pytest.fixture
def traced(step, tmp_path):
    """A function that writes the trace with its kernels changed."""
    path = tmp_path / "step.json"

    def changed(change):
        document = json.loads(step)
        document["traceEvents"] = [change(e) for e in document["traceEvents"]]
        path.write_text(json.dumps(document))
        return str(path)

    return changed


def explained(capsys, *words):
    code = main(["explain", *TASK, *PLAN, *words])
    return code, *capsys.readouterr()


def test_a_simulated_step_is_as_predicted(traced, capsys):
    code, out, err = explained(capsys, "--trace", traced(dict))
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 24
    assert "(1 step, 4 of 32 ranks)" in out
    (row,) = [line for line in out.splitlines() if "matrix products" in line]
    assert row.split()[-1] == "1.00"


def test_a_trace_of_less_work_than_is_asked_about_is_refused(traced, capsys):
    path = traced(lambda event: {k: v / 8 if k in ("ts", "dur") else v for k, v in event.items()})
    code, out, err = explained(capsys, "--trace", path)
    assert (code, out) == (2, "")
    assert "% of the peak of its GPUs: the trace is of another model, batch, sequence or" in err


def slower(event):
    """The same event, were the optimizer at two thirds of its rate."""
    return {**event, "dur": 1.5 * event["dur"]} if "multi" in event["name"] else event


def test_the_slow_part_is_named_with_what_would_help(traced, capsys):
    path = traced(slower)
    code, out, _ = explained(capsys, "--trace", path, "--json")
    assert code == 0
    record = json.loads(out)["trace"]
    parts = {one["part"]: one for one in record["parts"]}
    assert parts["optimizer"]["ratio"] == pytest.approx(1.5, rel=0.02)
    assert record["most"][0].startswith("optimizer and host, once a step: ")
    assert "at 67 % of the rate" in record["most"][1]
    measured = sum(one["measured_seconds"] for one in record["parts"])
    assert measured == pytest.approx(record["step_seconds"], rel=0.01)
    assert record["edits"] == sorted(record["edits"], key=lambda one: one["step_seconds"])
    assert record["edits"][0]["step_seconds"] < record["step_seconds"]


def test_parts_are_drawn(traced, capsys, tmp_path):
    picture = tmp_path / "parts.svg"
    code, *_ = explained(capsys, "--trace", traced(dict), "--plot", str(picture))
    assert code == 0
    assert "matrix products (1.00)" in picture.read_text()
    assert "slowest layer: from an attention to the next" in picture.read_text()


def test_predicted_and_measured_tracks_are_in_one_file(traced, capsys, tmp_path):
    tracks = tmp_path / "tracks.json"
    path = traced(slower)
    code, *_ = explained(capsys, "--trace", path, "--tracks", str(tracks))
    assert code == 0
    events = json.loads(tracks.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    shown = [names[pid] for pid in sorted(order, key=order.get)]
    assert shown[:3] == ["predicted, stage 0", "measured, rank 0 (stage 0)", "predicted, stage 1"]
    first = next(pid for pid, name in names.items() if name.startswith("measured"))
    parts = [e for e in events if e["pid"] == first and e.get("cat") == "measured part"]
    step = max(e["ts"] + e["dur"] for e in parts)
    assert sum(e["dur"] for e in parts) == pytest.approx(step)
    document = json.loads((tmp_path / "step.json").read_text())
    updates = [e["dur"] for e in document["traceEvents"] if not e["pid"] and "multi" in e["name"]]
    updated = [e["dur"] for e in parts if e["name"] == "optimizer"]
    assert sum(updated) == pytest.approx(sum(updates))
    code, _, err = explained(capsys, "--tracks", str(tracks))
    assert (code, "give its --trace" in err) == (2, True)


def partial_overlaps(events):
    """Slices that Perfetto drops: they begin inside one of their thread and end after it, in whole
    nanoseconds as its reader truncates them (json_utils.cc, slice_tracker.cc)."""
    rows = [
        (e["pid"], e["tid"], int(1000.0 * e["ts"]), -int(1000.0 * e["dur"]), e["name"])
        for e in events
        if e["ph"] == "X"
    ]
    out, last, open_ends = [], None, []
    for *thread, start, length, name in sorted(rows):
        if thread != last:
            last, open_ends = thread, []
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and start - length > open_ends[-1]:
            out.append(name)
        else:
            open_ends.append(start - length)
    return out


def longer(event):
    """The same event, were kernels of matrix products a tenth longer and nothing else later."""
    return {**event, "dur": 1.1 * event["dur"]} if "nvjet" in str(event["name"]) else event


def test_no_slice_of_a_track_overlaps_another_in_part(traced, capsys, tmp_path):
    tracks, path = tmp_path / "tracks.json", traced(longer)
    assert len(partial_overlaps(json.loads((tmp_path / "step.json").read_text())["traceEvents"]))
    assert explained(capsys, "--trace", path, "--tracks", str(tracks))[0] == 0
    events = json.loads(tracks.read_text())["traceEvents"]
    assert partial_overlaps(events) == []
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named
    streams = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert "stream 0, beside" in streams


def test_one_rank_teaches_nothing_of_collectives(traced, capsys):
    def of_first(event):
        return event if event["pid"] == 0 else {**event, "ph": "i", "pid": 0}

    code, out, _ = explained(capsys, "--trace", traced(of_first))
    assert code == 0
    assert "<= " in out
    assert "one rank: communication is an upper bound" in out


@pytest.mark.parametrize(
    ("gpu", "cluster", "said"),
    [
        ("NVIDIA H200", "h20", True),
        ("NVIDIA H20", "h20", False),
        ("NVIDIA GeForce RTX 3090", "rtx-4090", True),
        ("NVIDIA GeForce RTX 4090", "rtx-4090", False),
        ("gfx942", "h20", False),
    ],
)
def test_a_trace_of_another_gpu_is_said(traced, capsys, gpu, cluster, said):
    path = traced(lambda event: event)
    with open(path) as file:
        document = json.load(file)
    document["deviceProperties"] = [{"id": 0, "name": gpu}]
    with open(path, "w") as file:
        json.dump(document, file)
    task = [TASK[0], cluster, *TASK[2:]]
    assert main(["explain", *task, *PLAN, "--trace", path]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert (f"the trace is of {gpu}, the prediction of" in words) == said


def test_less_than_a_step_is_said(traced, capsys):
    def without_update(event):
        return {**event, "ph": "i"} if "multi_tensor" in str(event["name"]) else event

    code, out, _ = explained(capsys, "--trace", traced(without_update))
    assert code == 0
    assert "no optimizer runs in the trace" in out
    assert "edits" not in out


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ("", [], "t.json: is empty"),
        ('{"traceEvents": []}', [], "t.json: the trace holds no events"),
        ("{", [], "t.json: breaks off"),
        (None, [], "t.json: cannot be read"),
        ('{"traceEvents": []}', ["--measured-step", "4s"], "--measured-step does not go with"),
    ],
)
def test_mistakes_take_one_line(capsys, tmp_path, content, words, message):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)
    code, out, err = explained(capsys, *words, "--trace", str(path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_what_misses_events_teaches_nothing(traced, capsys):
    """Half of the attention kernels have no length: their part is not the machine's."""
    kernels = iter(range(10**6))

    def cut(event):
        is_cut = "flash" in str(event["name"]) and next(kernels) % 2
        return {**event, "dur": -1.0} if is_cut else event

    words = ("--trace", traced(cut), "--json")
    code, out, _ = explained(capsys, *words)
    record = json.loads(out)["trace"]
    assert (code, record["learned_from"]) == (0, [])
    assert record["notes"][0].endswith("events of negative or endless length")
    assert record["notes"][1] == "parts are what was read, nothing learned"
    assert len({*record["notes"]}) == len(record["notes"])
    code, out, _ = explained(capsys, *words[:2])
    assert len(out.splitlines()) <= 24
    assert "negative or endless" in out


def test_a_trace_that_breaks_off_is_said_so_first(traced, capsys):
    path = traced(dict)
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text[: len(text) * 3 // 4])
    code, out, _ = explained(capsys, "--trace", path)
    assert code == 0
    assert re.search(r"step\.json: (ends early|breaks off); the ", " ".join(out.split()))
    assert "\nlearned" not in out
