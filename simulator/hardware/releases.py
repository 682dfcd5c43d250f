"""Releases of training stacks: what those before the one that a profile describes lack.

`--software megatron-core@0.13` is the profile with the fields of that release. Off by default in
every release are grouped products, fused permutation, fused routers and CUDA graphs, and tokens are
dispatched by all-gather (transformer_config.py: moe_grouped_gemm, moe_permute_fusion,
moe_router_fusion, cuda_graph_impl, moe_token_dispatcher_type): recipes set the first two and
all-to-all or DeepEP, and the profile is of such recipes.
"""

from __future__ import annotations

from typing import Any

from ..base.errors import InputError
from .software import ENDS

_NO_MUON = {"muon_stage": -1}
_NO_OVERLAP = {**_NO_MUON, "expert_overlap": False}
_NO_MODULES = {**_NO_OVERLAP, "expert_exchange": False, "selective": ()}
_EAGER_PERMUTATION = {**_NO_MODULES, "fused_permutation": False}
_CORE: dict[str, dict[str, Any]] = {
    "0.8": _EAGER_PERMUTATION,
    "0.9": _EAGER_PERMUTATION,
    "0.10": _EAGER_PERMUTATION,
    "0.11": _NO_MODULES,
    "0.12": _NO_OVERLAP,
    "0.13": _NO_OVERLAP,
    "0.14": _NO_MUON,
    "0.15": {},
    "0.16": {},
    "0.17": {},
    "0.18": {},
    "0.19": {},
}
"""Megatron-Core at its tags core_v0.8.0 to core_v0.19.0, transformer_config.py: moe_permute_fusion
since 0.11, recompute_modules since 0.12; model_parallel_config.py: the overlap of expert exchanges
(overlap_moe_expert_parallel_comm) since 0.14; CHANGELOG.md: DeepEP since 0.12, Muon since 0.15."""
_TITAN: dict[str, dict[str, Any]] = {"0.1": {"gathered_ends": ENDS}, "0.2": {}}
"""torchtitan at its tags v0.1.0 and v0.2.0, models/llama3/infra/parallelize.py (apply_fsdp): ends
are units of their own since 83e6941 (28 July 2025)."""
RELEASES: dict[str, dict[str, dict[str, Any]]] = {"megatron-core": _CORE, "torchtitan": _TITAN}
"""Fields of Software by stack and release; none where the profile describes it."""


def fields_of_release(stack: str, release: str) -> dict[str, Any]:
    """What a release of a stack has instead of its profile; InputError with the nearest known.

    >>> fields_of_release("megatron-core", "0.14.3")
    {'muon_stage': -1}
    """
    known = RELEASES.get(stack)
    if known is None:
        names = ", ".join(f"{name}@RELEASE" for name in RELEASES)
        raise InputError(f"{stack}@{release}: no releases of {stack} are known; known: {names}")
    numbers = release.removeprefix("v").split(".")
    if not 2 <= len(numbers) <= 3 or not all(n.isdecimal() and len(n) < 5 for n in numbers):
        raise InputError(f"{stack}@{release}: a release is written as {next(iter(known))}")
    short = ".".join(numbers[:2])
    if short not in known:
        major, minor = map(int, numbers[:2])

        def distance(name: str) -> tuple[int, int]:
            other = [int(n) for n in name.split(".")]
            return abs(other[0] - major), abs(other[1] - minor)

        nearest = min(known, key=distance) if not major else list(known)[-1]
        raise InputError(f"{stack}@{release} is no known release; nearest: {stack}@{nearest}")
    return known[short]
