"""Certificates of the programs over stages, against brute force over the set that they print.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \\
        python tests/benchmarks/certificates.py [N [SEED [STACK]]]

Random small questions (INSTANCES by default) of a stack, the default one unless named: one and two
kinds of layers, tight memory, odd batches, numbers of stages that do not divide the GPUs. Every
plan of each backend's set is costed, and the answer must be the best of those that fit, proven.
Prints what is wrong, and how many are; exits with 1 if one is.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import certificate_instances as instances

from plan3d.simulator.hardware.software import DEFAULT_SOFTWARE

INSTANCES = 2000


def main() -> int:
    given = sys.argv[1:]
    count, seed = [*map(int, given[:2]), *(INSTANCES, 0)[len(given) :]]
    stack = given[2] if len(given) > 2 else DEFAULT_SOFTWARE
    wrong: dict[str, int] = {}
    began = time.process_time()
    for number in range(seed, seed + count):
        for name, instance in instances.drawn(number, stack).items():
            fault = instances.fault(instance)
            wrong[name] = wrong.get(name, 0) + bool(fault)
            if fault:
                print(f"{number}, {name}: {fault}", flush=True)
    print("\n| backend | instances | wrong |\n|---|---:|---:|")
    for name, faults in wrong.items():
        print(f"| {name} | {count} | {faults} |")
    print(f"\n{time.process_time() - began:.0f} s of CPU")
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
