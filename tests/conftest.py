"""What every test starts from."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import settings

# As plan3d.__main__ has it: threads of small products wait for each other longer than they work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
from plan3d.search.whatif import sweep

# A shell that starts the suite in the background leaves interrupts ignored, by every child as well.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Few examples of each property in every run, many in one that asks: --hypothesis-profile=thorough.
settings.register_profile("quick", max_examples=8, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile("quick")


def pytest_collection_finish() -> None:
    """What is collected stays: garbage is looked for among the rest."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Once, as a fixture of every test would take a tenth of what a small test does."""
    # Text is as wide as in a pipe, whatever terminal runs the tests.
    os.environ.pop("COLUMNS", None)
    # Messages of argparse are the English ones, for which no catalogue is looked for.
    os.environ["LANGUAGE"] = "C"
    # The last search of a test is not that of the user.
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    # Points of a sweep are run here unless a test starts processes, which takes seconds.
    sweep.WORTH_A_POOL = float("inf")
