"""Options of a search: what is asked of it, and the limits at which it ends.

Every search takes them as they are, so that a limit is decided in one place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plan3d.simulator.base.errors import InputError

Progress = Callable[[int], None]
"""Called now and then with the number of plans costed so far."""


class TimeIsUp(Exception):
    """The deadline passed while something was worked on: that is as open as it was before."""


@dataclass(frozen=True)
class Deadline:
    """The moment at which a search has to end."""

    at: float = np.inf
    """In seconds of time.perf_counter."""

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """The moment so many seconds from now; None is never. InputError for 0 or less."""
        if seconds is None:
            return cls()
        if not seconds > 0:
            raise InputError(f"time_limit must be above 0, not {seconds}")
        return cls(time.perf_counter() + seconds)

    @property
    def seconds_left(self) -> float:
        """Seconds until then, 0 once it passed."""
        return max(self.at - time.perf_counter(), 0.0)

    @property
    def passed(self) -> bool:
        return not self.seconds_left

    def check(self) -> None:
        """Raise TimeIsUp once it passed: what takes long calls this now and then."""
        if self.passed:
            raise TimeIsUp


NEVER = Deadline()


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What is asked of a search."""

    objective: str = "step-time"
    limit: float
    """Bytes a plan may use on a GPU."""
    safe_limit: float | None = None
    """The same of a plan that surely fits, the fastest of which is kept beside the ranking; None
    where none is asked for."""
    top: int = 10
    """Plans to rank."""
    families: bool = False
    """Whether to rank the simplest plan of each family, whatever `top`, and not every plan."""
    frontier: bool = False
    """Whether to keep the plans that no other beats in both time and memory."""
    budget: int | None = None
    """Plans that may be costed."""
    deadline: Deadline = NEVER
    progress: Progress | None = None

    @property
    def largest_limit(self) -> float:
        """Bytes that a plan of either kind may use."""
        return max(self.limit, self.safe_limit or 0.0)

    def ended(self, costed: int) -> bool:
        """Whether a limit is met, once so many plans are costed."""
        return self.deadline.passed or (self.budget is not None and costed >= self.budget)

    def tell(self, costed: int) -> None:
        """Report progress."""
        if self.progress:
            self.progress(costed)
