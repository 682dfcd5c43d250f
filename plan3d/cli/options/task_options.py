"""Options that say what is asked: model, cluster, task, and numbers of the machine.

Nothing here imports numpy, so that help is instant.
"""

from __future__ import annotations

from plan3d.simulator.base import units
from plan3d.simulator.hardware.precision import CODES, Optimizer
from plan3d.simulator.hardware.software import DEFAULT_SOFTWARE, FINE_TUNING_SOFTWARE

from .launch_options import LAUNCH
from .parser import Option, percents, positive, whole, words
from .sweep_options import SWEEP
from .tune_options import TUNE

OPTIMIZERS = [one.name.lower().replace("_", "-") for one in Optimizer]

ASKED = ("search", "estimate", "timeline", "explain", "compare", *TUNE)
"""Verbs that need a model and a cluster."""
TASK = (*ASKED, *SWEEP)
ONE = ("estimate", "timeline", "explain")
"""Verbs about one plan."""
ASKING = (*TASK, *LAUNCH)
"""Verbs about a task."""
PREDICTING = (*TASK, "import")
"""Verbs that a number of the machine matters to."""
SEARCH = ("search",)
CHOOSING = ("search", "compare", *SWEEP, *TUNE)
"""Verbs about a space of plans."""
RANKING = (*SEARCH, *SWEEP)
"""Verbs that rank plans by more than one thing."""
TRAINING = ("search", "estimate", *SWEEP)
COMPARE = ("compare",)
SPACE = ("search", "compare")
REACHING = ("search", "estimate", "compare")
"""Verbs that may ask for an accuracy."""
VALIDATE = ("validate",)
FITS = ("fits",)
TEXTBOOK = ("textbook",)
ALONE = (*FITS, *TEXTBOOK)
"""Verbs about a model on a machine, without a plan."""
LISTING = ("models", "clusters", "software", "systems")
EVERY = (*ASKING, *ALONE, "validate", *LISTING)

VERBOSE = Option(
    flag="--verbose",
    short="-v",
    verbs=(*EVERY, "help"),
    help="everything: all tables, reasons and assumptions",
)
TASK_OPTIONS = (
    Option(
        flag="--model",
        value="M",
        verbs=(*ASKED, *ALONE),
        completes="model",
        help="preset (see 'plan3d models') or path of a Hugging Face config.json",
    ),
    Option(
        flag="--cluster",
        value="C",
        verbs=(*ASKED, *ALONE),
        completes="cluster",
        help="hardware profile (see 'plan3d clusters') or path of a TOML file",
    ),
    Option(
        flag="--gpus", value="N", read=whole, verbs=(*ASKING, *ALONE), help="GPUs of the cluster"
    ),
    Option(flag="--nodes", value="N", read=whole, verbs=ASKING, help="nodes of the cluster"),
    Option(
        flag="--gpus-per-node",
        value="N",
        read=whole,
        verbs=ASKING,
        help="GPUs a node (default: the profile's)",
    ),
    Option(
        flag="--gpus-per-domain",
        value="N",
        read=whole,
        verbs=ASKING,
        help="GPUs that the job fills of a rack (default: all, groups aligned): 64 of 72",
    ),
    Option(
        flag="--sequence",
        value="S",
        read=whole,
        verbs=(*ASKING, *ALONE),
        help="tokens of one sequence (default: the model's)",
    ),
    Option(
        flag="--documents",
        value="L1,L2",
        verbs=tuple(verb for verb in TASK if verb not in TUNE),
        help="lengths of the documents that are packed into sequences, or a file of them: "
        "attention stays inside each",
    ),
    Option(
        flag="--global-batch",
        value="B",
        read=whole,
        verbs=(*ASKING, *ALONE),
        help="sequences of one step (default: the published ones, at most 65,536 tokens a GPU)",
    ),
    Option(
        flag="--global-batch-tokens",
        value="T",
        read=units.parse_count,
        verbs=ASKING,
        help="the same in tokens; a multiple of the sequence",
    ),
    Option(
        flag="--precision",
        value="P",
        verbs=(*TASK, "export", *ALONE),
        help=f"recipe of number formats, default bf16: {', '.join(CODES)}",
    ),
    Option(
        flag="--optimizer",
        value="O",
        verbs=(*TASK, "export", *FITS),
        help=f"how weights are updated, default adam: {', '.join(OPTIMIZERS)}",
    ),
    *(
        Option(
            flag=f"--offload-{what}",
            value="PERCENT",
            alone="100",
            read=percents,
            verbs=(*TASK, "export"),
            help=f"of {where} (100 when left out); a search takes several, or auto",
        )
        for what, where in (
            ("optimizer", "the optimizer on the host's CPUs"),
            ("parameters", "the weights in host memory, with ZeRO 3"),
            ("activations", "the kept activations in host memory"),
        )
    ),
    Option(
        flag="--tp-grid",
        value="G",
        verbs=(*TASK, "export"),
        help="grid of the tensor ranks: 1d (default), 4x4 (2d), 4x2x2 (3d: rows, columns, depth), "
        "2.5d:4x4x2; auto in a search tries all",
    ),
    Option(
        flag="--layers-per-stage",
        value="LAYERS",
        read=words,
        verbs=(*TASK, "export"),
        help="layers of every stage: 11,12,12,11",
    ),
    Option(
        flag="--pipeline-model-parallel-layout",
        value="LAYOUT",
        read=words,
        verbs=(*TASK, "export"),
        help="the same as Megatron-LM writes it: 'Et*3|(tt|)*29|m|L'",
    ),
    Option(
        flag="--software",
        value="PROFILE",
        verbs=(*ASKING, *ALONE),
        completes="software",
        help=f"training stack (see 'plan3d software') or path of a TOML file, default "
        f"{DEFAULT_SOFTWARE}, of adapters {FINE_TUNING_SOFTWARE}",
    ),
    Option(
        flag="--calibration",
        value="FILE",
        verbs=(*(verb for verb in TASK if verb not in TUNE), *VALIDATE),
        completes="file",
        help="timed steps of the stack on this machine, from 'plan3d calibrate steps'",
    ),
    Option(
        flag="--inter-node-bandwidth",
        value="RATE",
        verbs=PREDICTING,
        read=units.parse_bandwidth,
        help="of the network, for one GPU in one direction, such as 200Gb/s",
    ),
    Option(
        flag="--nic-gpus",
        value="N",
        verbs=PREDICTING,
        read=whole,
        help="GPUs that share a network adapter, which one of them may use alone",
    ),
    Option(
        flag="--intra-node-bandwidth",
        value="RATE",
        verbs=PREDICTING,
        read=units.parse_bandwidth,
        help="of NVLink or xGMI, for one GPU in one direction, such as 300GB/s",
    ),
    Option(
        flag="--network",
        value="NAME",
        verbs=PREDICTING,
        help="fabric with constants of its own: efa (AWS) or omni-path",
    ),
    Option(
        flag="--network-latency",
        value="TIME",
        verbs=PREDICTING,
        read=units.parse_seconds,
        help="to cross the network once, such as 5us",
    ),
    Option(
        flag="--power-limit",
        value="W",
        verbs=PREDICTING,
        read=positive,
        help="watts of a GPU, below those of its board: what long GEMMs sustain falls with it",
    ),
    Option(
        flag="--expert-imbalance",
        value="X",
        verbs=PREDICTING,
        read=positive,
        help="tokens of the busiest rank of experts over their mean: 1 (default) or more",
    ),
    Option(
        flag="--latency-per-node",
        value="TIME",
        verbs=PREDICTING,
        read=units.parse_seconds,
        help="of each further node of a collective",
    ),
    Option(
        flag="--memory",
        value="SIZE",
        read=units.parse_bytes,
        verbs=(*PREDICTING, *FITS),
        help="usable of one GPU: '80 GiB'",
    ),
    Option(
        flag="--graph",
        value="FILE",
        completes="file",
        help="graph of the replicas for topology=given: lines of two node numbers",
    ),
    Option(
        flag="--accuracy",
        value="E",
        read=positive,
        verbs=REACHING,
        help="squared gradient norm to reach, where (loss to go) x smoothness = 1; with "
        "--gradient-noise adds iterations and time to accuracy",
    ),
    Option(
        flag="--gradient-noise",
        value="V",
        read=positive,
        verbs=REACHING,
        help="variance of the gradient of one sequence, in the units of --accuracy",
    ),
)
