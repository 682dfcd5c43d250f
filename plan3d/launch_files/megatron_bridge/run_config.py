"""Configurations that Megatron-Bridge saves beside its checkpoints, as flags of Megatron-LM.

`run_config.yaml` states every field of the run after its recipe, its overrides and the defaults;
recipes themselves are Python, which is not run. Samples have the tokens of the data set, whatever
the model is made for.
Source: megatron-bridge 0.3.1, training/config.py (ConfigContainer), training/utils/
checkpoint_utils.py (run_config.yaml), models/gpt_provider.py; names of flags as in Megatron-LM,
megatron/training/arguments.py (core_transformer_config_from_args).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from plan3d.simulator.base.documents import parse_yaml
from plan3d.simulator.workload.adapters import Adapters

from ..documents import Document
from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..logs.printed_settings import argument_words
from ..megatron.launch import read as read_script
from ..megatron.other_flags import check_program
from ..spellings import read_rank, read_share
from ..tables import Numbers
from ..trainer.spelling import adapters_of

TITLE = "Megatron-Bridge"
SECTIONS = ("mixed_precision", "model", "ddp", "optimizer", "train")
"""Sections whose fields are arguments; of a field in several the last counts."""
FLAGS = {
    "fp8_format": "fp8",
    "num_moe_experts": "num_experts",
    "layernorm_epsilon": "norm_epsilon",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "bucket_size": "ddp_bucket_size",
    "grad_reduce_in_fp32": "accumulate_allreduce_grads_in_fp32",
    "rope_scaling": "use_rope_scaling",
    "fp8_param": "fp8_param_gather",
    "fp4_param": "fp4_param_gather",
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage",
    "nccl_ub": "use_nccl_ub",
    "num_buckets": "ddp_num_buckets",
    "reduce_scatter_with_fp32_accumulation": "ddp_reduce_scatter_with_fp32_accumulation",
}
"""Arguments of Megatron-LM by fields of another name."""
GATES = {"silu": "swiglu", "gelu": "geglu", "quick_gelu": "quick_geglu"}
"""Flags of a gated unit by its activation."""
HETEROGENEOUS = "heterogeneous_block_specs"
LAYERS = "transformer_layer_spec"
USUAL_LAYERS = (
    *("", "default_layer_spec", "transformer_engine_layer_spec", "local_layer_spec"),
    *("get_gpt_decoder_block_spec", "get_gpt_layer_with_transformer_engine_spec"),
)
"""Functions that make layers of the fields alone (models/gpt_provider.py)."""
ADAPTED = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""Matrices that have adapters unless a recipe says otherwise."""
_NEUTRAL = """
adaptive_muon_beta2 adaptive_muon_eps adaptive_muon_moment2_method apply_rope_fusion
autocast_enabled average_in_collective barrier_with_L1_time batch_p2p_comm batch_p2p_sync beta_fast
beta_slow bf16 bias_activation_fusion bias_dropout_fusion check_for_nan_in_grad
check_optimizer_step_success cpu_offloading_activations cuda_graph_retain_backward_graph
cuda_graph_use_single_mempool deallocate_pipeline_outputs decoupled_weight_decay
disable_parameter_transpose_cache embedding_init_method enable_autocast fp32
fsdp_all_gather_in_start_param_sync fused_single_qkv_rope grad_norm_skip_threshold
gradient_accumulation_fusion gradient_reduce_div_fusion hetereogenous_dist_checkpoint hf_model_id
hf_model_revision inference_sampling_seed init_method layernorm_zero_centered_gamma
make_vocab_size_divisible_by masked_softmax_fusion memory_efficient_layer_norm mtp_enabled
num_epochs original_max_position_embeddings output_layer_init_method overlap_p2p_comm
overlap_p2p_comm_warmup_flush pad_buckets_for_high_nccl_busbw parallel_output
param_name_patterns_for_fp32_local_accumulation perform_initialization persist_layer_norm
pin_cpu_grads pin_cpu_params restore_modelopt_state scatter_embedding_sequence_parallel
seq_len_interpolation_factor sequence_length should_pad_vocab skip_sync_grad_norm_across_mp
soap_shampoo_beta soap_use_kl_shampoo softmax_scale store_param_remainders timers tp_only_amax_red
use_arbitrary_attention_mask use_mamba_mem_eff_path use_te_rng_tracker
use_transformer_engine_full_layer_spec variable_seq_lengths yarn_mscale yarn_mscale_all_dim
yarn_rotary_scaling_factor
"""
NEUTRAL = frozenset(_NEUTRAL.split())
"""Fields that are no flags of Megatron-LM and change neither the model nor time or memory as they
are modelled: schedules, initial values, fusions that a stack has, numbers of the rotary scale
(transformer_config.py and model_parallel_config.py of megatron/core 0.18)."""
_COSTS = """
activation_func_fp8_input_store cpu_offloading_double_buffering dense_grouped_gemm
fp8_dot_product_attention fp8_multi_head_attention megatron_fsdp_cuda_graph_mode
megatron_fsdp_use_decoupled_grad moe_token_dropping
num_microbatches_with_partial_activation_checkpoints quant_recipe tp_comm_atomic_ag
tp_comm_atomic_rs tp_comm_overlap_disable_fc1 tp_comm_overlap_disable_qkv
use_inference_optimized_layers use_kitchen
"""
COSTS = frozenset(_COSTS.split())
"""Fields that are no flags of Megatron-LM and change time or memory, in the same files."""
HANDLES = re.compile(r"(?:grad_scale|grads?_sync|param_sync|no_sync|model_grads|loss_scale)_func$")
"""Endings of fields that hold functions of the program."""
DTYPES = frozenset(("autocast_dtype", "params_dtype", "pipeline_dtype"))
"""Formats that follow from bf16 and fp16, in the same files."""
STATE_DTYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
"""Words of --exp-avg-dtype and its like by formats of torch."""


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a run_config.yaml. Raises InputError naming what is wrong or missing."""
    return read_content(parse_yaml(text, file), Launch(file, "megatron", title=TITLE), options)


def read_content(content: Any, launch: Launch, options: ReaderOptions) -> Launch:
    """The launch of sections of fields."""
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        raise launch.refuse(f"must hold sections of {launch.title}")
    provider = str(model.get("_target_", ""))
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", provider.rpartition(".models.")[2])
    check_program(f"{name.replace('.', '_')}.py", launch)
    if model.get(HETEROGENEOUS):
        raise launch.refuse(f"$.model.{HETEROGENEOUS} is not modelled: layers that differ")
    spec = model.get(LAYERS)
    layers = str(spec.get("_target_", "")).rpartition(".")[2] if isinstance(spec, dict) else ""
    if layers not in USUAL_LAYERS:
        launch.left_out.append(
            "layers of a specification in Python, which are taken as those of the fields "
            f"($.model.{LAYERS}: {layers[:60]})"
        )
    values = _arguments(content, model)
    command = f"pretrain_gpt.py {' '.join(argument_words(values))}\n"
    found = read_script(command, launch.file, options)
    found.title, found.left_out = launch.title, [*launch.left_out, *found.left_out]
    found.unread = list(_unread(found.unread))
    found.adapters = _adapters(content.get("peft"), launch.file) or found.adapters
    return found


def _unread(settings: Iterable[UnreadSetting]) -> Iterator[UnreadSetting]:
    """What changes time or memory, and fields that are not known, by their names."""
    for setting in settings:
        field = setting.flag.removeprefix("--").replace("-", "_")
        is_unknown = not setting.affects_cost and not setting.why_neutral
        costs = setting.affects_cost or field in COSTS
        if costs or (is_unknown and not HANDLES.search(field) and field not in NEUTRAL | DTYPES):
            value = setting.text.removeprefix(setting.flag).strip()
            text = f"{field} = {value or 'True'}"
            yield replace(
                setting, place="field", text=text, flag="", assignments=(), affects_cost=costs
            )


def _adapters(section: Any, file: str) -> Adapters | None:
    """The adapters of a section `peft`; None without one."""
    if not isinstance(section, dict):
        return None
    n, document = Numbers(), Document({"peft": section}, file)
    n.tuner = re.split(r"[.:]", str(section.get("_target_", "")))[-1][:40]
    n.rank = read_rank(document, "peft.dim", section.get("dim", 32))
    n.targets = section.get("target_modules") or list(ADAPTED)
    n.adapter_dropout = read_share(document, "peft.dropout", section.get("dropout", 0.0))
    return adapters_of(n, document)


def _format(made: dict[str, Any]) -> str:
    """Megatron-LM's word for a format of torch, or the format's own name."""
    target = str(made.get("_target_", "")).removeprefix("torch.")
    return FORMATS.get(target, target)


def _arguments(content: dict[str, Any], model: dict[str, Any]) -> dict[str, str]:
    """The arguments of Megatron-LM by name, as it prints them."""
    values: dict[str, Any] = {}
    for section in SECTIONS:
        fields = content.get(section)
        for field, value in fields.items() if isinstance(fields, dict) else ():
            known = FLAGS.get(str(field), str(field))
            if isinstance(value, dict) and field in STATE_DTYPES:
                value = _format(value)
            if field == "activation_func" or isinstance(value, dict) or str(field).startswith("_"):
                continue
            values[known] = value if value is not None else values.get(known)
    dataset = content.get("dataset")
    if isinstance(dataset, dict):
        for key in ("seq_length", "sequence_length"):
            values["seq_length"] = dataset.get(key) or values.get("seq_length")
    activation = model.get("activation_func")
    target = str(activation.get("_target_", "")) if isinstance(activation, dict) else activation
    word = str(target or "gelu").rpartition(".")[2]
    if values.pop("gated_linear_unit", False):
        values[GATES.get(word, "glu_activation")] = True if word in GATES else word
    elif word == "squared_relu":
        values["squared_relu"] = True
    values["untie_embeddings_and_output_weights"] = not values.pop(
        "share_embeddings_and_output_weights", True
    )
    values["group_query_attention"] = values.get("num_query_groups") is not None
    values["max_position_embeddings"] = values.get("max_position_embeddings") or values.get(
        "seq_length"
    )
    values["bf16"] = bool(values.get("bf16")) and not values.get("fp16")
    values["grad_reduce_in_bf16"] = values.get(FLAGS["grad_reduce_in_fp32"]) is False
    return {str(name): str(value) for name, value in values.items()}
