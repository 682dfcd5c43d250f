"""The server under load: latency of warm questions, and many clients at once on loopback.

    python tests/benchmarks/web_load.py --clients 200 --seconds 60 --workers 1

Every question is another one, so that none is answered from memory; `--again` asks few over and
over. Printed: percentiles of seconds by model, of one client; of all clients the errors, the wait,
the answers of the client that got fewest and most, and the memory of all processes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

GPT3 = {"model": "gpt3-175b", "cluster": "a100-80gb-sxm", "gpus": 1024}
DEEPSEEK = {"model": "deepseek-v3", "cluster": "h800-sxm", "gpus": 2048}
SMALL = {"model": "llama-3.1-8b", "cluster": "h100-sxm", "gpus": 64}
PLAN = {"plan": "tp=2 pp=2"}
MIX = (
    ("search", GPT3),
    *(("estimate", {**SMALL, **PLAN}), ("explain", {**SMALL, **PLAN}), ("search", SMALL)),
    *(("memory", {**SMALL, **PLAN}), ("estimate", {**SMALL, **PLAN})),
)
WARM, ALONE = 3, 20
"""Questions before the measurement, and in it."""
PLACE = re.compile(r"http://[\d.]+:(\d+)")


async def post(port: int, name: str, body: dict[str, Any]) -> tuple[int, float]:
    """Status and seconds of one question; status 0 where the connection broke."""
    began = time.perf_counter()
    content = json.dumps(body).encode()
    head = f"POST /api/{name} HTTP/1.1\r\nHost: localhost\r\n"
    head += "Content-Type: application/json\r\n"
    status = 0
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sizes = f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        writer.write(f"{head}{sizes}".encode() + content)
        answer = await reader.read()
        status = int(answer.split(b" ", 2)[1])
        json.loads(answer.partition(b"\r\n\r\n")[2])
        writer.close()
    except (OSError, ValueError, IndexError):
        status = 0
    return status, time.perf_counter() - began


def variants(again: bool, first: int = 0) -> itertools.count[int] | itertools.cycle[int]:
    """Numbers that make a question another one."""
    return itertools.cycle(range(8)) if again else itertools.count(first)


def varied(body: dict[str, Any], number: int) -> dict[str, Any]:
    """The same question with another network, which changes every step."""
    return {**body, "inter_node_bandwidth": 2.5e10 + 1e6 * number}


def percentiles(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    at = [ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in (0.5, 0.95, 1)]
    return f"p50 {at[0]:.3f} s, p95 {at[1]:.3f} s, max {at[2]:.3f} s"


def processes(root: int) -> list[int]:
    """The server and its processes."""
    out = [root]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) in out:
            out.append(int(path.parent.name))
    return out


def memory(root: int) -> float:
    """MiB of all processes."""
    total = 0
    for process in processes(root):
        try:
            total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096
        except OSError:
            continue
    return total / 2**20


def cpu_seconds(root: int) -> float:
    """Seconds of processors that all processes took."""
    total = 0
    for process in processes(root):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / 100


async def alone(port: int, server: int, again: bool) -> None:
    """One client: seconds of warm questions."""
    for name, body in (("search", GPT3), ("search", DEEPSEEK), *MIX[1:5]):
        numbers, seconds = variants(again), []
        for _ in range(WARM):
            await post(port, name, varied(body, next(numbers)))
        before = cpu_seconds(server)
        for _ in range(ALONE):
            status, took = await post(port, name, varied(body, next(numbers)))
            assert status == 200, (name, status)
            seconds.append(took)
        cpu = (cpu_seconds(server) - before) / ALONE
        told = f"{percentiles(seconds)}; CPU {cpu:.3f} s each"
        print(f"{name:9} {body['model']:13} {told}", flush=True)


async def together(port: int, server: int, args: argparse.Namespace) -> int:
    """Many clients; the number of errors."""
    until, numbers = time.monotonic() + args.seconds, variants(args.again, 1000)
    taken: list[float] = []
    statuses: Counter[int] = Counter()
    each: Counter[int] = Counter()
    sizes: list[float] = []

    async def client(number: int) -> None:
        draw = random.Random(number)
        await asyncio.sleep(draw.random())
        while time.monotonic() < until:
            name, body = draw.choice(MIX)
            status, took = await post(port, name, varied(body, next(numbers)))
            statuses[status] += 1
            each[number] += status == 200
            taken.append(took)

    async def watch() -> None:
        while True:
            sizes.append(memory(server))
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch())
    began = time.monotonic()
    await asyncio.gather(*(client(number) for number in range(args.clients)))
    watching.cancel()
    rate = len(taken) / (time.monotonic() - began)
    counts = [each[number] for number in range(args.clients)]
    print(f"{args.clients} clients, {args.seconds} s: {len(taken)} answers, {rate:.1f} a second")
    print(f"status {dict(statuses)}; wait {percentiles(taken)}")
    print(f"answers of a client: {min(counts)} to {max(counts)}")
    first, late = sizes[0], sizes[len(sizes) // 2 :]
    print(
        f"MiB: {first:.0f} at first, {max(sizes):.0f} at most, {late[0]:.0f} to {late[-1]:.0f} late"
    )
    return sum(count for status, count in statuses.items() if status != 200)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--port", type=int, default=8377)
    parser.add_argument("--again", action="store_true", help="ask few questions over and over")
    parser.add_argument("--skip-alone", action="store_true")
    args = parser.parse_args()
    words = ["serve", "--port", str(args.port), "--workers", str(args.workers)]
    server = subprocess.Popen([sys.executable, "-m", "plan3d", *words])
    try:
        while asyncio.run(post(args.port, "estimate", {**SMALL, **PLAN}))[0] != 200:
            time.sleep(0.2)
        if not args.skip_alone:
            asyncio.run(alone(args.port, server.pid, args.again))
        return int(asyncio.run(together(args.port, server.pid, args)) > 0)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    raise SystemExit(main())
