"""What every test starts from."""

from __future__ import annotations

import signal

import pytest

# A shell that starts the suite in the background leaves interrupts ignored, by every child as well.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is as wide as in a pipe, whatever terminal runs the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)
