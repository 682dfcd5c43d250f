"""Fields of a plan: one record each, and what follows from the records.

`Plan` inherits these attributes. Their order is that of every table and JSON object of plans.
docs/extending.md says what else a new field needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, did_you_mean
from ..hardware.precision import CODES, Optimizer
from ..pipeline.schedules import SCHEDULE_NAMES
from .compressors import Compression
from .field_record import (
    Display,
    Field,
    SeenBy,
    between_sites,
    layer,
    recipe,
    recipe_option,
    stages,
    step,
    synchronisation,
)
from .field_values import (
    AUTO,
    PERCENT,
    Cell,
    Choice,
    ContextComm,
    Count,
    Dispatch,
    Flag,
    GridValue,
    Loss,
    Nvme,
    Recompute,
    StateFormat,
    TableText,
    names_of,
)
from .gossip_graphs import Topology
from .synchronisation import OuterOptimizer, Sync

if TYPE_CHECKING:
    from .stage_layout import Segments

COMPRESSION_NAMES = {
    **names_of(Compression),
    "1-bit": Compression.ONE_BIT,
    "top-k": Compression.MEM_SGD,
}
"""Methods of compression by name, two of them by two names."""
ALWAYS, SELDOM = Display.ALWAYS, Display.SELDOM
STATE_FORMATS = names_of(StateFormat)
"""Formats of moments by name."""
WIDE_FORMATS = {name: code for name, code in STATE_FORMATS.items() if code != StateFormat.FP8}
"""Formats of gradients and master weights by name."""
SIZE, FLAG = Count(1), Flag()


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanFields:
    """How a model is spread over GPUs: one attribute a field."""

    tp: Cell = layer(
        help="tensor-parallel size",
        values=SIZE,
        turn=10,
        ranked=True,
        display=ALWAYS,
        by_run=True,
        aliases=("tensor_parallel", "tensor_model_parallel_size"),
        synonyms=("tensor_parallel_size", "tensor_parallel_degree", "tp_size", "tensor"),
    )
    tp_grid: Cell = layer(
        help="grid of the tensor ranks", values=GridValue(), turn=20, ranked=True, display=SELDOM
    )
    pp: Cell = stages(
        help="pipeline-parallel size (stages)",
        values=SIZE,
        turn=40,
        ranked=True,
        display=ALWAYS,
        aliases=("pipeline_parallel", "pipeline_model_parallel_size"),
        synonyms=("pipeline_parallel_size", "pipeline_parallel_degree", "pp_size"),
    )
    dp: Cell = stages(
        help="data-parallel size; derived from the GPUs when absent",
        values=SIZE,
        default=AUTO,
        turn=50,
        ranked=True,
        display=ALWAYS,
        by_run=True,
        aliases=("data_parallel",),
        synonyms=("data_parallel_size", "data_parallel_degree", "dp_size"),
    )
    cp: Cell = layer(
        help="context-parallel size; divides the sequence",
        values=SIZE,
        turn=30,
        ranked=True,
        aliases=("context_parallel", "context_parallel_size"),
    )
    ep: Cell = layer(
        help="expert-parallel size; folds into the data ranks",
        values=SIZE,
        turn=60,
        ranked=True,
        aliases=("expert_parallel", "expert_model_parallel_size"),
    )
    etp: Cell = layer(
        help="tensor-parallel size of the experts",
        values=SIZE,
        turn=70,
        ranked=True,
        aliases=("expert_tensor_parallel", "expert_tensor_parallel_size"),
    )
    virtual_stages: Cell = stages(
        help="model chunks a pipeline rank holds (interleaving)",
        values=SIZE,
        turn=90,
        ranked=True,
        header="virtual",
        synonyms=("virtual_pipeline", "num_virtual_stages", "vpp", "interleave"),
    )
    micro_batch: Cell = layer(
        help="sequences in one micro-batch",
        values=SIZE,
        turn=80,
        ranked=True,
        display=ALWAYS,
        header="micro",
        aliases=("micro_batch_size", "microbatch"),
        synonyms=("mbs", "per_device_train_batch_size", "train_micro_batch_size_per_gpu"),
    )
    schedule: Cell = stages(
        help="order of the passes of a pipeline",
        values=Choice(SCHEDULE_NAMES),
        default=AUTO,
        turn=100,
        ranked=True,
        synonyms=("pipeline_schedule", "pipeline_parallel_schedule"),
    )
    micro_batch_group: Cell = stages(
        help="micro-batches a rank runs through a chunk before the next (interleaved); 0 = pp",
        values=Count(),
        turn=110,
        ranked=True,
        display=SELDOM,
    )
    sequence_parallel: Cell = layer(
        help="shard norms and residuals along the sequence (SP)",
        values=FLAG,
        default=AUTO,
        turn=190,
        searched=(1, 0),
        header="sp",
        synonyms=("sp",),
    )
    zero: Cell = step(
        help="ZeRO stage: 1 optimizer, 2 gradients, 3 weights are sharded",
        values=Count(0, 3),
        default=AUTO,
        turn=240,
        searched=(0, 1, 2, 3),
        display=ALWAYS,
        by_run=True,
        aliases=("zero_stage",),
        synonyms=("fsdp", "stage", "distributed_optimizer", "use_distributed_optimizer"),
    )
    recompute: Cell = layer(
        help="activations that are thrown away and computed again in the backward pass",
        values=Choice(names_of(Recompute), ordered=True),
        turn=200,
        searched=(0, 1, 2),
        display=ALWAYS,
        by_run=True,
        synonyms=(
            *("recompute_granularity", "activation_checkpoint", "activation_checkpointing"),
            *("gradient_checkpoint", "gradient_checkpointing", "checkpointing", "remat"),
        ),
    )
    overlap_grad_reduce: Cell = step(
        help="gradient reduction hides behind the backward pass",
        values=FLAG,
        default=AUTO,
        turn=250,
        searched=(1, 0),
        header="o-grad",
        synonyms=("overlap_comm",),
    )
    overlap_param_gather: Cell = step(
        help="parameter gathers hide behind the forward pass",
        values=FLAG,
        default=AUTO,
        turn=260,
        header="o-param",
    )
    overlap_p2p: Cell = step(
        help="pipeline sends hide behind compute (interleaved only)",
        values=FLAG,
        default=AUTO,
        turn=270,
        header="o-p2p",
    )
    overlap_tp: Cell = layer(
        help="tensor-parallel collectives hide behind their GEMMs",
        values=FLAG,
        turn=210,
        searched=(1, 0),
        header="o-tp",
        synonyms=("tp_comm_overlap", "async_tp"),
    )
    overlap_ep: Cell = layer(
        help="expert all-to-alls hide behind another micro-batch",
        values=FLAG,
        turn=220,
        header="o-ep",
    )
    cp_comm: Cell = layer(
        help="how ranks get each other's keys and values: ring, gather or Ulysses (a2a)",
        values=Choice(names_of(ContextComm)),
        turn=120,
        ranked=True,
        synonyms=("cp_comm_type", "ulysses", "ring_attention"),
    )
    expert_dispatch: Cell = layer(
        help="how tokens reach their experts; hierarchical: one copy a node; all-gather: all",
        values=Choice(names_of(Dispatch)),
        turn=130,
        ranked=True,
        header="dispatch",
    )
    precision: Cell = recipe(
        help="number formats of weights, gradients and GEMMs",
        values=Choice(CODES),
        turn=140,
        ranked=True,
        synonyms=("dtype", "torch_dtype", "mixed_precision", "bf16", "fp16", "fp8"),
    )
    fp8_params: Cell = recipe(
        help="weights of linear layers are kept and gathered in their 8-bit format",
        values=FLAG,
        turn=145,
        ranked=True,
        opt_in=True,
        header="fp8-w",
    )
    bf16_first_layers: Cell = recipe_option(
        help="first layers whose products stay in 16 bits among scaled ones",
        values=Count(),
        turn=146,
        header="bf16-first",
    )
    bf16_last_layers: Cell = recipe_option(
        help="last layers whose products stay in 16 bits among scaled ones",
        values=Count(),
        turn=147,
        header="bf16-last",
    )
    optimizer: Cell = recipe(
        help="how weights are updated", values=Choice(names_of(Optimizer)), turn=150, ranked=True
    )
    precision_aware: Cell = recipe_option(
        help="Adam of Transformer Engine, whose state may be in narrow formats (Megatron-Core)",
        values=FLAG,
        turn=151,
        header="aware-opt",
        synonyms=("use_precision_aware_optimizer", "precision_aware_optimizer"),
    )
    main_grads_dtype: Cell = recipe_option(
        help="format of gradients as the optimizer reads them; usual: as the framework does",
        values=Choice(WIDE_FORMATS),
        turn=152,
        header="main-grads",
        synonyms=("grad_accum_dtype",),
    )
    grad_reduce_dtype: Cell = recipe_option(
        help="format of gradients as ranks reduce them",
        values=Choice(WIDE_FORMATS),
        turn=153,
        header="grad-reduce",
        synonyms=("grad_reduce_in_bf16", "reduce_dtype", "communication_data_type"),
    )
    main_params_dtype: Cell = recipe_option(
        help="format of the master weights",
        values=Choice(WIDE_FORMATS),
        turn=154,
        header="main-params",
        synonyms=("bf16_master_weights_and_grads",),
    )
    exp_avg_dtype: Cell = recipe_option(
        help="format of Adam's first moment",
        values=Choice(STATE_FORMATS),
        turn=155,
        header="exp-avg",
    )
    exp_avg_sq_dtype: Cell = recipe_option(
        help="format of Adam's second moment",
        values=Choice(STATE_FORMATS),
        turn=156,
        header="exp-avg-sq",
    )
    first_stage_layers: Cell = stages(
        help="layers of the first pipeline rank; 0 = balanced",
        values=Count(),
        turn=160,
        display=SELDOM,
        header="first",
    )
    last_stage_layers: Cell = stages(
        help="layers of the last pipeline rank; 0 = balanced",
        values=Count(),
        turn=170,
        display=SELDOM,
        header="last",
    )
    mtp_stage: Cell = stages(
        help="stage, from 1, of the multi-token prediction layer; 0 = the last, with the head",
        values=Count(),
        turn=180,
        display=SELDOM,
    )
    sync: Cell = synchronisation(
        help="how replicas of the model are kept together",
        values=Choice(names_of(Sync)),
        turn=280,
        ranked=True,
    )
    topology: Cell = synchronisation(
        help="graph of gossip; given: --graph",
        values=Choice(names_of(Topology)),
        default=AUTO,
        turn=290,
        searched=(0,),
        ranked=True,
    )
    sync_period: Cell = synchronisation(
        help="steps between synchronisations (local SGD)", values=SIZE, turn=300, ranked=True
    )
    compression: Cell = synchronisation(
        help="how gradients are compressed", values=Choice(COMPRESSION_NAMES), turn=310, ranked=True
    )
    levels: Cell = synchronisation(
        help="levels of quantisation, for qsgd", values=Count(), turn=320
    )
    kept_per_thousand: Cell = synchronisation(
        help="entries of a thousand that top-k keeps", values=Count(0, 1000), turn=330
    )
    bucket_parameters: Cell = synchronisation(
        help="gradients reduced together when overlapped; 1 = each tensor, 0 = the stack's",
        values=Count(),
        turn=340,
    )
    shard: Cell = synchronisation(
        help="ranks that ZeRO shards over, replicated beyond (HSDP); 0 = all",
        values=Count(),
        turn=350,
    )
    offload_optimizer: Cell = synchronisation(
        help="share of the optimizer whose state and update are on the host's CPUs",
        values=Count(0, 100, PERCENT),
        turn=360,
        header="off-opt %",
    )
    offload_parameters: Cell = synchronisation(
        help="share of the weights that wait in host memory (ZeRO 3)",
        values=Count(0, 100, PERCENT),
        turn=362,
        header="off-par %",
    )
    nvme: Cell = synchronisation(
        help="what of these two lies on NVMe drives instead (ZeRO-Infinity)",
        values=Choice(names_of(Nvme)),
        turn=364,
    )
    sites: Cell = between_sites(
        help="groups of replicas that synchronise every step; outer steps join them; 0 = none",
        values=Count(),
        turn=302,
    )
    outer_optimizer: Cell = between_sites(
        help="how sites are joined: their weights averaged, or a momentum step (DiLoCo)",
        values=Choice(names_of(OuterOptimizer)),
        turn=304,
        header="outer",
    )
    fragments: Cell = between_sites(
        help="parts of the model that sites exchange in turn (Streaming DiLoCo)",
        values=SIZE,
        turn=305,
    )
    outer_delay: Cell = between_sites(
        help="steps that the exchange of a part between sites may take beside compute",
        values=Count(),
        turn=306,
        header="delay",
    )
    outer_bits: Cell = between_sites(
        help="bits of a parameter between sites; 0 = 32",
        values=Count(0, 32),
        turn=307,
        header="outer bits",
    )
    offload_activations: Cell = layer(
        help="share of the kept activations that wait in host memory",
        values=Count(0, 100, PERCENT),
        turn=230,
        opt_in=True,
        header="off-act %",
    )
    loss: Cell = layer(
        help="how cross-entropy is computed; usual: as the stack does",
        values=Choice(names_of(Loss)),
        turn=235,
        opt_in=True,
    )
    layers_per_stage: tuple[int, ...] = stages(
        help="layers of every stage",
        values=TableText("11,12,12,11 or Et*3|(tt|)*29|L"),
        default=(),
        aliases=("pipeline_model_parallel_layout",),
    )
    segments: Segments | None = stages(
        help="runs of layers with a strategy of their own",
        values=TableText("11:recompute=full+1|12*3"),
    )


FIELDS: dict[str, Field] = {
    f.name: replace(f.metadata["record"], name=f.name) for f in fields(PlanFields)
}
"""The record of every field, by name."""
ALIASES = {alias: name for name, record in FIELDS.items() for alias in record.aliases}
"""Other names of fields, where a plan is written out."""
SYNONYMS = ALIASES | {other: n for n, record in FIELDS.items() for other in record.synonyms}
"""Fields by what other tools call them."""


def field_called(name: str) -> str:
    """The field of a name in any case, with dashes, or as Megatron has it; else the name."""
    name = name.strip().replace("-", "_").lower()
    return ALIASES.get(name, name)


def columns_where(condition: Callable[[Field], bool]) -> tuple[str, ...]:
    """The columns of a plan whose records satisfy a condition, in the order of its attributes."""
    return tuple(n for n, record in FIELDS.items() if record.is_column and condition(record))


AXES = columns_where(lambda record: True)
"""The columns of a plan."""
ALWAYS_WRITTEN = (
    *("tp", "pp", "dp", "cp", "ep", "virtual_stages", "micro_batch", "schedule", "zero"),
    *("sequence_parallel", "recompute", "overlap_tp"),
)
"""Fields that JSON always writes; others where they are not at their defaults."""
TABLE_FIELDS = tuple(name for name in FIELDS if name not in AXES)
"""Fields that all plans of a table share; they are no numbers."""
RESOLVED_DEFAULTS = {name: max(int(FIELDS[name].default), 0) for name in AXES}
"""Defaults of the columns, 0 where they are AUTO."""
EXPANSION = tuple(sorted(AXES, key=lambda name: FIELDS[name].turn))
"""Axes of a search space from the outermost in: what decides the stages comes before what
synchronises them, and DISTINCT before the rest, so that plans which a ranking does not tell apart
are neighbours."""
RANKING_AXES = tuple(name for name in EXPANSION if FIELDS[name].ranked)
"""Plans of a ranking differ in one of these; of the others only the best values are shown."""
STRATEGY = columns_where(lambda record: record.seen_by is SeenBy.LAYER)
"""Fields that one layer can see."""
SKELETON = (*STRATEGY, *columns_where(lambda record: record.seen_by is SeenBy.STAGES))
"""Fields that decide the stages."""
RECIPE_FIELDS = columns_where(lambda record: record.seen_by is SeenBy.RECIPE)
"""Fields that change the numbers that are trained."""
POLICY = columns_where(lambda record: record.seen_by is SeenBy.SYNCHRONISATION)
"""Fields of the policy that synchronises replicas (synchronisation.SyncPolicy)."""
BY_RUN = columns_where(lambda record: record.by_run)
"""Fields that may differ from run to run of layers."""
OPT_IN = {name: RESOLVED_DEFAULTS[name] for name in columns_where(lambda record: record.opt_in)}
"""Fields of features that are off by default, and the values that leave them off: gradients are
all-reduced every step in full, since other methods change the training, nothing is on the host."""
CHOICES = {n: record.values for n, record in FIELDS.items() if isinstance(record.values, Choice)}
"""The names of the fields whose values have names."""
CATEGORICAL = tuple(n for n, names in CHOICES.items() if not names.ordered and n not in OPT_IN)
"""Fields whose values have no order for a search. Those of OPT_IN, which it tries only when they
are chosen by name, keep the order of their codes."""
ON_HOST = columns_where(lambda record: record.unit == PERCENT)
"""Fields that free GPU memory at the expense of host memory and time."""


def spell(name: str, code: int) -> Any:
    """A field's value as people write it."""
    return FIELDS[name].spell(code)


def code(name: str, value: Any) -> int:
    """The integer of one value of a field: 'full' -> 2, True -> 1, '8' -> 8."""
    return FIELDS[name].code(value)


OF_TASK = {
    **dict.fromkeys(("gbs", "batch", "batch_size", "global_batch", "global_batch_size"), "batch"),
    **dict.fromkeys(("gradient_accumulation_steps", "grad_accum", "num_microbatches"), "batch"),
    **dict.fromkeys(("seq", "seq_len", "seq_length", "sequence", "sequence_length"), "sequence"),
    **dict.fromkeys(("gpus", "nodes", "world_size"), "number of GPUs"),
}
"""Words that people write beside the fields of a plan, and what of a task they say."""


def check_field(name: str) -> None:
    """Raise InputError, with the nearest names, when no plan has this field."""
    if name in OF_TASK:
        raise InputError(f"{name} is no field of a plan: the {OF_TASK[name]} belongs to the task")
    if name not in FIELDS:
        raise InputError(f"unknown plan field {name!r}{did_you_mean(name, FIELDS, SYNONYMS)}")
