"""Every option in one table, shared by the verbs; it feeds parser, help and completion.

Nothing here imports numpy, so that help is instant.
"""

from __future__ import annotations

from plan3d.simulator.base import units

from .adapter_options import ADAPTER_OPTIONS
from .framework_options import FRAMEWORK_OPTIONS
from .goodput_options import GOODPUT_OPTIONS
from .launch_options import LAUNCH_OPTIONS
from .parser import Option, dollars, positive, seconds, training_tokens, whole, words
from .sweep_options import SWEEP_OPTIONS
from .system_options import SYSTEM_OPTIONS
from .task_options import (
    CHOOSING,
    COMPARE,
    EVERY,
    ONE,
    RANKING,
    SEARCH,
    SPACE,
    TASK_OPTIONS,
    TEXTBOOK,
    TRAINING,
    VALIDATE,
    VERBOSE,
)
from .tune_options import TUNE_OPTIONS

OPTIONS = (
    *TASK_OPTIONS,
    Option(
        flag="--plan",
        value="PLAN",
        read=words,
        completes="file",
        verbs=ONE,
        help="'tp=8 pp=8 recompute=full', a file, or result.json#3 (third plan of a saved search)",
    ),
    Option(
        flag="--fix",
        value="F=V",
        read=words,
        many=True,
        verbs=CHOOSING,
        help="keep plan field F at V; repeatable (fields: --help-fields)",
    ),
    Option(
        flag="--choose",
        value="F=V1,V2",
        read=words,
        many=True,
        verbs=CHOOSING,
        help="try only these values of plan field F; repeatable",
    ),
    Option(
        flag="--memory-headroom",
        value="SHARE",
        read=units.parse_fraction,
        verbs=CHOOSING,
        help="of a GPU's memory to leave free (default: plans fit at 95%%)",
    ),
    Option(
        flag="--objective",
        value="O",
        verbs=RANKING,
        help="step-time (default), memory, cost or time-to-accuracy",
    ),
    Option(
        flag="--risk",
        value="Q",
        read=positive,
        verbs=SEARCH,
        help="rank the 300 best plans by this quantile of the forecast step instead of its "
        "expectation: 0.9 is what nine of ten such runs stay below",
    ),
    Option(
        flag="--backend",
        value="B",
        verbs=SEARCH,
        help="exhaustive (default), branch-and-bound, dynamic-programming, integer-programming, "
        "random, annealing, spsa, cma-es, reinforcement-learning or pretrained-policy",
    ),
    Option(
        flag="--second-pool",
        value="C:N",
        verbs=(*SEARCH, "export"),
        help="N GPUs of another cluster, such as a100-80gb-sxm:64: stages in either, by a dynamic "
        "program; of an export those of the last stages",
    ),
    Option(
        flag="--space",
        value="SPACE",
        verbs=SPACE,
        help="uniform (default): stages all alike; staged: each with its own layers, tp, dp, zero "
        "and recompute, for backends that draw at random",
    ),
    Option(
        flag="--backends",
        value="B1,B2",
        verbs=COMPARE,
        help="what to compare (default: all backends that draw at random)",
    ),
    Option(
        flag="--top",
        value="K",
        read=whole,
        verbs=SEARCH,
        help="plans ranked (10; the first screen shows 5)",
    ),
    Option(
        flag="--all-plans",
        verbs=SEARCH,
        help="rank every plan of the space on its own, not the simplest of each family that is as "
        "fast; none is changed in the fields that the search keeps fixed",
    ),
    Option(flag="--pareto", verbs=SEARCH, help="also show the frontier of time against memory"),
    Option(
        flag="--budget",
        value="N",
        read=whole,
        verbs=SPACE,
        help="stop after N plans were costed (default 2000 where plans are drawn at random)",
    ),
    Option(flag="--time-limit", value="S", read=seconds, verbs=SEARCH, help="stop after S seconds"),
    Option(
        flag="--seed",
        value="K",
        read=whole,
        verbs=SEARCH,
        help="of backends that draw at random (0); the same seed gives the same plans",
    ),
    Option(
        flag="--seeds",
        value="K",
        read=whole,
        verbs=COMPARE,
        help="runs of each backend, with seeds 0, 1, ... (5)",
    ),
    Option(
        flag="--plot",
        value="FILE",
        completes="file",
        verbs=COMPARE,
        help="draw regret against plans costed: .png, .svg or .pdf",
    ),
    Option(
        flag="--trace",
        value="FILE",
        completes="file",
        verbs=("timeline",),
        help="write a trace for ui.perfetto.dev",
    ),
    Option(
        flag="--gantt",
        value="FILE",
        completes="file",
        verbs=("timeline",),
        help="draw the timeline: .png, .svg or .pdf",
    ),
    Option(
        flag="--measured-step",
        value="S",
        read=seconds,
        verbs=("explain",),
        help="its step as you timed it, 4.2 or 4200ms: what it says of the constants",
    ),
    Option(
        flag="--against",
        value="PLAN",
        read=words,
        verbs=("explain",),
        help="another plan, or one change of this plan: 'tp=4'",
    ),
    Option(
        flag="--plot",
        value="FILE",
        completes="file",
        verbs=("explain",),
        help="draw where time and memory go: .png, .svg or .pdf",
    ),
    Option(
        flag="--ranks",
        value="FILE",
        completes="file",
        verbs=("explain",),
        help="draw how its ranks lie on nodes and GPUs: .png, .svg or .pdf",
    ),
    Option(
        flag="--tokens",
        value="T",
        verbs=(*TRAINING, *TEXTBOOK),
        read=training_tokens,
        help="training tokens, '300B' or 'chinchilla' (20 a parameter): adds time, energy, cost",
    ),
    Option(
        flag="--took",
        value="TIME",
        verbs=TEXTBOOK,
        read=seconds,
        help="what a run of these tokens took, such as 34days: adds its utilisation",
    ),
    Option(
        flag="--full-recompute",
        verbs=TEXTBOOK,
        help="count 8 T N, which full recompute takes, where 6 T N is usual",
    ),
    Option(
        flag="--partition",
        value="N",
        verbs=TEXTBOOK,
        read=whole,
        help="instead: the cheapest way to split each product of a layer over N ranks",
    ),
    Option(
        flag="--widths",
        value="H1,H2,..",
        verbs=TEXTBOOK,
        help="with --partition and no model: products of these widths, in ring units",
    ),
    Option(
        flag="--price",
        value="P",
        read=positive,
        verbs=TRAINING,
        help="USD per GPU-hour; with --tokens adds cost",
    ),
    Option(
        flag="--days",
        value="D",
        read=positive,
        verbs=SEARCH,
        help="instead of --gpus: the fewest GPUs that train --tokens in D days",
    ),
    Option(
        flag="--budget-usd",
        value="X",
        read=dollars,
        verbs=SEARCH,
        help="instead of --gpus: the GPUs that train --tokens soonest for X USD, 1.3M, at --price",
    ),
    *GOODPUT_OPTIONS,
    Option(
        flag="--csv", value="FILE", completes="file", verbs=SEARCH, help="also write the plans here"
    ),
    Option(
        flag="--plot",
        value="FILE",
        completes="file",
        verbs=SEARCH,
        help="draw the frontier of time against memory: .png, .svg or .pdf",
    ),
    Option(
        flag="--report",
        value="FILE",
        completes="file",
        verbs=SEARCH,
        help="write the answer as one HTML page that needs no network",
    ),
    Option(flag="--runs", value="FILE", completes="file", verbs=VALIDATE, help="CSV of own runs"),
    Option(flag="--source", value="NAME", verbs=VALIDATE, help="only the rows of this source"),
    Option(
        flag="--leave-origin-out",
        verbs=VALIDATE,
        help="score runs as those of a stack nobody has timed: nothing learned from their origin",
    ),
    Option(
        flag="--origins",
        value="FILE",
        completes="file",
        verbs=VALIDATE,
        help="CSV of source,origin: which sources of --runs have one origin",
    ),
    Option(
        flag="--population",
        value="NAME",
        verbs=VALIDATE,
        help="which units to score: core (dense, 16 bits, frozen) or all (default)",
    ),
    Option(
        flag="--steps",
        value="N1,N2",
        verbs=VALIDATE,
        help="score also after N random steps of each unit are known: 0,3,5",
    ),
    Option(
        flag="--prior-out",
        value="FILE",
        completes="file",
        verbs=VALIDATE,
        help="also write the priors that all origins teach (JSON), as the package ships them",
    ),
    Option(
        flag="--cross-validate",
        verbs=VALIDATE,
        help="fit scalars of the profiles and predict the runs held out (minutes)",
    ),
    Option(
        flag="--csv",
        value="FILE",
        completes="file",
        verbs=VALIDATE,
        help="also write every row here, measured and predicted",
    ),
    Option(
        flag="--plot",
        value="FILE",
        completes="file",
        verbs=VALIDATE,
        help="also draw predicted against measured: .png, .pdf or .svg",
    ),
    *ADAPTER_OPTIONS,
    *FRAMEWORK_OPTIONS,
    *SYSTEM_OPTIONS,
    *SWEEP_OPTIONS,
    *TUNE_OPTIONS,
    *LAUNCH_OPTIONS,
    VERBOSE,
    Option(flag="--json", verbs=EVERY, help="one JSON object on stdout, SI units"),
    Option(flag="--quiet", verbs=EVERY, help="no progress and no warnings"),
)
"""Every option of every verb, in the order of help."""
