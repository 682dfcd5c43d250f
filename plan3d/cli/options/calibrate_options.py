"""Options of the sub-verbs of `plan3d calibrate`."""

from __future__ import annotations

from dataclasses import replace

from .options import OPTIONS
from .parser import Option, whole
from .task_options import VERBOSE

_STEP = (
    "--model",
    "--plan",
    "--sequence",
    "--global-batch",
    "--precision",
    "--optimizer",
    "--software",
)
"""What describes a measured training step; sizes also complete a log."""
_KNOWN = ("--gpus", "--nodes", "--sequence", "--global-batch")
IMAGES = ("png", "pdf", "svg")

OWN = (
    Option(
        flag="--out",
        value="FILE",
        completes="file",
        verbs=("import",),
        help="CSV to write (default: stdout)",
    ),
    Option(
        flag="--out",
        value="FILE",
        completes="file",
        verbs=("fit",),
        help="profile to write, a .toml; without it only the errors are printed",
    ),
    Option(
        flag="--link",
        value="LINK",
        verbs=("fit",),
        help="also fit its bandwidth to large messages, where the base's is another machine's: "
        "fast, network, or both (fast,network)",
    ),
    Option(
        flag="--base",
        value="PROFILE",
        required=True,
        completes="cluster",
        verbs=("fit",),
        help="profile whose other numbers are kept",
    ),
    Option(
        flag="--profile",
        value="PROFILE",
        required=True,
        completes="cluster",
        verbs=("show",),
        help="profile to compare with",
    ),
    Option(
        flag="--op",
        value="OP",
        verbs=("import", "fit", "show"),
        help="collective of nccl-tests output that does not name it",
    ),
    Option(
        flag="--gpu",
        value="NAME",
        verbs=("import", "fit", "show"),
        help="GPU: written into imported rows, or the one whose rows are used",
    ),
    Option(
        flag="--plot",
        value="FILE",
        completes="file",
        verbs=("show",),
        help=f"also draw it: {', '.join('.' + kind for kind in IMAGES)}",
    ),
    Option(
        flag="--csv",
        value="FILE",
        completes="file",
        verbs=("show",),
        help="also write every row, what is predicted of it beside what was measured",
    ),
    Option(flag="--gpus", value="N", read=whole, verbs=("import", "fit"), help="GPUs of the run"),
    Option(flag="--nodes", value="N", read=whole, verbs=("import", "fit"), help="nodes of it"),
    replace(VERBOSE, verbs=("fit", "show")),
    Option(flag="--json", verbs=("import", "fit", "show"), help="one JSON object, SI units"),
    Option(flag="--quiet", verbs=("import", "fit", "show"), help="no warnings"),
)


def options(subverb: str) -> list[Option]:
    """Options of a sub-verb; those that describe a run are the ones of the other verbs."""
    shared = {"fit": _STEP, "import": _KNOWN, "show": ("--software",)}.get(subverb, ())
    own = [option for option in OWN if subverb in option.verbs]
    named = {option.flag for option in own}
    estimate = [option for option in OPTIONS if "estimate" in option.verbs]
    borrowed = [o for o in estimate if o.flag in shared and o.flag not in named]
    return [*own, *(replace(option, required=False) for option in borrowed)]
