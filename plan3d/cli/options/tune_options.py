"""Options of the verb `tune`."""

from __future__ import annotations

from plan3d.simulator.base import units

from .parser import Option, whole, words

TUNE = ("tune",)

TUNE_OPTIONS = (
    Option(
        flag="--logs",
        value="DIR",
        required=True,
        completes="file",
        verbs=TUNE,
        help="folder of the session: launch files, their logs, and what was learned",
    ),
    Option(
        flag="--next",
        value="N",
        read=whole,
        default=3,
        verbs=TUNE,
        help="runs to suggest, or to start with --launch (3)",
    ),
    Option(
        flag="--launch",
        value="COMMAND",
        read=words,
        verbs=TUNE,
        help="start each run with this command, no shell in between, one at a time: "
        "'bash start.sh {script}'",
    ),
    Option(
        flag="--worth",
        value="SHARE",
        read=units.parse_fraction,
        verbs=TUNE,
        help="stop when one more run is expected to gain less of a step (default 2%%)",
    ),
)
