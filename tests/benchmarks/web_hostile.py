"""Hostile requests: what does the server do with hosts, paths and bodies that nobody should send?

    python tests/benchmarks/web_hostile.py --examples 300

First, requests of every question go through the very code of a process (`worker.reply`) with an
audit hook of this benchmark, which records every file that is opened: none may be outside of the
package and Python's libraries, no other process or connection is made, and no exit code is that of
an internal error. Then a real server gets hostile hosts, methods, paths, headers and bodies over
sockets: every response has a status of the interface, JSON of one line where it is an error, and
nothing of a traceback is in it or on stderr. At last a process is killed in mid-question, and
questions allocate more than they may.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import plan3d.simulator
from plan3d.simulator.base.errors import InputError
from plan3d.web.questions import ENDPOINTS, fields, question
from plan3d.web.worker import Guard, reply

PORT = 8379
SIZED = {"model": "llama-7b", "cluster": "h100-sxm", "gpus": 8, "batch": 16}
FEW = {"fix": {"tp": 2, "pp": 1, "cp": 1, "micro_batch": 1, "recompute": "none"}}
USUAL: dict[str, dict[str, Any]] = {
    "search": {**SIZED, **FEW, "top": 1},
    "estimate": {**SIZED, "plan": "tp=2"},
    "explain": {**SIZED, "plan": "tp=2"},
    "memory": {**SIZED, "plan": "tp=2"},
    "timeline": {**SIZED, "plan": "tp=2"},
    "fits": {"model": "llama-3.2-1b", "cluster": "rtx-4090"},
    "compare": {**SIZED, **FEW, "backends": "random", "seeds": 1, "budget": 10},
    "sweep": {**SIZED, "gpus": None, "over": ["gpus=8,16"], "plan": "tp=2"},
    "export": {**SIZED, "plan": "tp=2", "to": "megatron"},
    "import": {"cluster": "h100-sxm", "gpus": 8, "launch_file": {"name": "a.sh", "text": "x"}},
}
PATHS = (
    *(
        "/etc/passwd",
        "../../etc/passwd",
        "/proc/self/environ",
        "~/.ssh/id_rsa",
        "file:///etc/passwd",
    ),
    *(
        "@/etc/passwd",
        "last",
        "last#1",
        "result.json#1",
        "config.json",
        "/dev/zero",
        "C:\\\\x",
        ".",
    ),
    *("h100-sxm.toml", "../h100-sxm.toml", "meta-llama/../../etc", "$(id)", "`id`", "a;id", "x\0y"),
    *(
        "--csv=/tmp/x",
        "--report",
        "-o/tmp/x",
        "tp=2 --csv x",
        "%2e%2e%2f",
        "\\\\host\\share",
        "1e999",
    ),
)
TEXTS = (
    "source /etc/passwd\n. ~/.bashrc\ntorchrun pretrain_gpt.py $(cat /etc/passwd)",
    "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 --load /etc",
    "deepspeed train.py --deepspeed_config /etc/passwd --model_name_or_path /etc/passwd",
    "accelerate launch --config_file /etc/passwd train.py --model_name_or_path ../x",
    "while true; do :; done\ncat < /etc/shadow > /tmp/x",
    '[model]\nname = "llama3"\nflavor = "../../etc/passwd"\n',
    "model:\n  model_config: !!python/object/apply:os.system [id]\nbase: /etc/passwd\n",
)
NAMES = ("run.sh", "job.toml", "run.yaml", "ds.json", "out.log", "config.json", "h100-sxm", "x.csv")
SCALARS = st.one_of(
    st.sampled_from(PATHS),
    st.text(max_size=12),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(
        st.sampled_from(["tp", "pp", "dp", "layers_per_stage", "x"]), SCALARS, max_size=3
    ),
)
USEFUL = st.one_of(
    st.integers(1, 64),
    st.sampled_from(["1", "2", "1k", "tp=2", "tp=1,2", "0.1", "1ms", "10GB", "fp8"]),
)
FILES = st.fixed_dictionaries({"name": st.sampled_from(NAMES), "text": st.sampled_from(TEXTS)})
CONFIGS = st.dictionaries(
    st.sampled_from(["model_type", "hidden_size", "num_hidden_layers", "_name_or_path", "layers"]),
    SCALARS,
)
ROOTS = tuple(
    os.path.join(os.path.realpath(place), "")
    for place in (
        *(
            Path(plan3d.simulator.__path__[0]).parent / name
            for name in ("simulator", "search", "plan3d")
        ),
        Path(plan3d.simulator.__path__[0]).parent / "hardware_profiles",
        os.path.dirname(json.__file__) + "/..",
        os.path.dirname(st.__file__) + "/../..",
    )
)
"""Folders that a question may read: the package, Python's library and its site-packages."""


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A question, with one to three fields of it hostile."""
    name = draw(st.sampled_from(list(ENDPOINTS)))
    body, kind = dict(USUAL[name]), draw(st.integers(0, 3))
    if kind == 0:
        body.pop("model", None)
        body["launch_file"] = draw(FILES)
        body["files"] = {draw(st.sampled_from(NAMES)): draw(st.sampled_from(TEXTS))}
    elif kind == 1:
        body["model"] = draw(CONFIGS)
    for field in draw(st.lists(st.sampled_from(sorted(fields(name))), min_size=1, max_size=2)):
        body[field] = draw(st.one_of(USEFUL, VALUES))
    return name, body


OTHERS = ("subprocess", "socket", "shutil", "tempfile")
CHANGES = ("os.system", "os.exec", "os.fork", "os.remove", "os.rename", "os.mkdir", "os.chdir")


class Watch:
    """What is opened and started while a question is answered."""

    def __init__(self) -> None:
        self.guard = Guard()
        self.outside: list[str] = []
        sys.addaudithook(self.hook)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.guard.answering:
            return
        if event == "open" and not isinstance(arguments[0], int):
            place, flags = os.path.realpath(os.fsdecode(arguments[0])), arguments[2]
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            listed = place in map(os.path.realpath, sys.path)  # entry points are looked for there
            if writes or not (place.startswith(ROOTS) or listed):
                self.outside.append(f"open {place} {flags}")
        elif event.partition(".")[0] in OTHERS or event in CHANGES:
            self.outside.append(f"{event} {arguments!r}"[:200])


def processes_alone(examples: int) -> int:
    """Requests through the code of a process; the number of faults."""
    watch, codes = Watch(), dict.fromkeys((0, 2, 3, 70), 0)
    faults: list[str] = []
    refused = 0

    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(requests())
    def ask(request: tuple[str, dict[str, Any]]) -> None:
        nonlocal refused
        name, body = request
        try:
            asked = question(name, body, 4096)
        except InputError:
            refused += 1
            return
        job = {"words": asked.words, "files": dict(asked.files)}
        out = limited(lambda: reply(job, watch.guard, lambda costed: None))
        codes[out["code"]] = codes.get(out["code"], 0) + 1
        if out["code"] not in (0, 2, 3, 130):
            faults.append(f"{asked.words}: {out['body'][:300]}")

    ask()
    print(
        f"{sum(codes.values()) + refused} requests: {refused} refused at once, exit codes {codes}"
    )
    for fault in [*faults[:10], *sorted(set(watch.outside))[:10]]:
        print("   ", fault)
    print(
        f"{len(faults)} internal errors, {len(watch.outside)} reads or starts outside", flush=True
    )
    return len(faults) + len(watch.outside)


def limited(work: Any) -> Any:
    """A question interrupted after some seconds, as the server does."""
    timer = threading.Timer(8.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        return work()
    except KeyboardInterrupt:
        return {"code": 130, "body": "", "found": False}
    finally:
        timer.cancel()


def sent(raw: bytes, seconds: float = 30.0) -> bytes:
    """What the server sends back to bytes."""
    with socket.create_connection(("127.0.0.1", PORT), timeout=seconds) as connection:
        try:
            connection.sendall(raw)
            out = b""
            while piece := connection.recv(65536):
                out += piece
        except (ConnectionError, TimeoutError):
            pass
        return out


def http(method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    given = {
        "Host": "localhost",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


HOSTS = (
    "localhost",
    "localhost:80",
    "evil.example",
    "127.0.0.1.evil.example",
    "",
    "[::1]",
    "0",
    "::1",
)
METHODS = ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "PATCH", "BREW")
TARGETS = (
    *(f"/api/{name}" for name in ENDPOINTS),
    *("/", "/..", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/index.html"),
    *(
        "/openapi.json",
        "/api/presets",
        "/static/../server.py",
        "/\x01",
        "*",
        "http://evil.example/",
    ),
)
TYPES = ("application/json", "application/json; charset=x", "text/plain", "", "multipart/form-data")
BODIES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"{}", b"[" * 100_000, b"{" * 3000, b"1e999", b"NaN", b"\xff\xfe", b"null"]),
    st.sampled_from([b"9" * 5000, b'{"a":' * 1000, b'"' + b"x" * 2_600_000 + b'"']),
    requests().map(lambda request: json.dumps(request[1], default=str).encode()),
)
ALLOWED = {200, 304, 400, 403, 404, 405, 408, 413, 415, 421, 422, 503}


def server_asked(examples: int, log: Path) -> int:
    """Hostile bytes to a real server; the number of faults."""
    faults: list[str] = []
    statuses: dict[int, int] = {}

    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.sampled_from(METHODS),
        st.sampled_from(TARGETS),
        st.sampled_from(HOSTS),
        st.sampled_from(TYPES),
        st.sampled_from(["", "null", "https://evil.example", "http://localhost"]),
        BODIES,
        st.booleans(),
    )
    def ask(
        method: str, path: str, host: str, kind: str, origin: str, body: bytes, plain: bool
    ) -> None:
        headers = {"Content-Type": "application/json"}
        if not plain:
            headers = {"Host": host, "Content-Type": kind, **({"Origin": origin} if origin else {})}
        answer = sent(http("POST" if plain else method, path, headers, body))
        head, _, content = answer.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
        statuses[status] = statuses.get(status, 0) + 1
        shown = f"{method} {path} {headers} {body[:200]!r}: {answer[:200]!r}"
        if status not in ALLOWED or b"Traceback" in answer or b"root:" in answer:
            faults.append(shown)
        if status >= 400 and b"application/json" in head and method != "HEAD":
            line = json.loads(content)["error"]
            if "\n" in line or len(line) > 8100:
                faults.append(shown)

    ask()
    told = log.read_text()
    faults += [told[-2000:]] if "Traceback" in told else []
    print(f"{sum(statuses.values())} requests over sockets: {statuses}")
    for fault in faults[:10]:
        print("   ", fault)
    print(f"{len(faults)} faults", flush=True)
    return len(faults)


def workers_of(server: int) -> list[int]:
    """The processes of a server that answer."""
    out = subprocess.run(["pgrep", "-P", str(server)], capture_output=True, text=True, check=False)
    return [int(word) for word in out.stdout.split()]


def asked(name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    content = json.dumps(body).encode()
    kind = {"Content-Type": "application/json"}
    answer = sent(http("POST", f"/api/{name}", kind, content), 200.0)
    head, _, text = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), json.loads(text)


def ended_questions(server: int) -> int:
    """A process killed in mid-question, and questions beyond the memory; the number of faults."""
    long = {"model": "deepseek-v3", "cluster": "h800-sxm", "gpus": 2048}
    results: list[tuple[int, dict[str, Any]]] = []
    thread = threading.Thread(target=lambda: results.append(asked("search", long)))
    thread.start()
    time.sleep(1.0)
    for process in workers_of(server):
        os.kill(process, signal.SIGKILL)
    thread.join()
    status, record = results[0]
    after, answer = asked("estimate", {**SIZED, "plan": "tp=2"})
    right = answer.get("plans", [{}])[0].get("step_seconds", 0) > 0
    print(f"killed in mid-question: {status} {record.get('error')!r}; the next: {after}, {right}")
    wide = {**long, "gpus": 2**20, "batch": 2**22, "backend": "exhaustive", "all_plans": True}
    status, record = asked("search", wide)
    after, answer = asked("estimate", {**SIZED, "plan": "tp=4"})
    print(f"a wide question: {status} {str(record.get('error'))[:100]!r}; the next: {after}")
    return int(not right) + int(after != 200)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=300)
    parser.add_argument("--memory-limit", default="1GiB")
    args = parser.parse_args()
    faults = processes_alone(args.examples)
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        words = ["serve", "--port", str(PORT), "--workers", "1", "--time-limit", "10"]
        words += ["--memory-limit", args.memory_limit]
        server = subprocess.Popen([sys.executable, "-m", "plan3d", *words], stderr=log)
        try:
            for _ in range(600):
                try:
                    socket.create_connection(("127.0.0.1", PORT)).close()
                    break
                except OSError:
                    time.sleep(0.1)
            faults += server_asked(args.examples, Path(log.name))
            faults += ended_questions(server.pid)
        finally:
            server.terminate()
            faults += server.wait() != 0
    return int(faults > 0)


if __name__ == "__main__":
    raise SystemExit(main())
