"""Flags of Megatron-LM as numbers of a plan: model, stages, recompute, windows and offloading.

Source of the defaults: Megatron-LM, megatron/training/arguments.py, megatron/core 0.16
(transformer/utils.py, multi_token_prediction.py); of windows also Transformer Engine 2.9,
attention/dot_product_attention/utils.py (check_set_window_size).
"""

from __future__ import annotations

import ast

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.units import is_whole
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.hardware.software import DEFAULT_MODULES, MODULES, OFFLOADABLE
from plan3d.simulator.plan.field_values import Dispatch, Recompute, StateFormat
from plan3d.simulator.plan.stage_layout import mtp_stage, read_layout

from ..launch_file import Launch, UnreadSetting, explicit_layers
from ..shell.flags import LARGEST, Flags
from ..tables import Numbers
from .flags import ACCUMULATION, MUON, OPTIMIZERS
from .spelling import CP_COMM_TYPES, percent_of
from .tokenizers import named_vocabulary

GPT2_VOCABULARY = 50257
"""Tokens of GPT2BPETokenizer, which pretrain_gpt.py takes by default."""
LONGEST_PATTERN = 10_000
"""Layers of the longest list of --moe-layer-freq or --window-attn-skip-freq."""
LAYOUT = "--pipeline-model-parallel-layout"
OLDER_DDP = "--DDP-impl"
"""Who reduces gradients, in versions before core 0.2: torch does it during the backward pass."""
STRATEGY = "--data-parallel-sharding-strategy"


def from_flags(flags: Flags, n: Numbers, launch: Launch, vocabulary: int | None) -> None:
    """Add the numbers of model and run that Megatron-LM and what is built on it have in common.
    Raises InputError naming the line that is wrong."""
    _read_model(flags, n, launch, vocabulary)
    _read_exchanges(flags, n, launch)
    _read_stages(flags, n, launch)
    _read_recompute(flags, n, launch)
    flags.check_exclusive("--bf16", "--fp16")
    old = n.fp8_hybrid or n.fp8_e4m3
    n.fp8 = old or flags.contains("--fp8-format")
    n.fp4 = flags.contains("--fp4-format")
    half = Precision.FP16 if n.fp16 else Precision.BF16 if n.bf16 else Precision.FP32
    n.precision = int(n.fp8_recipe if n.fp8 else Precision.NVFP4 if n.fp4 else half)
    if not (n.fp8 or n.fp4):
        n.fp8_params = n.bf16_first_layers = n.bf16_last_layers = 0
    n.dropout = n.attention_dropout or n.hidden_dropout
    if isinstance(n.optimizer, str):
        launch.unmodelled["optimizer"] = (
            f"line {flags.line('--optimizer')}: --optimizer {n.optimizer[:40]} is not modelled "
            f"(modelled: {', '.join(OPTIMIZERS | MUON)})"
        )
        n.optimizer = Optimizer.ADAM
    n.accumulation = None if n.global_batch else _micro_batches(flags)
    wide = "--accumulate-allreduce-grads-in-fp32"
    if n.fp16 and flags.contains(wide):
        launch.left_out.append(
            f"gradients in fp32 beside fp16 weights: 2 bytes a parameter more ({wide})"
        )


def _micro_batches(flags: Flags) -> int:
    """Micro-batches of a step where no flag states the batch."""
    return next((flags.size(name) for name in ACCUMULATION if flags.contains(name)), 1)


def _read_model(flags: Flags, n: Numbers, launch: Launch, vocabulary: int | None) -> None:
    """Vocabulary, positions, attention and the layers with experts."""
    n.vocabulary = _vocabulary(flags, n, launch, vocabulary)
    n.norm_bias = n.norm_bias and not n.rms_norm
    n.gated = n.gated or n.quick_gate or n.gelu_gate or bool(n.other_gate)
    if launch.left_out and n.decoder_sequence:
        n.sequence = n.decoder_sequence
        launch.left_out.append(f"the sequence is the decoder's, {n.sequence:,} tokens")
    learned = n.absolute_positions and not n.rotary
    if learned and not n.positions:
        raise flags.missing_error("--max-position-embeddings")
    n.learned_positions = n.positions if learned else 0
    n.positions = n.positions or flags.literal_size("--max-position-embeddings")
    if n.multi_latent:
        n.kv_heads = n.heads
        n.head_dim, n.value_dim = n.qk_head_dim + n.rope_dim, n.v_head_dim
    else:
        n.kv_heads = _kv_heads(flags, n)
        n.head_dim = n.value_dim = n.kv_channels
    if not n.head_dim:
        why = f"{n.heads} does not divide hidden size {n.hidden}"
        raise flags.value_error("--num-attention-heads", why)
    n.experts = n.experts if n.experts > 1 else 0
    n.sparse = _sparse_layers(flags, n) if n.experts else (False,) * n.layers
    n.windows = (0,) * n.layers


TOKENIZERS = (
    *("--tokenizer-model", "--tokenizer-name-or-path", "--tokenizer-file"),
    *("--patch-tokenizer-type", "--hf-checkpoint"),
)
"""Flags that name a tokenizer of which the script does not state the size."""


def _vocabulary(flags: Flags, n: Numbers, launch: Launch, given: int | None) -> int:
    """Tokens of the vocabulary: stated, given, or those of GPT-2, whose tokenizer is the default.
    Raises InputError where another tokenizer, or a file of unknown size, decides them."""
    name = "--vocab-size" if n.vocabulary else "--padded-vocab-size"
    stated = int(n.vocabulary or n.padded_vocabulary)
    if stated and given not in (None, stated):
        raise flags.value_error(name, f"{stated} contradicts --vocabulary {given}")
    if stated or given is not None:
        launch.vocabulary_source = name if stated else "--vocabulary"
        return stated or given or 0
    named, source = named_vocabulary(flags)
    if named:
        launch.vocabulary_source = source
        return named
    kind = flags.by_name.get("--tokenizer-type")
    if any(map(flags.contains, TOKENIZERS)) or (kind and kind.texts != ("GPT2BPETokenizer",)):
        raise flags.missing_error("--vocab-size", "the tokenizer decides it: give --vocabulary N")
    file = flags.by_name.get("--vocab-file")
    if file and "gpt2" not in "".join(file.texts).lower():
        why = f"{file} decides it (line {file.line}): give --vocabulary N"
        raise flags.missing_error("--vocab-size", why)
    launch.vocabulary_source = "GPT2BPETokenizer"
    return GPT2_VOCABULARY


def _kv_heads(flags: Flags, n: Numbers) -> int:
    """Key/value heads, in the flags of Megatron-LM or of Megatron-DeepSpeed."""
    groups = "--num-query-groups"
    is_used = n.grouped_queries or flags.claim_value(groups, n.heads)
    if flags.contains(groups) and not is_used:
        raise flags.value_error(groups, "has no effect without --group-query-attention")
    own = 1 if n.single_key_head else n.heads
    count = n.key_value_heads or (n.query_groups if n.grouped_queries else own)
    if n.heads % count:
        why = f"{n.heads} is not a multiple of {count} groups"
        raise flags.value_error("--num-attention-heads", why)
    return int(count)


def _sparse_layers(flags: Flags, n: Numbers) -> tuple[bool, ...]:
    """Layers with experts, from N (every Nth, the first included) or a list expression; of
    Megatron-DeepSpeed every Nth from the Nth on."""
    interval = getattr(n, "expert_interval", 0)
    if interval:
        return tuple(layer % interval == 0 for layer in range(1, n.layers + 1))
    text = n.layer_freq.strip("'\"")
    if is_whole(text) and int(text) > 0:
        return tuple(i % int(text) == 0 for i in range(n.layers))
    pattern = _listed_numbers(text)
    if len(pattern) != n.layers or not set(pattern) <= {0, 1}:
        need = f"must be a whole number or a list of {n.layers} zeros and ones: ([0]*3+[1]*29)"
        raise flags.value_error("--moe-layer-freq", f"{text} {need}")
    return tuple(bool(kind) for kind in pattern)


def _listed_numbers(text: str) -> list[int]:
    """The numbers of a list expression; none where it is none."""
    try:
        return _list_value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _list_value(node: ast.expr) -> list[int]:
    """A list made of numbers, + and *."""
    if isinstance(node, ast.List):
        return [_number(item) for item in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _list_value(node.left) + _list_value(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        inner, times = _list_value(node.left), _number(node.right)
        if len(inner) * times <= LONGEST_PATTERN:
            return inner * times
    raise ValueError(node)


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(node)


DEFAULT_DISPATCH = {"deepspeed": Dispatch.ALLTOALL}
"""Exchanges of tokens by framework, where --moe-token-dispatcher-type is not given; those of
Megatron-Core are all-gathers."""
MODULE_LAUNCHES = 3
"""Kernels of an expert that is a module of its own (Megatron-Core, moe/experts.py, SequentialMLP),
as it is without --moe-grouped-gemm: two products, and the activation between them."""


def _read_exchanges(flags: Flags, n: Numbers, launch: Launch) -> None:
    """Communication of context and expert parallelism."""
    codes = {name: int(code) for code, name in CP_COMM_TYPES.items()} | {"allgather": 1}
    kinds = n.cp_comm_types or ("p2p",)
    if len(set(kinds)) > 1 or kinds[0] not in codes:
        why = f"line {flags.line('--cp-comm-type')}: --cp-comm-type {' '.join(kinds)}"
        launch.unmodelled["cp_comm"] = f"{why} is not modelled (modelled: {', '.join(codes)})"
    n.cp_comm = codes.get(kinds[0], 0)
    stated = flags.contains("--moe-token-dispatcher-type")
    default = DEFAULT_DISPATCH.get(launch.framework, Dispatch.ALL_GATHER)
    n.expert_dispatch = int(n.expert_dispatch) if stated else int(default)
    if n.ep == 1 and n.expert_dispatch == Dispatch.ALL_GATHER:
        n.expert_dispatch = int(Dispatch.ALLTOALL)
    if n.experts > 1 and not flags.contains("--moe-grouped-gemm"):
        launch.software["expert_launches"] = MODULE_LAUNCHES


OTHER_SCHEDULES = (
    *("--enable-zero-bubble", "--zero-bubble-v-schedule", "--enable-1f1b-v", "--schedules-method"),
)
"""Flags of forks of Megatron-LM that replace its schedules (sail-sg's, and MindSpeed)."""


def _read_stages(flags: Flags, n: Numbers, launch: Launch) -> None:
    """Chunks, their layers, and the schedule that follows from them."""
    chunks = ("--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage")
    flags.check_exclusive(LAYOUT, *chunks)
    v = _layout_chunks(flags, n, launch) if n.layout else _even_chunks(flags, n, launch)
    n.virtual_stages = v
    n.overlap_p2p = int(v > 1 and not n.blocking_sends)
    n.schedule = "interleaved" if v > 1 else "1f1b"
    for name in filter(flags.contains, OTHER_SCHEDULES if n.pp > 1 else ()):
        launch.unmodelled["schedule"] = f"{name} starts another schedule, which is not read"


def _layout_chunks(flags: Flags, n: Numbers, launch: Launch) -> int:
    """Chunks a rank of an explicit layout."""
    for ends in ("first", "last"):
        flags.check_exclusive(LAYOUT, f"--decoder-{ends}-pipeline-num-layers")
    try:
        chunks = read_layout(n.layout)
    except InputError as error:
        raise flags.value_error(LAYOUT, str(error)) from None
    if len(chunks) % n.pp or sum(chunks) != n.layers:
        raise flags.value_error(
            LAYOUT,
            f"has {len(chunks)} stages with {sum(chunks)} layers; a multiple of {n.pp} stages and "
            f"{n.layers} layers are needed",
        )
    launch.plan |= explicit_layers(chunks, n.pp, len(chunks) // n.pp)
    n.mtp_stage = mtp_stage(n.layout)
    return len(chunks) // int(n.pp)


def _even_chunks(flags: Flags, n: Numbers, launch: Launch) -> int:
    """Chunks a rank, from their number or their layers; the ends may have fewer layers."""
    extra = (int(n.counts_embedding), int(n.counts_loss))
    ends = n.pp > 1 and (n.first_stage_layers or n.last_stage_layers)
    total, v = int(n.layers + sum(extra)), int(n.chunks_a_rank)
    if n.layers_per_chunk:
        if total % (n.pp * n.layers_per_chunk):
            why = f"{n.layers_per_chunk} x {n.pp} stages does not divide {total} layers"
            raise flags.value_error("--num-layers-per-virtual-pipeline-stage", why)
        v = total // (n.pp * n.layers_per_chunk)
    if any(extra) and n.pp > 1:
        if ends or total % (n.pp * v):
            raise launch.refuse(
                f"embedding and loss count as layers of the stages: {total} must be a multiple of "
                f"{n.pp * v} chunks, without uneven ends"
            )
        chunks = [total // (n.pp * v)] * (n.pp * v)
        chunks[0] -= extra[0]
        chunks[-1] -= extra[1]
        launch.plan |= explicit_layers(chunks, n.pp, v)
    elif n.layers % (n.pp * v) and not ends:
        raise launch.refuse(f"{n.layers} layers cannot be cut into {n.pp * v} equal chunks")
    return v


def _read_recompute(flags: Flags, n: Numbers, launch: Launch) -> None:
    """Recompute; what no plan can have is noted as unmodelled."""
    if n.recompute_activations:
        n.recompute = Recompute.SELECTIVE
    if n.checkpoint_activations:
        n.recompute = Recompute.FULL
    modules, method = n.recompute_modules or DEFAULT_MODULES, n.recompute_method or "uniform"
    if n.recompute == Recompute.SELECTIVE:
        if n.recompute_method:
            raise flags.value_error("--recompute-method", "contradicts selective recompute")
        unknown = [module for module in modules if module not in MODULES]
        if unknown:
            why = f"line {flags.line('--recompute-modules')}: recompute of {', '.join(unknown)}"
            launch.unmodelled["recompute"] = (
                f"{why} is not modelled (modelled: {', '.join(MODULES)})"
            )
        launch.software["selective"] = tuple(m for m in modules if m in MODULES)
    if n.recompute == Recompute.FULL:
        count = n.recompute_num_layers or 1
        largest = _largest_chunk(n, launch) if method == "block" else 1
        if (method == "block" and count < largest) or (method == "uniform" and count > 1):
            line = flags.line("--recompute-num-layers")
            launch.unmodelled["recompute"] = (
                f"line {line}: {method} recompute of {count} layers is not modelled "
                f"(modelled: {method} {largest}, every layer)"
            )


def _largest_chunk(n: Numbers, launch: Launch) -> int:
    """Layers of the largest chunk."""
    stated = launch.plan.get("layers_per_stage", ())
    ends = (n.first_stage_layers, n.last_stage_layers)
    return int(max([*stated, *ends, -(-n.layers // (n.pp * n.virtual_stages))]))


ROUTED = ("--moe-", "--routing-mode")
"""How flags begin that no version has which routes a token to one expert unless told."""


def note_routing(flags: Flags, n: Numbers, launch: Launch) -> None:
    """Say that the experts of a token are a default, which was one before core 0.5: its experts
    had no flags of their own (legacy/model/transformer.py, SwitchMLP)."""
    if n.experts and not any(flag.name.startswith(ROUTED) for flag in flags.in_order):
        where = f"line {flags.line('--num-experts')}"
        launch.left_out.append(
            f"{n.top_k} experts a token, the default since core 0.5: for an older version, which "
            f"has one, add --moe-router-topk 1 ({where})"
        )


def windows_from_flags(flags: Flags, n: Numbers) -> None:
    """Add the window of every layer: LEFT keys before a query and its own, by a pattern of layers.

    Raises InputError where the layer of multi-token prediction, which comes after the last layer,
    has another window than that.
    """
    name, window = "--window-size", _window_keys(flags, n.window_size) if n.window_size else 0
    if not window:
        return
    if n.window_freq:
        name = "--window-attn-skip-freq"
    windowed = _windowed_layers(flags, n)
    n.windows = tuple(window * has for has in windowed[: n.layers])
    if set(windowed[n.layers :]) - {windowed[n.layers - 1]}:
        why = "gives multi-token prediction another window than the last layer, not modelled"
        raise flags.value_error(name, why)


def _window_keys(flags: Flags, text: str) -> int:
    """Keys that a query sees under the causal mask, its own included; 0 for all."""
    try:
        left, right = (int(part) for part in text.strip("()[]").split(","))
    except ValueError:
        left, right = -1, 1
    if (left == -1 and right not in (-1, 0)) or not -1 <= left < LARGEST:
        raise flags.value_error(
            "--window-size", f"{text} must be LEFT,0 with LEFT at least 0, or -1,0"
        )
    return left + 1


def _windowed_layers(flags: Flags, n: Numbers) -> list[bool]:
    """Which layers have the window, that of multi-token prediction too: all, all but every Nth, or
    those of a list expression."""
    text, total = n.window_freq, n.layers + n.mtp_layers
    if not text:
        return [True] * total
    if is_whole(text) and int(text) > 0:
        return [layer % int(text) != 0 for layer in range(1, total + 1)]
    pattern = _listed_numbers(text)
    if len(pattern) < total or not set(pattern) <= {0, 1}:
        need = f"must be a whole number or a list of {total} zeros and ones: ([1]*5+[0])*4"
        raise flags.value_error("--window-attn-skip-freq", f"{text} {need}")
    return [bool(kind) for kind in pattern[:total]]


MUON_MODE = "--muon-tp-mode"


def sharding_from_flags(flags: Flags, n: Numbers, launch: Launch) -> None:
    """Add the ZeRO stage and the overlaps of Megatron-LM; the stage of Megatron-FSDP without a
    strategy is noted as open, since its default is another one since core 0.18."""
    flags.check_exclusive("--use-megatron-fsdp", "--use-torch-fsdp2")
    for name, shards, whole in (
        ("--tensor-parallel-num-weight-shards", n.weight_shards, n.tp),
        ("--expert-tensor-parallel-num-weight-shards", n.expert_weight_shards, n.etp),
    ):
        if shards != whole:
            why = f"shards weights over more than {whole} tensor ranks, which is not modelled"
            raise flags.value_error(name, why)
    if n.fsdp and not flags.contains(STRATEGY):
        launch.unmodelled["zero"] = (
            f"{STRATEGY} is not stated: it is no_shard (zero=0) before core 0.18, and "
            "optim_grads_params (zero=3) since"
        )
    if n.optimizer == Optimizer.MUON:
        n.layer_wise |= "dist_muon" in flags.by_name["--optimizer"].texts
        n.distributed_optimizer |= n.layer_wise
        if n.tp > 1 and not flags.contains(MUON_MODE):
            launch.unread.append(
                UnreadSetting(
                    MUON_MODE,
                    "not stated, taken as blockwise: it is duplicated after core 0.19",
                    affects_cost=True,
                    is_derived=True,
                )
            )
    n.overlap_grad_reduce = n.overlap_grad_reduce or n.overlapped_optimizer
    if flags.contains(OLDER_DDP) and "torch" in flags.by_name[OLDER_DDP].texts and n.pp == 1:
        n.overlap_grad_reduce = flags.claim(OLDER_DDP)
    n.distributed_optimizer = n.distributed_optimizer or n.overlapped_optimizer
    n.zero = n.sharding_strategy if n.fsdp else int(n.distributed_optimizer)
    if n.torch_fsdp:
        n.zero, n.overlap_grad_reduce, n.overlap_param_gather = 3, True, True
        n.replicas = n.bucket_parameters = 0
    elif n.overlap_param_gather and not (n.zero and n.overlap_grad_reduce):
        name = "--overlap-param-gather"
        raise flags.value_error(name, "needs --use-distributed-optimizer and --overlap-grad-reduce")
    wide = flags.contains("--accumulate-allreduce-grads-in-fp32")
    if wide and n.main_grads_dtype == StateFormat.BF16:
        why = "contradicts --accumulate-allreduce-grads-in-fp32: there is one buffer of gradients"
        raise flags.value_error("--main-grads-dtype", why)
    n.grad_reduce_dtype = n.grad_reduce_dtype if n.bf16 else StateFormat.USUAL


def offload_from_flags(flags: Flags, n: Numbers, launch: Launch) -> None:
    """Add the shares on the host; what no plan can have is noted as unmodelled."""
    n.offload_activations = percent_of(n.offloaded_layers, n.layers) if n.offloaded_layers else 0
    if n.offloads_modules:
        n.offload_activations = _module_share(flags, n, launch)
    n.offload_optimizer = _optimizer_share(flags, n, launch) if n.offloads_optimizer else 0


def _module_share(flags: Flags, n: Numbers, launch: Launch) -> int:
    """Percent of the layers whose modules offload their inputs: all of them."""
    fine, names = "--fine-grained-activation-offloading", "--offload-modules"
    flags.check_exclusive(fine, "--cpu-offloading-num-layers")
    unknown = [module for module in n.offload_modules if module not in OFFLOADABLE]
    if unknown or not n.offload_modules:
        known = ", ".join(OFFLOADABLE)
        raise flags.value_error(
            fine, f"needs {names} among {known}, not {' '.join(unknown) or 'none'}"
        )
    launch.software["offload_modules"] = tuple(n.offload_modules)
    return 100


def _optimizer_share(flags: Flags, n: Numbers, launch: Launch) -> int:
    """Percent of the optimizer that is on the host."""
    fraction, text = "--optimizer-offload-fraction", n.offloaded_fraction
    try:
        percent = 100 * float(text)
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100:
        raise flags.value_error(fraction, f"{text} must be a number from 0 to 1")
    if abs(percent - round(percent)) > 1e-6:
        line = flags.line(fraction)
        launch.unmodelled["offload_optimizer"] = (
            f"line {line}: {fraction} {text} is not a whole percent"
        )
    if not n.overlapped_copies:
        line, wanted = flags.line("--optimizer-cpu-offload"), "--overlap-cpu-optimizer-d2h-h2d"
        launch.unmodelled["offload_optimizer"] = (
            f"line {line}: copies that wait for the update are not modelled (modelled: {wanted})"
        )
    return round(percent)
