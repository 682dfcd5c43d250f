"""The application: one path a question, the page, and the interface's description.

A response is the record that the command prints with --json, and `command`, its words. With
`Accept: text/event-stream` it is a stream: `progress` events with the plans costed so far, then
`answer` or `error`. A question whose client goes away is interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from hashlib import sha256
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from plan3d.simulator.base.documents import parse_json
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import read_bytes

from ..screens.output import INTERRUPTED
from .openapi import document
from .pool import BusyError, ClosedError, LimitError, Pool, Progress, Reply, WorkerEndedError
from .questions import ENDPOINTS, PRESETS, Question, question
from .security import Guarded, error
from .settings import NO_MEMORY, Settings

JSON, EVENTS = "application/json", "text/event-stream"
HEARTBEAT = 5.0
"""Seconds between two messages of a stream, at most."""
STATUS = {0: 200, 3: 200, 2: 400, INTERRUPTED: 503, NO_MEMORY: 422}
"""HTTP status by exit code; another is an internal error."""
Answer = tuple[int, str, Mapping[str, str]]
"""Status, body and headers of a response."""


def create_app(pool: Pool) -> Guarded:
    """The application of a server, whose processes it starts and ends."""
    settings, files = pool.settings, page_files()
    lists: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await pool.start()
        try:
            lists.append((await pool.ask(PRESETS, lambda costed: None)).body)
            yield
        finally:
            await pool.close()

    def asked(name: str) -> Callable[[Request], Awaitable[Any]]:
        async def ask(request: Request) -> Asked | Response:
            try:
                body = await _body(request, settings)
                one = question(name, parse_json(body, "the request"), settings.most_gpus)
            except InputError as wrong:
                return error(400, str(wrong))
            return Asked(pool, one, settings)

        return ask

    async def presets(request: Request) -> Response:
        return Response(lists[0], media_type=JSON)

    async def openapi(request: Request) -> Response:
        return Response(json.dumps(document(settings)), media_type=JSON)

    async def page(request: Request) -> Response:
        name = request.path_params.get("file", "index.html")
        if name not in files:
            return error(404, f"there is no page {name[:60]!r}")
        content, kind, tag = files[name]
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    app = Starlette(
        routes=[
            *(Route(f"/api/{name}", asked(name), methods=["POST"]) for name in ENDPOINTS),
            Route("/api/presets", presets, methods=["GET"]),
            Route("/openapi.json", openapi, methods=["GET"]),
            Route("/", page, methods=["GET"]),
            Route("/{file}", page, methods=["GET"]),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    return Guarded(app, settings.host)


def page_files() -> dict[str, tuple[bytes, str, str]]:
    """Content, media type and tag of every file of the page: requests read no disk."""
    out = {}
    for file in (resources.files(__package__) / "static").iterdir():
        content = read_bytes(file)
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        out[file.name] = content, kind, f'"{sha256(content).hexdigest()[:16]}"'
    return out


async def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, HTTPException)
    where = f"{request.method} {request.url.path}"[:80]
    return error(refusal.status_code, f"{where}: {refusal.detail}", refusal.headers)


async def _failed(request: Request, failure: Exception) -> Response:
    return error(500, f"internal error ({type(failure).__name__}): please report it")


async def _body(request: Request, settings: Settings) -> str:
    """The text of a request; HTTPException where it is no JSON, too long or too slow."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise HTTPException(415, f"Content-Type must be {JSON}")
    content = bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for piece in request.stream():
                content += piece
                if len(content) > settings.largest_body:
                    most = f"{settings.largest_body / 1e6:g} MB"
                    raise HTTPException(413, f"a request has at most {most}")
    except TimeoutError:
        raise HTTPException(408, f"did not arrive in {settings.body_seconds:g} s") from None
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "the request must be JSON in UTF-8") from None


class Asked:
    """The response to a question: its answer, or a stream of events that ends with it."""

    def __init__(self, pool: Pool, one: Question, settings: Settings) -> None:
        self.pool, self.question, self.settings = pool, one, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client goes away first."""
        streams = EVENTS in Request(scope).headers.get("accept", "")
        work = asyncio.ensure_future((self._stream if streams else self._once)(scope, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _once(self, scope: Scope, send: Send) -> None:
        status, body, headers = await self._answer(lambda costed: None)
        response = Response(body, status, headers, JSON)
        await response(scope, _never, send)

    async def _stream(self, scope: Scope, send: Send) -> None:
        events: asyncio.Queue[str] = asyncio.Queue()

        def progress(costed: int) -> None:
            events.put_nowait(f'event: progress\ndata: {{"costed": {costed}}}\n\n')

        async def answered() -> None:
            status, body, _ = await self._answer(progress)
            events.put_nowait(f"event: {'answer' if status == 200 else 'error'}\ndata: {body}\n\n")

        kind = f"{EVENTS}; charset=utf-8".encode()
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        await send(start)
        task = asyncio.ensure_future(answered())
        try:
            while not task.done() or not events.empty():
                text = ": waiting\n\n"
                with contextlib.suppress(TimeoutError):
                    text = await asyncio.wait_for(events.get(), HEARTBEAT)
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, progress: Progress) -> Answer:
        """Status and body; a question that gets no answer has one line."""
        try:
            reply: Reply = await self.pool.ask(self.question, progress)
        except BusyError as busy:
            line = f"{self.settings.queue} questions wait already: ask again in {busy} s"
            return *_line(503, line), {"Retry-After": str(busy)}
        except LimitError:
            line = f"the question takes longer than {self.settings.time_limit:g} s, the limit"
            return *_line(422, f"{line} of this server: narrow it"), {}
        except WorkerEndedError:
            line = "the process that computed the answer ended: it ran out of memory, or was killed"
            return *_line(500, line), {}
        except ClosedError:
            return *_line(503, "the server ends: ask it again once it is started"), {}
        return 200 if reply.found else STATUS.get(reply.code, 500), reply.body, {}


def _line(status: int, line: str) -> tuple[int, str]:
    return status, bytes(error(status, line).body).decode()


async def _disconnected(receive: Receive) -> None:
    """Wait until the client is gone; what it still sends is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _never() -> Any:
    await asyncio.Event().wait()
