"""What every test starts from."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is as wide as in a pipe, whatever terminal runs the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)
