"""Short and commercial names of machines: which shipped profile each means."""

from __future__ import annotations

import re

from ..base.errors import did_you_mean
from .leaves import is_path, problem

ALIASES = {
    "a100-pcie-40gb": ("a100-40gb-pcie",),
    "a100-pcie-80gb": ("a100-80gb-pcie", "a100-pcie"),
    "a100-40gb-sxm": ("a100-40gb", "a100-sxm4-40gb", "a100-sxm-40gb"),
    "a100-80gb-sxm": ("a100-80gb", "a100-sxm4-80gb", "a100-sxm-80gb"),
    "a800-80gb": ("a800", "a800-sxm", "a800-80gb-sxm"),
    "b200": ("b200-sxm", "b200-180gb"),
    "b300": ("b300-sxm", "b300-288gb"),
    "gb200": ("gb200-nvl72",),
    "gb300": ("gb300-nvl72",),
    "gh200-96gb": ("gh200",),
    "h20": ("h20-sxm", "h20-96gb"),
    "h100-96gb": ("h100-95gb", "h100-96gb-sxm", "h100-96gb-hbm2e"),
    "h100-nvl": ("h100-94gb", "h100-nvl-94gb"),
    "h100-pcie": ("h100-80gb-pcie", "h100-pcie-80gb"),
    "h100-sxm": ("h100", "h100-80gb", "h100-sxm5", "h100-80gb-sxm", "h100-80gb-hbm3"),
    "h200-sxm": ("h200", "h200-141gb", "h200-sxm5"),
    "h800-sxm": ("h800", "h800-80gb"),
    "mi250x-gcd": ("mi250x",),
    "mi300x": ("mi300x-192gb",),
    "mi325x": ("mi325x-256gb",),
    "rtx-3090": ("3090",),
    "rtx-4090": ("4090",),
    "rtx-5090": ("5090",),
    "rtx-6000-ada": ("6000-ada", "rtx-6000-ada-generation"),
    "rtx-a6000": ("a6000",),
    "rtx-pro-6000": ("pro-6000", "rtx-pro-6000-blackwell", "rtx-6000-pro"),
    "v100-16gb-sxm": ("v100-16gb", "v100-sxm2-16gb"),
    "v100-32gb-sxm": ("v100-32gb", "v100-sxm2-32gb"),
}
"""Further names of each profile."""
SEVERAL = {
    "a100": ("a100-40gb-sxm", "a100-80gb-sxm", "a100-pcie-40gb", "a100-pcie-80gb"),
    "a100-sxm": ("a100-40gb-sxm", "a100-80gb-sxm"),
    "v100": ("v100-16gb-sxm", "v100-32gb-sxm"),
    "rtx-6000": ("rtx-6000-ada", "rtx-a6000", "rtx-pro-6000"),
    "6000": ("rtx-6000-ada", "rtx-a6000", "rtx-pro-6000"),
}
"""Names that may mean several profiles."""
_MAKERS = re.compile(r"^(nvidia|amd|geforce|instinct|tesla)")


def profile_of(name: str, known: tuple[str, ...]) -> str:
    """The shipped profile that a name means, whatever its case, hyphens, spaces and maker; the name
    itself where it is a path or means none. InputError where it may mean several."""
    if name in known or is_path(name):
        return name
    plain = _plain(name)
    several = {_plain(short): profiles for short, profiles in SEVERAL.items()}
    if plain in several:
        raise problem(name, f"means several profiles; name one: {', '.join(several[plain])}")
    for profile in known:
        if plain in map(_plain, (profile, *ALIASES.get(profile, ()))):
            return profile
    return name


def _plain(name: str) -> str:
    """A name without case, separators and makers."""
    plain = re.sub(r"[\s_-]+", "", name.lower())
    while (shorter := _MAKERS.sub("", plain)) != plain:
        plain = shorter
    return plain


def nearest(name: str, known: tuple[str, ...]) -> str:
    """The end of an error line about a name: the nearest profiles and aliases."""
    aliases = [alias for names in ALIASES.values() for alias in names]
    near = did_you_mean(name, [*known, *aliases])
    return near if near.endswith("?") else did_you_mean(name, known)
