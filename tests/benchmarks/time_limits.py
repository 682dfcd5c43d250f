"""CPU seconds that exact searches of a model of a thousand layers take past their time limit.

python tests/benchmarks/time_limits.py
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from plan3d.search.rank_plans import Ranking, rank_plans
from tests.search.test_time_limits import FEW_CHOICES, PROGRAMS, thousand_layers

SECONDS = 1.0


def main() -> None:
    thousand_layers()
    for backend in PROGRAMS:
        for name, choose in (("all", {}), ("unequal", {"pp": [3]}), ("few", FEW_CHOICES)):
            began = time.process_time()
            ranking = Ranking(backend=backend, choose=choose, time_limit=SECONDS)
            complete = rank_plans(thousand_layers(), ranking).complete
            past = time.process_time() - began - SECONDS
            print(f"{backend:20} {name:8} {past:6.2f} s past the limit, complete: {complete}")


if __name__ == "__main__":
    main()
