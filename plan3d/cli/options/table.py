"""Every option of every verb in one table; it feeds parser, help and completion.

A row is the flag, what its value is called, how that is read, the verbs that take it, and its help.
Nothing here imports numpy, so that help is instant.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from plan3d.simulator.analysis.goodput import CHECKPOINT_SECONDS, LLAMA_3_FAILURES, RESTART_SECONDS
from plan3d.simulator.base.units import (
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_fraction,
    parse_length,
    parse_seconds,
)
from plan3d.simulator.hardware.precision import CODES, Optimizer
from plan3d.simulator.hardware.software import DEFAULT_SOFTWARE, FINE_TUNING_SOFTWARE

from .parser import (
    MEMORY_TIMELINE,
    Option,
    days,
    dollars,
    integer,
    memory,
    memory_or_timeline,
    number,
    percents,
    plan_text,
    price,
    seconds,
    seconds_or_oom,
    share,
    switch,
    text,
    training_tokens,
    watts,
)

PRECISIONS = ", ".join(CODES)
OPTIMIZERS = ", ".join(one.name.lower().replace("_", "-") for one in Optimizer)
VERBOSE_HELP = "everything: all tables, reasons and assumptions"
IMAGES = ("png", "pdf", "svg")
"""Endings of pictures."""

# Verbs, by what they are about.
SEARCH, COMPARE, SWEEP, TUNE = ("search",), ("compare",), ("sweep",), ("tune",)
TIMELINE, EXPLAIN, IMPORT, ESTIMATE = ("timeline",), ("explain",), ("import",), ("estimate",)
VALIDATE, FITS, TEXTBOOK = ("validate",), ("fits",), ("textbook",)
SERVE = ("serve",)
ONE_PLAN = ("estimate", "timeline", "explain")
TASKS_BUT_TUNE = ("search", *ONE_PLAN, "compare", "sweep")
"""Tasks that are asked once, not session by session."""
QUESTIONS = ("search", *ONE_PLAN, "compare", "tune")
"""They need a model and a cluster."""
TASKS = (*QUESTIONS, *SWEEP)
LAUNCH_FILES = ("export", "import")
TASK_FILES = (*TASKS, *LAUNCH_FILES)
PLAN_FIELDS = (*TASKS, "export")
"""They have options for some fields of a plan."""
PREDICTIONS = (*TASKS, *IMPORT)
"""Numbers of the machine matter to them."""
WITHOUT_PLAN = (*FITS, *TEXTBOOK)
"""They are about a model on a machine."""
SIZED_TASKS = (*TASK_FILES, *WITHOUT_PLAN)
"""They take GPUs, sequence and batch."""
SPACES = ("search", "compare", *SWEEP, *TUNE)
"""They are about a space of plans."""
RANKINGS = (*SEARCH, *SWEEP)
TRAINING = ("search", "estimate", *SWEEP)
DURATIONS = ("search", "estimate")
"""They say how long a run takes."""
ACCURACY = ("search", "estimate", "compare", *SWEEP)
BACKEND_VERBS = ("search", "compare")
ALL_VERBS = (*SIZED_TASKS, *VALIDATE, "models", "clusters", "software", "systems")

# fmt: off
TASK_OPTIONS = (
    # The model, the machine and the batch.
    Option("--model", "M", text, (*QUESTIONS, *WITHOUT_PLAN),
        "preset (see 'plan3d models') or path of a Hugging Face config.json"),
    Option("--cluster", "C", text, (*QUESTIONS, *WITHOUT_PLAN),
        "hardware profile ('plan3d clusters'), or a TOML file"),
    Option("--gpus", "N", integer, SIZED_TASKS, "GPUs of the cluster"),
    Option("--nodes", "N", integer, TASK_FILES, "nodes of the cluster"),
    Option("--gpus-per-node", "N", integer, TASK_FILES, "GPUs a node (default: the profile's)"),
    Option("--gpus-per-domain", "N", integer, TASK_FILES,
        "GPUs that the job uses of a rack (default: all, groups aligned), such as 64 of 72"),
    Option("--sequence", "S", parse_length, SIZED_TASKS,
        "tokens of a sequence, or 4k (default: the model's)"),
    Option("--documents", "L1,L2", text, TASKS_BUT_TUNE,
        "lengths of the documents that are packed into sequences, or a file of them: attention "
        "stays inside each"),
    Option("--global-batch", "B", integer, SIZED_TASKS,
        "sequences of one step (default: the published ones, at most 65,536 tokens a GPU)"),
    Option("--global-batch-tokens", "T", parse_count, TASK_FILES,
        "the same in tokens; a multiple of the sequence"),
    Option("--precision", "P", text, (*PLAN_FIELDS, *WITHOUT_PLAN),
        f"recipe of number formats, default bf16: {PRECISIONS}"),
    Option("--optimizer", "O", text, (*PLAN_FIELDS, *FITS),
        f"how weights are updated, default adam: {OPTIMIZERS}"),
    Option("--offload-optimizer", "PERCENT", percents, PLAN_FIELDS,
        "of the optimizer states on the host's CPUs (100 when left out); a search takes several, "
        "or auto", value_if_bare="100"),
    Option("--offload-parameters", "PERCENT", percents, PLAN_FIELDS,
        "of the weights in host memory, with ZeRO 3 (100 when left out); a search takes several, "
        "or auto", value_if_bare="100"),
    Option("--offload-activations", "PERCENT", percents, PLAN_FIELDS,
        "of the stored activations in host memory (100 when left out); a search takes several, or "
        "auto", value_if_bare="100"),
    Option("--tp-grid", "G", text, PLAN_FIELDS,
        "grid of the tensor ranks: 1d (default), 4x4 (2d), 4x2x2 (3d: rows, columns, depth), "
        "2.5d:4x4x2; auto in a search tries all"),
    Option("--layers-per-stage", "LAYERS", plan_text, PLAN_FIELDS,
        "layers of every stage: 11,12,12,11"),
    Option("--pipeline-model-parallel-layout", "LAYOUT", plan_text, PLAN_FIELDS,
        "the same as Megatron-LM writes it: 'Et*3|(tt|)*29|m|L'"),
    Option("--software", "PROFILE", text, SIZED_TASKS,
        "training stack (see 'plan3d software') or path of a TOML file, default "
        f"{DEFAULT_SOFTWARE}, of adapters {FINE_TUNING_SOFTWARE}"),
    Option("--calibration", "FILE", text, (*TASKS_BUT_TUNE, *VALIDATE),
        "timed steps of the stack on this machine, from 'plan3d calibrate steps'"),
    # Numbers of the machine in place of the profile's.
    Option("--inter-node-bandwidth", "RATE", parse_bandwidth, PREDICTIONS,
        "network bandwidth of one GPU in one direction, such as 200Gb/s"),
    Option("--nic-gpus", "N", integer, PREDICTIONS,
        "GPUs that share a network adapter, which one of them may use alone"),
    Option("--site-bandwidth", "RATE", parse_bandwidth, PREDICTIONS,
        "link of a whole site to others, such as 10Gb/s, for plans of several sites"),
    Option("--site-latency", "TIME", parse_seconds, PREDICTIONS,
        "latency of that link, such as 50ms"),
    Option("--intra-node-bandwidth", "RATE", parse_bandwidth, PREDICTIONS,
        "NVLink or xGMI bandwidth of one GPU in one direction, such as 300GB/s"),
    Option("--network", "NAME", text, PREDICTIONS,
        "fabric with constants of its own: efa (AWS) or omni-path"),
    Option("--network-latency", "TIME", parse_seconds, PREDICTIONS,
        "latency of the network, such as 5us"),
    Option("--power-limit", "W", watts, PREDICTIONS,
        "watts of a GPU, below those of its board: what long GEMMs sustain falls with it"),
    Option("--expert-imbalance", "X", number, PREDICTIONS,
        "tokens of the busiest expert rank over their mean: 1 (default) or more"),
    Option("--latency-per-node", "TIME", parse_seconds, PREDICTIONS,
        "latency that each further node adds to a collective"),
    Option("--memory", "SIZE", parse_bytes,
        (*(verb for verb in PREDICTIONS if verb not in EXPLAIN), *FITS),
        "usable memory of one GPU: '80 GiB'"),
    Option("--memory", "SIZE", memory_or_timeline, EXPLAIN,
        "usable memory of one GPU: '80 GiB'; without a size instead: the bytes of each rank "
        "through a step, who holds them, the moment of the peak", value_if_bare=MEMORY_TIMELINE),
    # The accuracy that training must reach.
    Option("--graph", "FILE", text, ("search", "estimate", "timeline", "compare"),
        "graph of the replicas for topology=given: lines of two node numbers"),
    Option("--accuracy", "E", number, ACCURACY,
        "squared gradient norm to reach, where (loss to go) x smoothness = 1; with "
        "--gradient-noise adds iterations and time to accuracy"),
    Option("--gradient-noise", "V", number, ACCURACY,
        "variance of the gradient of one sequence, in the units of --accuracy"),
)
"""What is asked."""

OPTIONS = (
    *TASK_OPTIONS,
    # The plan, or the space of plans and how it is searched.
    Option("--plan", "PLAN", plan_text, (*ONE_PLAN, *TEXTBOOK),
        "'tp=8 pp=8 recompute=full', a file, last#2 (second plan of the last search), or "
        "result.json#3 (third of a saved one)"),
    Option("--fix", "F=V", plan_text, SPACES,
        "keep plan field F (--help-fields) at V; repeatable", repeatable=True),
    Option("--choose", "F=V1,V2", plan_text, SPACES,
        "try only these values of plan field F; repeatable", repeatable=True),
    Option("--memory-headroom", "SHARE", parse_fraction, SPACES,
        "share of a GPU's memory to leave free (default: plans fit with a probability of 50%%)"),
    Option("--objective", "O", text, RANKINGS,
        "step-time (default), memory, cost or time-to-accuracy"),
    Option("--risk", "Q", parse_fraction, SEARCH,
        "rank the 300 best plans that fit with this probability by this quantile of the forecast "
        "step instead of its expectation: 0.9 is what nine of ten such runs stay below"),
    Option("--backend", "B", text, SEARCH,
        "exhaustive (default), branch-and-bound, dynamic-programming, integer-programming, "
        "random, annealing, spsa, cma-es, reinforcement-learning or pretrained-policy"),
    Option("--second-pool", "C:N", text, (*SEARCH, "export"),
        "N GPUs of another cluster, such as a100-80gb-sxm:64: stages in either, by a dynamic "
        "program; of an export those of the last stages"),
    Option("--space", "SPACE", text, BACKEND_VERBS,
        "uniform (default): stages all alike; staged: each with its own layers, tp, dp, zero and "
        "recompute, for backends that draw at random"),
    Option("--backends", "B1,B2", text, COMPARE,
        "what to compare (default: all backends that draw at random)"),
    Option("--top", "K", integer, SEARCH, "plans ranked (10; the first screen shows 4)"),
    switch("--all-plans", SEARCH,
        "list every plan on its own, not the simplest of each family that is as fast; plan 1 is "
        "the same"),
    switch("--pareto", SEARCH, "also show the frontier of time against memory"),
    Option("--budget", "N", integer, BACKEND_VERBS,
        "stop after N plans were costed (default 2000 where plans are drawn at random)"),
    Option("--time-limit", "S", seconds, SEARCH, "stop after S seconds"),
    Option("--seed", "K", integer, SEARCH,
        "of backends that draw at random (0); the same seed gives the same plans"),
    Option("--seeds", "K", integer, COMPARE, "runs of each backend, with seeds 0, 1, ... (5)"),
    # Files and comparisons of an answer about one plan.
    Option("--plot", "FILE", text, COMPARE,
        "draw regret against plans costed, or the step of each system: .png, .svg or .pdf"),
    Option("--trace", "FILE", text, TIMELINE, "write a trace for ui.perfetto.dev"),
    Option("--plot", "FILE", text, TIMELINE, "draw the timeline: .png, .svg or .pdf"),
    Option("--plot", "FILE", text, ESTIMATE, "draw where time and memory go: .png, .svg or .pdf"),
    Option("--measured-step", "S", seconds, EXPLAIN,
        "measured step time, 4.2 or 4200ms: what it says of the constants"),
    Option("--trace", "FILE", text, EXPLAIN,
        "traces of a step (torch profiler; Nsight Systems, .sqlite) of some ranks, or a folder: "
        "parts predicted and measured; with --memory a rank's memory timeline",
        several=True),
    Option("--against", "PLAN", plan_text, EXPLAIN,
        "another plan, or one change of this plan: 'tp=4'"),
    Option("--plot", "FILE", text, EXPLAIN,
        "draw where time and memory go, with --trace also as measured: .png, .svg or .pdf"),
    Option("--tracks", "FILE", text, EXPLAIN,
        "with --trace: write the predicted and the measured step beside each other for "
        "ui.perfetto.dev"),
    Option("--ranks", "FILE", text, EXPLAIN,
        "draw how its ranks lie on nodes and GPUs: .png, .svg or .pdf"),
    # Training to its end, and the textbook's formulas of it.
    Option("--tokens", "T", training_tokens, (*TRAINING, *TEXTBOOK),
        "training tokens, '300B' or 'chinchilla' (20 a parameter): adds time, energy, cost"),
    Option("--took", "TIME", seconds, TEXTBOOK,
        "duration of a run of these tokens, such as 34days: adds its utilisation"),
    switch("--full-recompute", TEXTBOOK,
        "count 8 T N, which full recompute takes, where 6 T N is usual"),
    Option("--units", "UNIT", text, TEXTBOOK, "of bytes: GB (default) or GiB"),
    Option("--partition", "N", integer, TEXTBOOK,
        "instead: the cheapest way to split each product of a layer over N ranks"),
    Option("--widths", "H1,H2,..", text, TEXTBOOK,
        "with --partition and no model: products of these widths, in ring units"),
    Option("--price", "P", price, TRAINING, "USD per GPU-hour; with --tokens adds cost"),
    Option("--days", "D", days, SEARCH,
        "instead of --gpus: the fewest GPUs that train --tokens in D days"),
    Option("--budget-usd", "X", dollars, SEARCH,
        "instead of --gpus: the GPUs that train --tokens soonest for X USD, 1.3M, at --price"),
    Option("--goodput", "SHARE", parse_fraction, DURATIONS,
        "share of a run's time that trains, such as 0.9: days and cost with failures"),
    Option("--failures-per-gpu-day", "X", number, DURATIONS,
        f"instead of --goodput: failures of a GPU in a day (Llama 3: {LLAMA_3_FAILURES:.2g}), "
        "each of which stops the job"),
    Option("--checkpoint-time", "TIME", seconds, DURATIONS,
        f"time that a checkpoint stops training (MegaScale: about {CHECKPOINT_SECONDS:g}s)"),
    Option("--restart-time", "TIME", seconds, DURATIONS,
        f"time from a failure until training resumes (MegaScale: {RESTART_SECONDS:g}s)"),
    # Files of a search.
    Option("--csv", "FILE", text, SEARCH, "also write the plans here"),
    Option("--plot", "FILE", text, SEARCH,
        "draw the frontier of time against memory: .png, .svg or .pdf"),
    Option("--report", "FILE", text, SEARCH,
        "write the answer as one HTML page that needs no network"),
    # Predictions of published runs.
    Option("--runs", "FILE", text, VALIDATE, "CSV of own runs"),
    Option("--source", "NAME", text, VALIDATE, "only the rows of this source"),
    switch("--leave-origin-out", VALIDATE,
        "score runs as those of a stack that is not calibrated: nothing learned from their origin"),
    Option("--origins", "FILE", text, VALIDATE,
        "CSV of source,origin: which sources of --runs have one origin"),
    Option("--population", "NAME", text, VALIDATE,
        "which units to score: core (dense, 16 bits, frozen) or all (default)"),
    Option("--steps", "N1,N2", text, VALIDATE,
        "score also after N random steps of each unit are known: 0,3,5"),
    Option("--prior-out", "FILE", text, VALIDATE,
        "also write the priors that all origins teach (JSON), as the package ships them"),
    switch("--cross-validate", VALIDATE,
        "fit scalars of the profiles and predict the runs held out (minutes)"),
    Option("--csv", "FILE", text, VALIDATE, "also write every row here, measured and predicted"),
    Option("--plot", "FILE", text, VALIDATE,
        "also draw predicted against measured: .png, .pdf or .svg"),
    # Adapters, frameworks and systems.
    Option("--adapter", "KIND", text, TASKS_BUT_TUNE,
        "fine-tune adapters on frozen weights: lora (in 16 bits) or qlora (nf4-dq); default "
        "sequence, batch and software are then those of fine-tuning"),
    Option("--lora-rank", "R", integer, (*TASKS_BUT_TUNE, *FITS), "rank of the adapters (16)"),
    Option("--lora-dropout", "P", share, (*TASKS_BUT_TUNE, *FITS),
        "share of the adapters' inputs that a dropout drops (0); any share takes the same time"),
    Option("--lora-targets", "T1,T2", text, (*TASKS_BUT_TUNE, *FITS),
        "matrices with an adapter: attention (default), all-linear, or q_proj,v_proj ..."),
    Option("--lora-base", "FORMAT", text, (*TASKS_BUT_TUNE, *FITS),
        "format of the frozen matrices: bf16, fp8, int8, nf4, nf4-dq, gptq4 or gptq8"),
    Option("--modules-to-save", "M1,M2", text, (*TASKS_BUT_TUNE, *FITS),
        "modules trained whole beside adapters, as in PEFT: embed_tokens, lm_head"),
    Option("--framework", "F", text,
        ("search", "estimate", "explain", "timeline", "compare", *SWEEP, *TUNE),
        "only plans that it launches, on its stack: megatron, megatron-bridge, torchtitan, "
        "deepspeed or nanotron"),
    Option("--system", "SYSTEM", text, TRAINING,
        "only plans of one training system, a sweep also of several beside each other (see 'plan3d "
        "systems')"),
    Option("--systems", "S1,S2", text, COMPARE,
        "compare training systems instead of backends: names (see 'plan3d systems') or all"),
    # A question over one or two numbers.
    Option("--model", "M", text, SWEEP, "preset or config.json, unless --over varies it"),
    Option("--cluster", "C", text, SWEEP,
        "hardware profile or path of a TOML file, unless --over varies it"),
    Option("--over", "F=V1,V2", plan_text, SWEEP,
        "vary F, a task option or plan field; 32..128 doubles; once or twice", repeatable=True),
    Option("--plan", "PLAN", plan_text, SWEEP,
        "this plan at every point instead of the best; dp fills the GPUs"),
    switch("--best", SWEEP, "the best plan at every point (default)"),
    switch("--weak", SWEEP, "the global batch grows with the GPUs"),
    Option("--scheduler", "ADDRESS", text, (*SEARCH, *COMPARE, *SWEEP),
        "run points, backends, systems or the sizes of --days on the Dask cluster at this address "
        "(needs plan3d[dask])"),
    switch("--resume", SWEEP, "keep the points that --csv FILE holds already"),
    Option("--csv", "FILE", text, SWEEP, "write every point here as it finishes"),
    Option("--plot", "FILE", text, SWEEP, "draw the curves: .png, .svg or .pdf"),
    # A tuning session.
    Option("--logs", "DIR", text, TUNE,
        "folder of the session: launch files, their logs, and what was learned", required=True),
    Option("--next", "N", integer, TUNE,
        "runs to suggest, or to start with --launch (3)", default=3),
    Option("--launch", "COMMAND", plan_text, TUNE,
        "start each run with this command, no shell in between, one at a time: "
        "'bash start.sh {script}'"),
    Option("--worth", "SHARE", parse_fraction, TUNE,
        "stop when one more run is expected to gain less of a step (default 2%%)"),
    # Files of training frameworks.
    Option("--model", "M", text, LAUNCH_FILES,
        "preset or config.json (default: what the file or the saved result says)"),
    Option("--cluster", "C", text, LAUNCH_FILES,
        "hardware profile or TOML file (default: the saved result's)"),
    Option("--to", "FRAMEWORK", text, LAUNCH_FILES,
        "megatron, megatron-bridge, torchtitan, deepspeed, nanotron or accelerate"),
    Option("--wrapper", "NAME", text, ("export",),
        "torchrun or slurm: a start script around the file, with GPUs and nodes"),
    Option("--version", "V", text, LAUNCH_FILES,
        "version of the framework (default: its first in docs/export.md)"),
    Option("--output", "FILE", text, LAUNCH_FILES,
        "write the file here instead of printing it", short="-o"),
    Option("--with", "F=V", plan_text, LAUNCH_FILES,
        "use V for plan field F, whatever the plan or the file says; repeatable", repeatable=True),
    Option("--from", "FRAMEWORK", text, IMPORT,
        "megatron, torchtitan, deepspeed or nanotron (default: what the file looks like)"),
    Option("--vocabulary", "N", integer, (*IMPORT, *EXPLAIN),
        "tokens of the vocabulary, where the file does not say"),
    Option("--set", "NAME=VALUE", text, (*IMPORT, *EXPLAIN),
        "value of a variable or parameter that the script leaves open, SIZE=7B or 1=7B; repeatable "
        "(arguments of the script also after --: run.sh ... -- 7B 2)", repeatable=True),
    Option("--example", "FILE[:LINE]", text, (*IMPORT, *EXPLAIN),
        "arguments of the script as its call in FILE has them, a README.md or the script itself; "
        "--set replaces single ones"),
    switch("--estimate", IMPORT, "predict the plan's time and memory"),
    # A server.
    Option("--host", "HOST", text, SERVE, "address to listen on (127.0.0.1: this machine only)"),
    Option("--port", "N", integer, SERVE, "port (8303)"),
    Option("--workers", "N", integer, SERVE,
        "processes that answer, one question each at a time (one a CPU, at most 4)"),
    Option("--time-limit", "S", seconds, SERVE, "seconds that a question may take (60)"),
    Option("--memory-limit", "SIZE", memory, SERVE, "memory of a process: 4GiB"),
    # Every answer.
    switch("--verbose", (*ALL_VERBS, "help"), VERBOSE_HELP, short="-v"),
    switch("--json", ALL_VERBS, "one JSON object on stdout, SI units"),
    switch("--quiet", (*ALL_VERBS, *SERVE), "no progress and no warnings"),
)
"""Every option of every verb but those of `calibrate`, in the order of help."""

FIT, SHOW, STEPS = ("fit",), ("show",), ("steps",)
MEASUREMENTS = (*IMPORT, *FIT, *SHOW)
"""Sub-verbs that read measurements."""
CALIBRATE_OPTIONS = (
    Option("--out", "FILE", text, IMPORT, "CSV to write (default: stdout)"),
    Option("--out", "FILE", text, FIT,
        "profile to write, a .toml; without it only the errors are printed"),
    Option("--link", "LINK", text, FIT,
        "also fit its bandwidth to large messages, where the base's is another machine's: fast, "
        "network, or both (fast,network)"),
    Option("--base", "PROFILE", text, FIT,
        "profile whose other numbers are kept", required=True, completes="cluster"),
    Option("--profile", "PROFILE", text, SHOW,
        "profile to compare with", required=True, completes="cluster"),
    Option("--op", "OP", text, MEASUREMENTS,
        "collective of nccl-tests output that does not name it"),
    Option("--gpu", "NAME", text, MEASUREMENTS,
        "GPU: written into imported rows, or the one whose rows are used"),
    Option("--plot", "FILE", text, SHOW,
        f"also draw it: {', '.join('.' + kind for kind in IMAGES)}"),
    Option("--csv", "FILE", text, SHOW,
        "also write every row, measured and predicted"),
    Option("--gpus", "N", integer, (*IMPORT, *FIT), "GPUs of the run"),
    Option("--nodes", "N", integer, (*IMPORT, *FIT), "nodes of the run"),
    Option("--plan", "PLAN", plan_text, STEPS, "plan of a timed step", repeatable=True),
    Option("--seconds", "S", seconds_or_oom, STEPS,
        "its step: 4.2 or 4200ms; oom of a run that ran out of memory", repeatable=True),
    Option("--peak", "SIZE", memory, STEPS,
        "memory that its fullest GPU held, as nvidia-smi says: 61.5GiB", repeatable=True),
    Option("--trace", "FILE", text, STEPS,
        "traces of a step of the last --plan, which then needs no --seconds, or a folder: its "
        "parts tell constants apart that whole steps do not", several=True),
    Option("--out", "FILE", text, STEPS,
        "calibration to write, a .toml; without it only the errors are printed"),
    Option("--next", "N", integer, STEPS,
        "also name the N plans of a search whose measured steps would be most informative"),
    switch("--verbose", (*FIT, *SHOW, *STEPS), VERBOSE_HELP, short="-v"),
    switch("--json", (*MEASUREMENTS, *STEPS), "one JSON object, SI units"),
    switch("--quiet", MEASUREMENTS, "no warnings"),
)
"""Options of the sub-verbs of `plan3d calibrate` alone."""
# fmt: on

BORROWED_FLAGS = {
    "import": ("--gpus", "--nodes", "--sequence", "--global-batch"),
    "fit": (
        *("--model", "--plan", "--sequence", "--global-batch"),
        *("--precision", "--optimizer", "--software"),
    ),
    "show": ("--software",),
}
"""Options of `estimate` that a sub-verb has too: what describes a measured step, or completes a
log."""


def calibrate_options(subverb: str) -> list[Option]:
    """The options of a sub-verb of `plan3d calibrate`; `steps` has those of an estimate's task."""
    own = [option for option in CALIBRATE_OPTIONS if subverb in option.verbs]
    if subverb == "steps":
        task = [o for o in TASK_OPTIONS if "estimate" in o.verbs and o.flag != "--calibration"]
        needed = ("--model", "--cluster")
        return [*(replace(option, required=option.flag in needed) for option in task), *own]
    flags = {option.flag for option in own}
    borrowed = set(BORROWED_FLAGS.get(subverb, ())) - flags
    estimate = (option for option in OPTIONS if "estimate" in option.verbs)
    return [*own, *(option for option in estimate if option.flag in borrowed)]


def with_every_option(args: argparse.Namespace, **values: object) -> argparse.Namespace:
    """The options of one verb, with None for those that only other verbs have, and other values."""
    return argparse.Namespace(**{**{o.name: None for o in OPTIONS}, **vars(args), **values})
