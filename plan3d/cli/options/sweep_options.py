"""Options of the verb `sweep`."""

from __future__ import annotations

from .parser import Option, words

SWEEP = ("sweep",)

SWEEP_OPTIONS = (
    Option(
        flag="--model",
        value="M",
        verbs=SWEEP,
        completes="model",
        help="preset or config.json, unless --over varies it",
    ),
    Option(
        flag="--cluster",
        value="C",
        verbs=SWEEP,
        completes="cluster",
        help="hardware profile or path of a TOML file, unless --over varies it",
    ),
    Option(
        flag="--over",
        value="F=V1,V2",
        read=words,
        many=True,
        verbs=SWEEP,
        help="vary F, a task option or plan field; once or twice",
    ),
    Option(
        flag="--plan",
        value="PLAN",
        read=words,
        completes="file",
        verbs=SWEEP,
        help="this plan at every point instead of the best; dp fills the GPUs",
    ),
    Option(flag="--best", verbs=SWEEP, help="the best plan at every point (default)"),
    Option(flag="--weak", verbs=SWEEP, help="the global batch grows with the GPUs"),
    Option(
        flag="--scheduler",
        value="ADDRESS",
        verbs=SWEEP,
        help="run the points on the Dask cluster at this address (needs plan3d[dask])",
    ),
    Option(flag="--resume", verbs=SWEEP, help="keep the points that --csv FILE holds already"),
    Option(
        flag="--csv",
        value="FILE",
        completes="file",
        verbs=SWEEP,
        help="write every point here as it finishes",
    ),
    Option(
        flag="--plot",
        value="FILE",
        completes="file",
        verbs=SWEEP,
        help="draw the curves: .png, .svg or .pdf",
    ),
)
"""Options of `sweep` besides those of a task, a search and training."""
