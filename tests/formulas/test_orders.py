"""Orders of passes, written out by hand: what every rank of a tiny pipeline runs, in turn.

F is a forward pass, B a whole backward pass, I an input gradient, W a weight gradient; F2@1 is the
forward pass of micro-batch 2 on stage 1, & joins two passes that run together.
"""

import numpy as np
import pytest

from plan3d.simulator.pipeline.schedule import Sizes
from plan3d.simulator.pipeline.schedules import SCHEDULES, passes_of_chunks, schedule_code

LETTERS = "FBIW"


def written(schedule, p, v, m, *more):
    """Every rank's passes; stages are left out where a rank has a single one."""
    out = []
    for rank in SCHEDULES[schedule].orders(p, v, m, *more):
        stages = {stage for _, stage, _, _ in rank.tolist()}
        text = ""
        for kind, stage, micro, together in rank.tolist():
            where = f"@{stage}" if len(stages) > 1 else ""
            text += f"{LETTERS[kind]}{micro}{where}{'&' if together else ' '}"
        out.append(text.strip())
    return out


def test_1f1b():
    """Narayanan et al. 2021, section 2.2.1: p - r - 1 passes of warm-up, then one forward and one
    backward in turn."""
    assert written("1f1b", 2, 1, 3) == ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]
    assert written("1f1b", 3, 1, 4) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    # No more warm-up than micro-batches.
    assert written("1f1b", 3, 1, 2) == ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]


def test_gpipe():
    """Huang et al. 2019, figure 2c: all forward, then all backward from the last on."""
    assert written("gpipe", 2, 1, 3) == 2 * ["F0 F1 F2 B2 B1 B0"]


def test_naive():
    """Huang et al. 2019, figure 2b: one micro-batch at a time."""
    assert written("naive", 2, 1, 3) == 2 * ["F0 B0 F1 B1 F2 B2"]


def test_interleaved():
    """Narayanan et al. 2021, figure 4: groups of p = 2 run through every chunk; rank 0 runs
    2 (p-1) + (v-1) p + 1 = 5 forward passes before its first backward, rank 1 runs 3."""
    assert written("interleaved", 2, 2, 4) == [
        "F0@0 F1@0 F0@2 F1@2 F2@0 B0@2 F3@0 B1@2 F2@2 B0@0 F3@2 B1@0 B2@2 B3@2 B2@0 B3@0",
        "F0@1 F1@1 F0@3 B0@3 F1@3 B1@3 F2@1 B0@1 F3@1 B1@1 F2@3 B2@3 F3@3 B3@3 B2@1 B3@1",
    ]


def test_interleaved_groups():
    """Groups of three and of the two that are left: rank 0 runs 2 + 3 + 1 = 6 forward passes
    first, rank 1 runs 4."""
    assert written("interleaved", 2, 2, 5, 3) == [
        "F0@0 F1@0 F2@0 F0@2 F1@2 F2@2 B0@2 F3@0 B1@2 F4@0 B2@2 F3@2 B0@0 F4@2 "
        "B1@0 B2@0 B3@2 B4@2 B3@0 B4@0",
        "F0@1 F1@1 F2@1 F0@3 B0@3 F1@3 B1@3 F2@3 B2@3 F3@1 B0@1 F4@1 B1@1 F3@3 "
        "B2@1 F4@3 B3@3 B4@3 B3@1 B4@1",
    ]


def test_breadth_first():
    """Lamy-Poirier 2023, figure 4d: all micro-batches through a chunk, then the next chunk."""
    assert written("breadth-first", 2, 2, 3) == [
        "F0@0 F1@0 F2@0 F0@2 F1@2 F2@2 B0@2 B1@2 B2@2 B0@0 B1@0 B2@0",
        "F0@1 F1@1 F2@1 F0@3 F1@3 F2@3 B0@3 B1@3 B2@3 B0@1 B1@1 B2@1",
    ]


def test_zb_h1():
    """Qi et al. 2024, figure 3, top: 1F1B with rank r's weight gradients r passes late."""
    assert written("zb-h1", 2, 1, 3) == [
        "F0 F1 I0 W0 F2 I1 W1 I2 W2",
        "F0 I0 F1 I1 W0 F2 I2 W1 W2",
    ]
    assert written("zb-h1", 3, 1, 3)[2] == "F0 I0 F1 I1 F2 I2 W0 W1 W2"
    # All of them at the end where there are fewer micro-batches than a rank holds back.
    assert written("zb-h1", 3, 1, 1)[2] == "F0 I0 W0"


@pytest.mark.parametrize("schedule", ["zb-h2", "zb-h2-sync"])
def test_zb_h2(schedule):
    """Qi et al. 2024, figure 3, bottom: 2 (p-r) - 1 forward passes first, weight gradients 2r
    late; more where asked for."""
    assert written(schedule, 2, 1, 4) == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]
    assert written(schedule, 2, 1, 4, 0, 3)[1] == "F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3"


def test_zb_v():
    """Qi et al. 2024 (controllable memory), figure 1: rank 0 has stages 0 and 3, rank 1 has 1
    and 2. Both chunks fill, then each in turn runs forward, input and weight gradient."""
    assert written("zb-v", 2, 2, 4) == [
        "F0@0 F1@0 F2@0 F0@3 I0@3 W0@3 F1@3 I1@3 W1@3 F3@0 I0@0 W0@0 F2@3 I2@3 W2@3 "
        "I1@0 W1@0 F3@3 I3@3 W3@3 I2@0 W2@0 I3@0 W3@0",
        "F0@1 F0@2 F1@1 F1@2 I0@2 W0@2 F2@1 I0@1 W0@1 F2@2 I1@2 W1@2 F3@1 I1@1 W1@1 "
        "F3@2 I2@2 W2@2 I2@1 I3@2 I3@1 W2@1 W3@2 W3@1",
    ]


def test_dualpipe():
    """DeepSeek-AI 2024 (V3), figure 5: micro-batches 0 and 1 enter at rank 0, 2 and 3 at rank 1,
    through a copy of the model in the opposite direction."""
    assert written("dualpipe", 2, 1, 4) == [
        "F0@0 F2@1 F1@0 B2@1 F3@1&B0@0 B3@1 I1@0 W1@0",
        "F2@0 F0@1 F3@0 B0@1 F1@1&B2@0 B1@1 I3@0 W3@0",
    ]
    assert written("dualpipe", 4, 1, 8)[:2] == [
        "F0@0 F1@0 F2@0 F4@3 I4@3 W4@3 F5@3 F3@0&B5@3 F6@3&B0@0 B6@3 F7@3&B1@0 "
        "B7@3 I2@0 W2@0 I3@0 W3@0",
        "F0@1 F4@2 F1@1 F5@2 F2@1 B4@2 F6@2&B0@1 F3@1&B5@2 F7@2&B1@1 B6@2 B2@1 I7@2 I3@1 W7@2 W3@1",
    ]


def test_dualpipe_v():
    """DualPipe cut in half (the DualPipe repository): one copy, both directions on one rank."""
    assert written("dualpipe-v", 2, 2, 4) == [
        "F0@0 F1@0 F2@0 F0@3 I0@3 W0@3 F1@3 F3@0&B1@3 F2@3&B0@0 B2@3 F3@3&B1@0 "
        "B3@3 I2@0 W2@0 I3@0 W3@0",
        "F0@1 F0@2 F1@1 F1@2 F2@1 B0@2 F2@2&B0@1 F3@1&B1@2 F3@2&B1@1 B2@2 B2@1 I3@2 I3@1 W3@2 W3@1",
    ]


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m", "group", "backward"),
    [
        ("1f1b", 2, 1, 4, 2, ["B3"]),
        ("gpipe", 2, 1, 4, 2, ["B0"]),
        ("interleaved", 2, 2, 4, 2, ["B3@2", "B2@0", "B3@0"]),
        ("interleaved", 2, 3, 4, 2, ["B3@4", "B2@2", "B3@2", "B2@0", "B3@0"]),
        # The last group has two micro-batches.
        ("interleaved", 2, 2, 5, 3, ["B4@2", "B3@0", "B4@0"]),
        ("breadth-first", 2, 2, 3, 3, ["B2@2", "B0@0", "B1@0", "B2@0"]),
    ],
)
def test_gradients_become_final_chunk_after_chunk(schedule, p, v, m, group, backward):
    """The last backward passes of rank 0 from the one after which its first chunk is final, each
    1 / v of a micro-batch's."""
    passes = [one for one in written(schedule, p, v, m, group)[0].split() if one[0] == "B"]
    assert passes[-len(backward) :] == backward
    sizes = Sizes(*(np.array([float(x)]) for x in (p, v, group, m)))
    found = passes_of_chunks(np.array([schedule_code(schedule)]), sizes)
    assert found.tolist() == [len(backward) / v]
