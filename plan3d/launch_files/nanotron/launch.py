"""Configurations of nanotron, written and read: YAML, and what nanotron refuses.

Source: nanotron main of 2026-04 (2411b02): config/, parallel/, optim/.
"""

from __future__ import annotations

from collections.abc import Sequence

from plan3d.simulator.base.documents import parse_yaml
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Optimizer
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.task import Task

from .. import shape
from ..common_rules import expressible_model, field_text, one_of, whole_key_heads
from ..documents import Document, nested_document, with_unread
from ..exporter import (
    PROCESSES,
    Exporter,
    Form,
    heading,
    partial_node,
    torchrun,
    unwritten_settings,
)
from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..numbers import fill_launch, model_of, numbers_of
from ..tables import Numbers, key_classes, read_implied, read_rows, settings_of
from .keys import ENGINES, FORMATS, KERNELS, TABLE, from_keys, to_keys

VERSION = "2026-04"
TITLE = f"nanotron main of {VERSION}"
EXPRESSIBLE = (
    shape.GROUPED_QUERIES,
    shape.RMS_NORM,
    shape.GATED_MLP,
    shape.ROTARY_POSITIONS,
    shape.TIED_HEAD,
    shape.UNTIED_HEAD,
)
"""Features of LlamaConfig."""
_NO_EXPERTS = "plans of nanotron are written for dense models"
RULES = (
    expressible_model("nanotron-model", "nanotron's LlamaConfig", EXPRESSIBLE),
    whole_key_heads("nanotron-key-heads", "nanotron"),
    one_of("nanotron-schedule", "schedule", ENGINES.values(), "nanotron has 1f1b and afab (gpipe)"),
    one_of("nanotron-chunks", "virtual_stages", (1,), "its engines run one chunk a rank"),
    Rule(
        "nanotron-stages",
        ("first_stage_layers", "last_stage_layers"),
        lambda p, t: (
            (p.first_stage_layers == 0)
            & (p.last_stage_layers == 0)
            & (len(p.layers_per_stage) == 0)
        ),
        lambda p, t: (
            "nanotron cuts stages by the parameters of its blocks, which no file changes; nearest: "
            "neither layers_per_stage nor first_stage_layers nor last_stage_layers"
        ),
    ),
    one_of("nanotron-context", "cp_comm", KERNELS.values(), "nanotron has rings and gathers"),
    one_of("nanotron-sharding", "zero", (0, 1), "nanotron has ZeRO 0 and 1"),
    one_of("nanotron-hybrid", "shard", (0,), "its ZeRO 1 shards over all data ranks"),
    one_of("nanotron-buckets", "bucket_parameters", (0,), "its buckets are of megabytes"),
    one_of("nanotron-precision", "precision", FORMATS, "nanotron has bfloat16 and float32"),
    one_of("nanotron-optimizer", "optimizer", (Optimizer.ADAM,), "its SGD has no momentum"),
    one_of(
        "nanotron-recompute",
        "recompute",
        (Recompute.FULL, Recompute.NONE),
        "recompute_layer is of whole layers",
    ),
    one_of("nanotron-expert-axes", "ep", (1,), _NO_EXPERTS),
    one_of("nanotron-expert-tensor", "etp", (1,), _NO_EXPERTS),
    one_of(
        "nanotron-offloaded-optimizer", "offload_optimizer", (0,), "its optimizer stays on GPUs"
    ),
    one_of(
        "nanotron-offloaded-activations",
        "offload_activations",
        (0,),
        "it keeps activations on GPUs",
    ),
    one_of(
        "nanotron-gather-overlap",
        "overlap_param_gather",
        (0,),
        "its ZeRO 1 gathers weights after the step",
    ),
    Rule(
        "nanotron-gradient-overlap",
        ("overlap_grad_reduce", "dp", "cp"),
        lambda p, t: p.overlap_grad_reduce == (p.dp * p.cp > 1),
        lambda p, t: (
            f"{field_text(p, 'overlap_grad_reduce')}: its DDP always overlaps; nearest: "
            "overlap_grad_reduce=1"
        ),
    ),
)
"""What nanotron refuses."""


def write(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The sections that a plan decides, as YAML."""
    import yaml

    n = to_keys(numbers_of(task, plan))
    content = with_unread(nested_document(settings_of(TABLE, n)), unread, key_classes(TABLE, n))
    top = [
        *heading(task, plan, TITLE),
        *unwritten_settings(task.model, "model.model_config.rope_theta", "rope_scaling"),
        "# Add general, tokenizer, data_stages, checkpoints, model.init_method, tokens.train_steps",
        "# and what else the optimizer needs (optimizer_factory, weight_decay, clip_grad,",
        "# learning_rate_scheduler), then:",
        f"# CUDA_DEVICE_MAX_CONNECTIONS=1 {torchrun(task.cluster)} run_train.py --config-file FILE",
        *partial_node(task.cluster, PROCESSES),
    ]
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=False)
    return "\n".join(top) + f"\n{text}"


MODEL_CONFIG = ("model", "model_config")
SECTIONS = {row.key.partition(".")[0] for row in TABLE}
"""Sections of its configuration. nanotron refuses a key that no class of it has (dacite, strict):
one of these, or of the model, belongs to other model code."""
PROGRAM, CONFIG_FILE = "run_train.py", "--config-file"


def read_command(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a script that starts nanotron. Raises InputError naming a file of the run that
    is not beside it."""
    from ..shell.flags import Flags
    from ..shell.launch_script import ask, check_decided, check_inputs
    from ..shell.script import read_script

    script = read_script(text, file, inputs=options.inputs)
    flags = (
        Flags.of(command[at + 1 :], file).by_name.get(CONFIG_FILE)
        for command in script.commands
        for at, word in enumerate(command)
        if word.text.endswith(PROGRAM)
    )
    words = next((flag.values for flag in flags if flag and flag.values), ())
    if not words:
        raise InputError(f"{file}: starts nanotron without {CONFIG_FILE}")
    check_decided([(words[0], CONFIG_FILE)], script)
    ask([(one, CONFIG_FILE) for one in script.variables.dependences(words[0], True)], script)
    name, read_source = words[0].text, options.inputs.read_source
    run = read_source(name) if read_source else None
    if run is None:
        raise InputError(f"{file}: starts nanotron: the run is in {name[:200]}: give that file")
    check_inputs(script)
    return read(run, name, options)


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a YAML file. Raises InputError naming the key that is wrong."""
    launch, n = Launch(file, "nanotron"), Numbers()
    config = Document(parse_yaml(text, file), file)
    config.check_model(TABLE)
    read_rows(TABLE, config, n)
    from_keys(config, n, launch)
    launch.model = model_of(n, launch.stem, "model_config of a nanotron file")
    fill_launch(launch, n)
    launch.unread = config.unread(TABLE, read_implied(TABLE, config, n))
    for one in launch.unread:
        is_known = one.affects_cost or one.why_neutral or one.is_derived
        if not is_known and (one.path[0] not in SECTIONS or one.path[:2] == MODEL_CONFIG):
            path = one.path[: 1 + (one.path[0] in SECTIONS) * 2]
            why = "is in no class of its configuration that is read, so that it is another model"
            raise launch.refuse(f"$.{'.'.join(path)} {why} (LlamaConfig, Qwen2Config)")
    return launch


EXPORTER = Exporter(
    "nanotron",
    (Form(VERSION, TITLE, RULES, write, table=TABLE, model_settings=frozenset()),),
    software="nanotron",
    search_values={"overlap_param_gather": (0,)},
)
