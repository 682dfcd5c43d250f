"""The verb `serve`: a local page, and a JSON interface for other programs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from plan3d.simulator.base.errors import InputError

from ..screens.output import Progress, warn
from .pool import Pool
from .settings import Settings

ABOUT = """Serve a page on which the answer follows the question, and a JSON interface.

  plan3d serve
  plan3d serve --workers 8 --time-limit 30s --memory-limit 8GiB
  plan3d serve --host 0.0.0.0 --port 9000

It listens to this machine only, unless --host says otherwise; whoever reaches
it may ask. Questions name no files: launch files are sent as text.
/openapi.json describes the interface."""
DRAIN = 4.0
"""Seconds that questions have after a signal."""
NEEDED = ("starlette", "uvicorn")
"""Packages of the extra."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Serve until interrupted."""
    if any(find_spec(name) is None for name in NEEDED):
        raise InputError('serve needs more packages: pip install "plan3d[web]"')
    import uvicorn

    from .server import create_app

    names = ("host", "port", "workers", "time_limit", "memory_limit")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    settings = replace(Settings(), **given)
    if not 0 <= settings.port <= 65_535:
        raise InputError(f"--port {settings.port} must be from 0 (any that is free) to 65535")
    if not 1 <= settings.workers <= 256:
        raise InputError(f"--workers {settings.workers} must be from 1 to 256")
    if settings.memory_limit < 2**29:
        raise InputError("--memory-limit must be at least 512 MiB, which a small question takes")
    place = _listening(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    warn(f"http://{host}:{place.getsockname()[1]} (Ctrl-C ends it)", args.quiet)
    pool = Pool(settings)
    config = uvicorn.Config(
        create_app(pool),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=2 * settings.queue,
        timeout_graceful_shutdown=int(2 * DRAIN),
        h11_max_incomplete_event_size=16_384,
    )
    server = uvicorn.Server(config)
    # Signals are answered here: uvicorn's own handlers raise them once more at the end.
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: _stop(server)) for number in signals}
    try:
        with asyncio.Runner() as runner:
            runner.run(_serve(server, place, pool))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0 if server.started else InputError.exit_code


async def _serve(server: Any, place: socket.socket, pool: Pool) -> None:
    """Serve until a signal; what is being answered then has DRAIN seconds."""

    async def end() -> None:
        while not server.should_exit:
            await asyncio.sleep(0.1)
        await asyncio.sleep(DRAIN)
        pool.end_questions()

    ending = asyncio.ensure_future(end())
    await server.serve([place])
    ending.cancel()


def _listening(settings: Settings) -> socket.socket:
    """The socket at which requests arrive; InputError where it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while")[0]
        where = f"--host {settings.host} --port {settings.port}"
        raise InputError(f"{where}: cannot listen there ({why}); give another") from None


def _stop(server: Any) -> None:
    """A signal: end after the questions that are being answered, or after a few seconds."""
    server.should_exit = True
