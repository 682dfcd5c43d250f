"""What does a nanotron configuration run? Its YAML as a model, a batch and a plan.

Source of the defaults: nanotron main of 2026-04, config/parallelism_config.py (pp_engine afab,
tp_mode ALL_REDUCE), config/models_config.py.
"""

from __future__ import annotations

from plan3d.simulator.base.typed_objects import JsonObject
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.pipeline.schedules import usual
from plan3d.simulator.workload.blocks import Attention, Block, Mlp
from plan3d.simulator.workload.model import Model

from ..documents import unread
from ..launch_file import NOTHING, Given, Launch
from .writer import FORMATS, KERNELS, SCHEDULES

USED = frozenset(
    (
        "parallelism.dp",
        "parallelism.pp",
        "parallelism.tp",
        "parallelism.context_parallel_size",
        "parallelism.expert_parallel_size",
        "parallelism.pp_engine",
        "parallelism.tp_mode",
        "parallelism.tp_linear_async_communication",
        "parallelism.recompute_layer",
        "model.dtype",
        "model.make_vocab_size_divisible_by",
        "model.model_config.is_llama_config",
        "model.model_config.is_qwen2_config",
        "model.model_config.hidden_act",
        "model.model_config.hidden_size",
        "model.model_config.intermediate_size",
        "model.model_config.num_hidden_layers",
        "model.model_config.num_attention_heads",
        "model.model_config.num_key_value_heads",
        "model.model_config.max_position_embeddings",
        "model.model_config.tie_word_embeddings",
        "model.model_config.attention_bias",
        "model.model_config._attn_implementation",
        "model.model_config.vocab_size",
        "tokens.sequence_length",
        "tokens.micro_batch_size",
        "tokens.batch_accumulation_per_replica",
        "optimizer.zero_stage",
        "optimizer.accumulate_grad_in_fp32",
    )
)
"""Keys that are read or follow from the plan."""
MATTERS = frozenset(
    (
        "parallelism.moe_layer_recompute",
        "parallelism.tp_recompute_allgather",
        "parallelism.expert_tensor_parallel_size",
        "model.ddp_bucket_cap_mb",
    )
)
"""Kept keys that change time or memory."""
UNSUPPORTED = ("is_starcoder2_config", "moe_config", "sliding_window_size")
"""Keys of models that are not read."""


def read(text: str, file: str, given: Given = NOTHING) -> Launch:
    """The launch of a YAML file. Raises InputError naming the key that is wrong."""
    import yaml

    launch = Launch(file, "nanotron")
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" (line {line + 1})"
        raise launch.refuse(f"is not YAML{where}") from None
    top = JsonObject.of(content, file)
    parts = {
        name: JsonObject.of(top.values.get(name), file, f"$.{name}")
        for name in ("parallelism", "model", "tokens")
    }
    optimizer = JsonObject.of(top.values.get("optimizer") or {}, file, "$.optimizer")
    _parallelism(parts["parallelism"], launch)
    _tokens(parts["tokens"], launch)
    _formats(parts["model"], optimizer, launch)
    config = parts["model"].values.get("model_config")
    layers = JsonObject.of(config, file, "$.model.model_config")
    launch.model = _model(layers)
    if launch.plan["cp"] > 1:
        codes = {name: int(code) for code, name in KERNELS.items()}
        kernel = layers.text("_attn_implementation", tuple(codes), default="flash_attention_2")
        launch.plan["cp_comm"] = codes[kernel]
    launch.kept = unread(top.values, USED, MATTERS)
    return launch


def _parallelism(p: JsonObject, launch: Launch) -> None:
    """Axes, engine and overlaps."""
    dp, pp, tp = (p.size(name) for name in ("dp", "pp", "tp"))
    cp = p.size("context_parallel_size", default=1)
    if p.size("expert_parallel_size", default=1) > 1:
        raise p.refuse("expert_parallel_size", "is above 1; experts of nanotron are not modelled")
    engines = {name: code for code, name in SCHEDULES.items()}
    engine = p.text("pp_engine", tuple(engines), default="afab")
    modes = ("ALL_REDUCE", "REDUCE_SCATTER", "all_reduce", "reduce_scatter")
    scattered = p.text("tp_mode", modes, default="ALL_REDUCE").upper() == "REDUCE_SCATTER"
    launch.gpus = dp * pp * tp * cp
    launch.plan |= {
        "dp": dp,
        "pp": pp,
        "tp": tp,
        "cp": cp,
        "schedule": int(engines[engine] if pp > 1 else usual(1)),
        "sequence_parallel": int(scattered and tp > 1),
        "overlap_tp": int(p.flag("tp_linear_async_communication", False) and tp > 1),
        "recompute": "full" if p.flag("recompute_layer", False) else "none",
        "overlap_grad_reduce": int(dp * cp > 1),
        "overlap_param_gather": 0,
    }


def _tokens(t: JsonObject, launch: Launch) -> None:
    launch.sequence = t.size("sequence_length")
    launch.plan["micro_batch"] = t.size("micro_batch_size")
    launch.accumulation = t.size("batch_accumulation_per_replica", default=1)


def _formats(model: JsonObject, optimizer: JsonObject, launch: Launch) -> None:
    """Number formats and sharding."""
    dtype = model.text("dtype", default="bfloat16")
    accumulate = optimizer.flag("accumulate_grad_in_fp32", True)
    launch.plan["zero"] = optimizer.size("zero_stage", default=0, least=0, most=1)
    if dtype == "float32":
        accumulate = False
    codes = {formats: precision for precision, formats in FORMATS.items()}
    if (dtype, accumulate) not in codes:
        launch.open["precision"] = f"$.model.dtype is {dtype}, which is not modelled"
    launch.plan["precision"] = int(codes.get((dtype, accumulate), Precision.BF16))


def _model(c: JsonObject) -> Model:
    """The model of a LlamaConfig or Qwen2Config."""
    for key in UNSUPPORTED:
        if c.has(key):
            raise c.refuse(key, "is not modelled; give dense Llama or Qwen 2 layers")
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
    if hidden % heads:
        raise c.refuse("num_attention_heads", f"is {heads}, which does not divide {hidden}")
    layers = c.size("num_hidden_layers", most=10_000)
    attention = Attention(
        heads=heads,
        kv_heads=c.size("num_key_value_heads", default=heads, most=heads),
        head_dim=hidden // heads,
        value_dim=hidden // heads,
        qkv_bias=c.flag("attention_bias", False),
    )
    block = Block(attention=attention, mlp=Mlp(ffn=c.size("intermediate_size"), gated=True))
    return Model(
        name=c.name.rsplit("/", 1)[-1].rpartition(".")[0] or c.name,
        hidden=hidden,
        vocabulary=c.size("vocab_size"),
        kinds=(block,),
        order=(0,) * layers,
        tied=c.flag("tie_word_embeddings", False),
        source="model_config of a nanotron file",
    )
