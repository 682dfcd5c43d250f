"""A browser for tests of pages: a headless Chromium, driven over its DevTools protocol.

Through a pipe: one JSON object a message, ended by a zero byte. Skipped where none is installed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    "--window-size=1200,1000",
)
PATIENCE = 60
"""Seconds after which a browser that says nothing is killed."""


class Browser:
    """One tab of a headless Chromium."""

    def __init__(self, profile: Path) -> None:
        (read, self.commands), (self.answers, write) = os.pipe(), os.pipe()
        # Away from the two numbers that they are to have.
        moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (read, write)]
        actions = [(os.POSIX_SPAWN_DUP2, end, at) for end, at in zip(moved, (3, 4), strict=True)]
        words = [BROWSER, *SWITCHES, f"--user-data-dir={profile}"]
        quiet = os.open(os.devnull, os.O_RDWR)
        actions += [(os.POSIX_SPAWN_DUP2, quiet, at) for at in (0, 1, 2)]
        self.process = os.posix_spawn(BROWSER, words, os.environ, file_actions=actions)
        for end in (read, write, *moved, quiet):
            os.close(end)
        self.sent, self.session, self.events, self.rest = 0, "", [], b""
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        attached = self.tell("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.tell(f"{domain}.enable")

    def tell(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events before it are kept."""
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while (answer := self.next()).get("id") != self.sent:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            more = os.read(self.answers, 1 << 20)
            assert more, "the browser ended"
            self.rest += more
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path) -> None:
        self.events.clear()
        self.tell("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.next())

    def ask(self, code: str) -> Any:
        """The value of an expression on the page, a promise awaited."""
        asked = {"returnByValue": True, "awaitPromise": True, "userGesture": True}
        answer = self.tell("Runtime.evaluate", expression=code, **asked)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point(self, selector: str) -> tuple[float, float]:
        """Move the mouse to the middle of an element."""
        box = f"document.querySelector('{selector}')"
        x, y = self.ask(
            f"{box}.scrollIntoView({{block: 'center'}}),"
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"({box}.getBoundingClientRect())"
        )
        self.tell("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector: str) -> None:
        x, y = self.point(selector)
        for kind in ("mousePressed", "mouseReleased"):
            button = {"button": "left", "clickCount": 1}
            self.tell("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def press(self, selector: str, key: str) -> None:
        """Press a key of the keyboard on an element."""
        self.ask(f"document.querySelector('{selector}').focus()")
        code = {"Home": 36, "End": 35, "ArrowLeft": 37, "ArrowRight": 39}[key]
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        for kind in ("keyDown", "keyUp"):
            self.tell("Input.dispatchKeyEvent", type=kind, **named)

    def close(self) -> None:
        try:
            self.session = ""
            self.tell("Browser.close")
        finally:
            os.close(self.commands)
            os.close(self.answers)
            os.waitpid(self.process, 0)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not BROWSER:
        pytest.skip("no Chromium is installed")
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("the browser says nothing"))
    signal.alarm(PATIENCE)
    tab = Browser(tmp_path_factory.mktemp("profile"))
    yield tab
    tab.close()
    signal.alarm(0)
