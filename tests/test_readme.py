"""The README shows what plan3d prints, and its two commands are the ones the gate runs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "readme_session", Path(__file__).with_name("readme_session.py")
)
assert _SPEC is not None
assert _SPEC.loader is not None
session = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(session)


@pytest.mark.parametrize("page", session.PAGES, ids=lambda page: page.name)
def test_sessions_are_what_plan3d_prints(page: Path) -> None:
    found = list(session.sessions(page))
    assert found
    for match, printed in found:
        assert session.timeless(match["output"]) == session.timeless(printed), (
            "run: python -P tests/readme_session.py"
        )


def test_the_two_commands_stand_alone() -> None:
    text = session.README.read_text(encoding="utf-8")
    commands = re.findall(r"^python3 -m venv .*$", text, re.M)
    assert len(commands) == 2
    assert commands[0].endswith(
        "plan3d search --model gpt3-175b --cluster a100-80gb-sxm --gpus 1024 --sequence 2048 "
        "--global-batch 1536"
    )
    assert "pytest" in commands[1]


def test_the_tutorial_concludes_what_its_screens_show() -> None:
    page = next(page for page in session.PAGES if page.name == session.TUTORIAL)
    text = page.read_text(encoding="utf-8")
    shown = [found["output"] for found in session.SESSION.finditer(text)]
    first, last = (screen for screen in shown if screen.startswith("$ plan3d search"))
    steps, intervals = [], []
    for screen in (first, last):
        found = re.search(r": ([\d.]+) s a step \(([\d.]+) to ([\d.]+) at 80 %\)", screen)
        assert found
        step, low, high = map(float, found.groups())
        steps.append(step)
        intervals.append(high / low)
    assert steps[1] > steps[0]
    assert intervals[1] < intervals[0]
    plans = [re.search(r"^plan +(.+)$", screen, re.M) for screen in (first, last)]
    assert plans[0]
    assert plans[1]
    assert f"Plan 1 is still `{plans[1][1]}`" in text
    assert plans[0][1] == plans[1][1]
    assert all("at the edge" in screen for screen in (first, last))
    safe = [re.search(r"^safe .*: (.+)$", screen, re.M) for screen in (first, last)]
    assert safe[0]
    assert safe[1]
    assert safe[0][1] == "tp=2 dp=32 overlap_tp=1"
    assert f"The safe plan is still\n`{safe[1][1]}`" in text
    slower = re.search(r"^safe .* \(\+(.*)\), fits with probability >0\.99: ", last, re.M)
    assert slower
    assert f"predicted {slower[1]} slower" in text
    (tried,) = (screen for screen in shown if screen.startswith("$ plan3d calibrate"))
    assert f"  {safe[1][1]}\n" in tried
