"""Settings of the server: where it listens, and the limits of a question."""

from __future__ import annotations

import os
from dataclasses import dataclass

HOST, PORT = "127.0.0.1", 8303
NO_MEMORY = 71
"""Exit code of a question that needs more memory than a process may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `plan3d serve` is told."""

    host: str = HOST
    port: int = PORT
    workers: int = min(4, os.cpu_count() or 1)
    """Processes that compute, each one question at a time."""
    time_limit: float = 60.0
    """Seconds that a question may be computed."""
    memory_limit: float = 4 * 2**30
    """Bytes that a process may allocate."""
    warm_up: bool = True
    """Whether a process computes something before its first question, which is fast then."""
    queue: int = 512
    """Questions that may wait for a process."""
    largest_body: int = 2_500_000
    """Bytes of a request: a launch file of 2 MB and what is around it."""
    body_seconds: float = 10.0
    """Within which the whole request has to arrive."""
    cache: int = 64 * 2**20
    """Bytes of answers that are kept."""
    most_gpus: int = 2**20
    """Of a question."""
