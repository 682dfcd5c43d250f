"""The verb `serve`: what it refuses before it serves."""

from __future__ import annotations

import socket

import pytest

from plan3d.cli.main import main
from plan3d.web import verb


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--port", "70000"], "--port 70000 must be from 0 (any that is free) to 65535"),
        (["--workers", "0"], "--workers 0 must be from 1 to 256"),
        (["--memory-limit", "100MB"], "--memory-limit must be at least 512 MiB"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid --port 8303: cannot"),
        (["--time-limit", "0"], "--time-limit '0' must be above 0 seconds"),
        (["--gpus", "8"], "unknown option '--gpus'"),
    ],
)
def test_wrong_settings_are_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    assert capsys.readouterr().err.startswith(f"plan3d: {line}")


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"plan3d: --host 127.0.0.1 --port {port}: cannot listen there (Address")


def test_without_the_extra_the_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb, "NEEDED", ("no_such_package",))
    assert main(["serve"]) == 2
    assert 'pip install "plan3d[web]"' in capsys.readouterr().err
