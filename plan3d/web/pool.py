"""A bounded pool of worker processes: questions wait in order of arrival.

A question that takes too long, or a process that ends, is one error, and the process is replaced.
A question that nobody waits for any more is interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..screens.output import INTERRUPTED
from .questions import Question
from .settings import Settings

LARGEST_REPLY = 64 * 2**20
"""Bytes of a reply."""
START_SECONDS = 120.0
"""In which a process must be ready."""
GRACE = 5.0
"""Seconds in which an interrupted question must end."""
FULL = 0.5
"""Share of its memory that a process may keep after an answer; one that keeps more is replaced."""
Progress = Callable[[int], None]


class BusyError(Exception):
    """Too many questions wait; the argument says after how many seconds to ask again."""


class LimitError(Exception):
    """A question exceeded its time."""


class WorkerEndedError(Exception):
    """The process of a question ended."""


class ClosedError(Exception):
    """The server ends."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command printed."""

    code: int
    """Its exit code."""
    found: bool
    """Whether it printed a record."""
    body: str
    """The JSON object of the response."""


class Worker:
    """One process, and the pipe to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.killed = False

    @classmethod
    async def start(cls, settings: Settings) -> Worker:
        """A process that is ready for questions."""
        limits = str(int(settings.memory_limit)), str(int(settings.warm_up))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "plan3d.web.worker", *limits),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LARGEST_REPLY,
            start_new_session=True,  # Ctrl-C is for the server, which closes its processes
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        worker = cls(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                await worker._read()
        except BaseException:
            await worker.end()
            raise
        return worker

    async def _read(self) -> dict[str, Any]:
        assert self.process.stdout
        try:
            line = await self.process.stdout.readline()
        except ValueError:  # a longer one than LARGEST_REPLY
            line = b""
        if not line.endswith(b"\n"):
            raise WorkerEndedError
        message: dict[str, Any] = json.loads(line)
        return message

    async def ask(self, job: bytes, progress: Progress) -> dict[str, Any]:
        """The reply to a job."""
        assert self.process.stdin
        try:
            self.process.stdin.write(job)
            await self.process.stdin.drain()
        except OSError:
            raise WorkerEndedError from None
        return await self.reply(progress)

    async def reply(self, progress: Progress) -> dict[str, Any]:
        """The next reply; `progress` hears what comes before it."""
        while "costed" in (message := await self._read()):
            progress(message["costed"])
        return message

    async def interrupt(self) -> bool:
        """End the question; whether the process is ready for the next."""
        with contextlib.suppress(OSError, TimeoutError, ValueError, WorkerEndedError):
            self.process.send_signal(signal.SIGINT)
            async with asyncio.timeout(GRACE):
                await self.reply(lambda costed: None)
            return True
        return False

    def kill(self) -> None:
        """End the process now. Once: Popen.send_signal polls, and would take from asyncio the exit
        of a process that was killed before."""
        if not self.killed:
            self.killed = True
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()

    async def end(self) -> None:
        """End the process, and wait until nothing of it is left."""
        self.kill()
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        with contextlib.suppress(OSError):
            await self.process.stdin.wait_closed()
        await self.process.stdout.read()
        await self.process.wait()


class Answers:
    """The latest answers by question, within a number of bytes."""

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0
        self.replies: OrderedDict[bytes, Reply] = OrderedDict()

    def get(self, job: bytes) -> Reply | None:
        """The answer to a question that was asked before."""
        if job in self.replies:
            self.replies.move_to_end(job)
        return self.replies.get(job)

    def keep(self, job: bytes, reply: Reply) -> None:
        """Keep an answer in place of the oldest."""
        size = len(job) + len(reply.body)
        if size > self.most // 8 or job in self.replies:
            return
        self.replies[job] = reply
        self.bytes += size
        while self.bytes > self.most:
            oldest, old = self.replies.popitem(last=False)
            self.bytes -= len(oldest) + len(old.body)


class Pool:
    """The processes of a server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.idle: list[Worker] = []
        self.waiting: deque[asyncio.Future[Worker]] = deque()
        """Questions without a process, in order of arrival."""
        self.workers: set[Worker] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.mean_seconds = 1.0
        """Of the latest answers."""
        self.answers = Answers(settings.cache)
        self.closed = False

    async def start(self) -> None:
        """Start all processes."""
        await asyncio.gather(*(self._add() for _ in range(self.settings.workers)))

    def end_questions(self) -> None:
        """End those that are being answered, those that wait, and those that still arrive."""
        self.closed = True
        for worker in self.workers:
            worker.kill()
        for turn in self.waiting:
            if not turn.done():
                turn.set_exception(ClosedError())
        self.waiting.clear()

    async def close(self) -> None:
        """End all processes."""
        self.end_questions()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self.workers))

    async def _add(self) -> None:
        worker = await Worker.start(self.settings)
        self.workers.add(worker)
        self._free(worker)

    def _later(self, work: Any) -> None:
        """Do something that no question waits for."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _replace(self, worker: Worker) -> None:
        worker.kill()
        self._later(self._add_after(worker))

    async def _add_after(self, ended: Worker) -> None:
        await ended.end()
        self.workers.discard(ended)
        if self.closed:
            return
        for pause in (0.0, 1.0, 5.0, 30.0):
            await asyncio.sleep(pause)
            with contextlib.suppress(WorkerEndedError, TimeoutError, OSError):
                return await self._add()

    async def _interrupt(self, worker: Worker) -> None:
        if await worker.interrupt():
            self._free(worker)
        else:
            self._replace(worker)

    async def ask(self, question: Question, progress: Progress) -> Reply:
        """The answer to a question. BusyError, LimitError, WorkerEndedError or ClosedError where
        there is none; a cancelled one is interrupted."""
        content = {"words": question.words, "files": dict(question.files)}
        job = json.dumps(content).encode() + b"\n"
        if reply := self.answers.get(job):
            return reply
        if self.closed:
            raise ClosedError
        worker = self.idle.pop() if self.idle else await self._next()
        return await self._answer(worker, job, progress)

    async def _next(self) -> Worker:
        """The process that is free after those of the questions before."""
        if len(self.waiting) >= self.settings.queue:
            turns = len(self.waiting) / self.settings.workers
            raise BusyError(min(max(round(turns * self.mean_seconds), 1), 60))
        turn: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free(turn.result())
            elif turn in self.waiting:
                self.waiting.remove(turn)
            raise

    def _free(self, worker: Worker) -> None:
        """Hand a process to the question that waits longest. (Through a queue, one that arrives at
        this moment would go first.)"""
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                return turn.set_result(worker)
        self.idle.append(worker)

    async def _answer(self, worker: Worker, job: bytes, progress: Progress) -> Reply:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.settings.time_limit):
                message = await worker.ask(job, progress)
        except TimeoutError:
            self._replace(worker)
            raise LimitError from None
        except WorkerEndedError:
            self._replace(worker)
            if self.closed:
                raise ClosedError from None
            raise
        except asyncio.CancelledError:
            self._later(self._interrupt(worker))
            raise
        reply = Reply(message["code"], message["found"], message["body"])
        if reply.code in (0, 2, 3, INTERRUPTED) and (
            message["bytes"] < FULL * self.settings.memory_limit
        ):
            self._free(worker)
        else:
            self._replace(worker)
        self.mean_seconds += 0.1 * (time.monotonic() - began - self.mean_seconds)
        if reply.code in (0, 3) and b'"--time-limit"' not in job:
            self.answers.keep(job, reply)
        return reply
