"""The application over ASGI, with one process: who may ask, limits, streams, ended processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from plan3d.web.pool import Answers, Pool, Reply
from plan3d.web.server import create_app, page_files
from plan3d.web.settings import Settings

SIZED = {"model": "llama-7b", "cluster": "h100-sxm", "gpus": 8, "batch": 64, "plan": "tp=2"}
LONG = {"model": "deepseek-v3", "cluster": "h800-sxm", "gpus": 2048}
JSON = {"host": "localhost:1", "content-type": "application/json"}
Response = tuple[int, dict[str, str], str]


class Server:
    """The application, and the loop that it runs in."""

    def __init__(self) -> None:
        self.pool = Pool(Settings(workers=1, warm_up=False, largest_body=20_000, body_seconds=0.2))
        self.app = create_app(self.pool)
        self.runner = asyncio.Runner()

    def ask(self, path: str, body: Any = None, **options: Any) -> Response:
        return self.runner.run(self.asked(path, body, **options))

    async def asked(
        self,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        method: str = "",
        gone: asyncio.Event | None = None,
        slow: bool = False,
    ) -> Response:
        """Status, headers and body of a request; its client goes away when `gone` is set."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        pieces = [{"type": "http.request", "body": content, "more_body": slow}]

        async def receive() -> dict[str, Any]:
            if pieces:
                return pieces.pop()
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        given = {**JSON, **(headers or {})}
        scope = {
            "type": "http",
            "method": method or ("GET" if body is None else "POST"),
            "path": path,
            "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in given.items() if v],
        }
        await self.app(scope, receive, send)
        if not sent:
            return 0, {}, ""
        fields = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
        return sent[0]["status"], fields, text

    @property
    def process(self) -> int:
        (worker,) = self.pool.workers
        return worker.process.pid


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    out = Server()
    inner = out.app.app
    life = inner.router.lifespan_context(inner)  # type: ignore[attr-defined]
    out.runner.run(life.__aenter__())
    yield out
    out.runner.run(life.__aexit__(None, None, None))
    out.runner.close()


def test_presets_are_what_fields_take(server: Server) -> None:
    record = json.loads(server.ask("/api/presets")[2])
    assert {"name": "tp", "meaning": "tensor-parallel size"}.items() <= record["fields"][0].items()
    model, cluster = record["models"][0]["name"], record["clusters"][0]["name"]
    first = {"model": model, "cluster": cluster, "precision": record["precisions"][0]}
    assert server.ask("/api/estimate", {**first, "gpus": 8, "plan": "tp=1"})[0] == 200


def line(response: Response) -> tuple[int, str]:
    return response[0], json.loads(response[2])["error"]


def test_a_question_is_answered_once_for_all_who_ask_it(server: Server) -> None:
    status, headers, text = server.ask("/api/estimate", SIZED)
    assert (status, headers["content-type"]) == (200, "application/json")
    record = json.loads(text)
    assert record["plans"][0]["plan"]["tp"] == 2
    assert record["command"].startswith("plan3d estimate llama-7b h100-sxm 8 ")
    assert server.ask("/api/estimate", SIZED)[2] == text
    assert server.pool.answers.bytes > len(text)


def test_a_stream_ends_with_the_answer(server: Server) -> None:
    body = {**SIZED, "plan": None, "fix": {"tp": 2}}
    status, headers, text = server.ask("/api/search", body, headers={"accept": "text/event-stream"})
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    *before, last, end = text.split("\n\n")
    name, data = last.split("\n")
    assert (name, end) == ("event: answer", "")
    assert json.loads(data.removeprefix("data: "))["plans"]
    progress = 'event: progress\ndata: {"costed": '
    assert {one.startswith((progress, ": waiting")) for one in before} == {True}
    wrong = {**SIZED, "plan": "x"}
    refused = server.ask("/api/estimate", wrong, headers={"accept": "text/event-stream"})
    assert refused[2].startswith('event: error\ndata: {"schema"')


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8303"}, 200),
        ({"host": "[::1]"}, 200),
        ({"host": "LOCALHOST"}, 200),
        ({"host": "evil.example"}, 421),
        ({"host": "localhost.evil.example:80"}, 421),
        ({"host": "localhost@evil.example"}, 421),
        ({"host": "192.168.0.1"}, 421),
        ({"host": "localhost:80:80"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://localhost:1"}, 200),
        ({"origin": "http://localhost:2"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
def test_only_the_page_and_programs_of_this_machine_may_ask(
    server: Server, headers: dict[str, str], status: int
) -> None:
    response = server.ask("/", headers=headers)
    assert response[0] == status
    policy = response[1]["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert response[1]["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "body", "options", "status"),
    [
        ("/api/search", b"{", {}, 400),
        ("/api/search", b'{"top": NaN}', {}, 400),
        ("/api/search", b"[" * 9_000, {}, 400),
        ("/api/search", b"\xff", {}, 400),
        ("/api/search", b"x" * 20_001, {}, 413),
        ("/api/search", b"{}", {"slow": True}, 408),
        ("/api/search", {}, {"headers": {"content-type": "text/plain"}}, 415),
        ("/api/search", {}, {"headers": {"content-type": ""}}, 415),
        ("/api/search", None, {}, 405),
        ("/api/serve", {}, {}, 404),
        ("/api/../search", {}, {}, 404),
        ("/../../etc/passwd", None, {}, 404),
        ("/..", None, {}, 404),
        ("/", {}, {"method": "DELETE"}, 405),
    ],
)
def test_what_is_no_request_is_refused_in_one_line(
    server: Server, path: str, body: Any, options: dict[str, Any], status: int
) -> None:
    refused, said = line(server.ask(path, body, **options))
    assert refused == status
    assert said
    assert "\n" not in said


def test_the_page_is_served_from_memory(server: Server) -> None:
    files = page_files()
    for name, (content, kind, tag) in files.items():
        status, headers, text = server.ask(f"/{name}")
        assert (status, headers["etag"], text.encode()) == (200, tag, content)
        assert headers["content-type"].startswith(kind)
        assert server.ask(f"/{name}", headers={"if-none-match": tag})[0] == 304
    assert server.ask("/")[2].encode() == files["index.html"][0]
    assert json.loads(server.ask("/openapi.json")[2])["paths"]["/api/search"]


async def begun(server: Server, gone: asyncio.Event | None = None) -> asyncio.Task[Response]:
    """A long question that is being computed."""
    task = asyncio.ensure_future(server.asked("/api/search", LONG, gone=gone))
    while server.pool.idle:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    return task


def test_a_question_of_nobody_ends_and_its_process_goes_on(server: Server) -> None:
    async def leave() -> tuple[Response, Response]:
        gone = asyncio.Event()
        left = await begun(server, gone)
        full = replace(server.pool.settings, queue=0)
        usual, server.pool.settings = server.pool.settings, full
        busy = await server.asked("/api/estimate", {**SIZED, "batch": 32})
        server.pool.settings = usual
        gone.set()
        assert await left == (0, {}, "")
        return busy, await server.asked("/api/estimate", {**SIZED, "batch": 32})

    before = server.process
    busy, answered = server.runner.run(leave())
    assert line(busy)[0] == 503
    assert int(busy[1]["retry-after"]) >= 1
    assert answered[0] == 200
    assert server.process == before


def test_questions_are_answered_in_order_of_arrival(server: Server) -> None:
    """Also those that arrive when a process is just free."""

    async def arrive() -> list[int]:
        order: list[int] = []

        async def ask(number: int) -> None:
            await server.asked("/api/estimate", {**SIZED, "batch": 8 * (number + 20)})
            order.append(number)
            if number < 4:
                await server.asked("/api/estimate", {**SIZED, "batch": 8 * (number + 30)})
                order.append(number + 10)

        async with asyncio.TaskGroup() as tasks:
            for number in range(1, 6):
                tasks.create_task(ask(number))
        return order

    assert server.runner.run(arrive()) == [1, 2, 3, 4, 5, 11, 12, 13]


def test_a_killed_process_is_one_error_and_the_next_answer_is_right(server: Server) -> None:
    async def kill() -> tuple[Response, Response]:
        task = await begun(server)
        os.kill(server.process, signal.SIGKILL)
        return await task, await server.asked("/api/estimate", {**SIZED, "batch": 16})

    before = server.process
    ended, answered = server.runner.run(kill())
    assert line(ended)[0] == 500
    assert "process that computed the answer ended" in line(ended)[1]
    assert json.loads(answered[2])["task"]["global_batch"] == 16
    assert server.process != before


def test_a_question_that_takes_too_long_is_refused(server: Server) -> None:
    server.pool.settings = replace(server.pool.settings, time_limit=0.2)
    status, said = line(server.ask("/api/search", LONG))
    assert status == 422
    assert said.startswith("the question takes longer than")


def test_a_server_that_ends_says_so_to_whoever_waits(server: Server) -> None:
    """The last question of this server."""
    server.pool.settings = replace(server.pool.settings, time_limit=60.0)

    async def end() -> list[Response]:
        answered = await begun(server)
        waits = asyncio.ensure_future(server.asked("/api/estimate", {**SIZED, "batch": 8}))
        while not server.pool.waiting:
            await asyncio.sleep(0.01)
        server.pool.end_questions()
        late = await server.asked("/api/estimate", {**SIZED, "batch": 24})
        return [await answered, await waits, late]

    said = [line(one) for one in server.runner.run(end())]
    assert said == [(503, "the server ends: ask it again once it is started")] * 3


def test_answers_are_kept_within_bytes() -> None:
    answers = Answers(800)
    for n in range(20):
        answers.keep(b"%d" % n, Reply(0, True, "x" * 98))
    assert answers.bytes <= 800
    assert answers.get(b"0") is None
    assert answers.get(b"19") is not None
    answers.keep(b"large", Reply(0, True, "x" * 101))
    assert answers.get(b"large") is None
