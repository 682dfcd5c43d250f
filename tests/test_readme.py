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
