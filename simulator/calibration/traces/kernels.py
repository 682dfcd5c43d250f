"""Classes of kernels by name, and the part of a step that each class belongs to.

One table: the first pattern that a name matches decides. What the metadata of a collective says
comes before names. Names are those that the libraries give their kernels; Triton's, of Inductor,
hold the operators that they fuse.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from .reader import UPDATE_PASS, Kernel


class KernelClass(NamedTuple):
    """One row of the table."""

    name: str
    part: str
    """matmul, attention, memory_bound, optimizer, communication, host_comm or other."""
    pattern: str


COMMUNICATION = "communication"
OTHER = "other"
CLASSES = (
    # NCCL and RCCL of all ages, torch symmetric memory, custom all-reduces, DeepEP and NVSHMEM.
    KernelClass("all_to_all", COMMUNICATION, r"nccl\w*all_?to_?all"),
    KernelClass("all_reduce", COMMUNICATION,
        r"nccl\w*all_?reduce|multimem_all_reduce|(one|two)_shot_all_reduce|cross_device_reduce|"
        r"allreduce_fusion|lamport\w*all_?reduce|userbuffers\w*allreduce|quickreduce"),
    KernelClass("reduce_scatter", COMMUNICATION,
        r"nccl\w*reduce_?scatter|multimem\w*reduce_?scatter|userbuffers\w*(rs|reduce_?scatter)"),
    KernelClass("all_gather", COMMUNICATION,
        r"nccl\w*all_?gather|multimem\w*all_?gather|userbuffers\w*(ag|all_?gather)"),
    KernelClass("send_recv", COMMUNICATION,
        r"nccl\w*send_?recv|nccl\w*(send|recv)|userbuffers\w*(send|recv)"),
    KernelClass("broadcast", COMMUNICATION, r"nccl\w*broadcast"),
    KernelClass("all_to_all", COMMUNICATION,
        r"\b(deep_?ep|hybrid_?ep|ep)::|internode(_ll)?::|intranode::|"
        r"\b(cached_)?notify_(dispatch|combine)|\b(ep|moe|deepep|hybridep)_?(dispatch|combine)_ker|"
        r"nvshmem\w*(alltoall|all_to_all)"),
    KernelClass("collective", COMMUNICATION, r"(nccl|rccl|msccl|nvshmem|userbuffers)"),
    KernelClass("spin", OTHER, r"spin_kernel|sleep_kernel|nanosleep"),
    KernelClass("cache", "memory_bound", r"reshape_and_cache|kv_?cache"),
    # Attention before products: the names of its kernels hold 'gemm' and 'cutlass' too.
    KernelClass("attention_backward", "attention",
        r"(flash|fmha|attn|attention|sdpa|mha|mla)\w*?(_|::|<)?\w*(bwd|backward|dgrad|dq_?dk|dkdv|"
        r"dot_do_o|convert_dq)|cudnn::fusion::(compute_dot_do|convert_dq)|"
        r"bwd\w*(fmha|attn|attention)|FmhaBwd|mha_bwd"),
    KernelClass("attention", "attention",
        r"flash|fmha|sdpa|attention|_?attn|\bmha_|mla_(fwd|decode|prefill)|"
        r"cunn_softmax\w*attn|ring_attn|sage_?(attn|fwd)|lightning_indexer|mqa_logits"),
    # Optimizers: apex, PyTorch's foreach and fused, Transformer Engine, bitsandbytes, DeepSpeed.
    KernelClass("optimizer", "optimizer",
        r"multi_?tensor|adam|lamb_|sgd_|adagrad|rowwise_adagrad|muon|newton_?schulz|fused_optim|"
        r"l2norm|lpnorm|\bamp_(update|non_finite)|unscale"),
    # Products: cuBLAS and nvjet, CUTLASS and CuTe, cuDNN, hipBLASLt and rocBLAS (Cijk), CK, Triton.
    KernelClass("convolution", "matmul",
        r"conv(olution|olve|2d|3d|_|\d)|scudnn|cudnn\w*(fprop|dgrad|wgrad)|fprop|implicit_?gemm|igemm_|"
        r"winograd|wgrad_alg|dgrad_(alg|engine)|fft\dd|gcgemm|cgemm|miopenSp3|naive_conv|Im2d?2?Col|Col2Im"),
    # Casts and scales of low precision: Transformer Engine, torchao, DeepSeek's and others.
    KernelClass("cast", "memory_bound",
        r"cast_(transpose|mxfp8|fp8|nvfp4|only)|transpose_?cast|(de)?quant|per_token_cast|fp8_cast|"
        r"cast_kernel|amax|scale_inv|swizzle|scaling_kernel|hadamard|mxfp\d_?(cast|pack)|"
        r"_to_(fp8|float8|mxfp8|float)|FP8row|cast_back"),
    KernelClass("gemm", "matmul",
        r"gemm|nvjet|cublas|cutlass|xmma|wgmma|\bcijk_|gemv|splitk|split_k|dot_kernel|"
        r"s16816|s1688|tensorop|\bbmm_|matmul|\bmm_|_mm_|triton_tem_fused\w*mm|ck_?tile\w*(flat)?mm|"
        r"deep_?gemm|grouped_mm|\bmmk?_|tinygemm|\bkernel_cutlass|marlin|machete"),
    # Everything that moves bytes.
    KernelClass("norm", "memory_bound",
        r"layer_?norm|rms_?norm|group_?norm|batch_?norm|\bln_|norm_(fwd|bwd|forward|backward)|"
        r"rmsnorm|bn_(fw|bw)|GammaBeta|BatchNorm|RowwiseMoments|norm_kernel|_norm_"),
    KernelClass("experts", "memory_bound",
        r"permut|unpermut|moe|topk|top_k|router|routing|sort_chunks|group_limited|expert|scatter_add|"
        r"token_(sort|count)|histogram|finalize\w*scatter"),
    KernelClass("loss", "memory_bound",
        r"cross_?entropy|nll_loss|softmax|log_?softmax|vocab_parallel|loss"),
    KernelClass("embedding", "memory_bound", r"embedding|embed|rotary|rope|cos_sin"),
    KernelClass("activation", "memory_bound",
        r"gelu|silu|swi_?glu|sigmoid|relu|act_and_mul|\bglu|geglu|tanh|dropout|threshold_kernel"),
    KernelClass("triton", "memory_bound", r"^_?triton_(poi|red|per|for|mm|unk)?|^triton"),
    KernelClass("elementwise", "memory_bound",
        r"elementwise|reduce_kernel|reduction|copy|fill|cat(array|_)|index|gather|scatter|transpose|"
        r"where|arange|cumsum|scan|sort|cub::|thrust|rocprim|hipcub|pool|distribution|random|philox|"
        r"nhwc|nchw|upsample|permute|tril|triu|masked|foreach|reduce|memset|memcpy|add_|mul_|sum_|"
        r"unrolled|vectorized|conj|cos|sin|pow|zero|compare|select|bounds_check|linearize|"
        r"at::native|fbgemm|concat|pad_|mean_"),
)  # fmt: skip
"""Classes in the order in which they are tried."""
_PATTERNS = tuple((one, re.compile(one.pattern, re.I)) for one in CLASSES)
_UNKNOWN = KernelClass("unknown", OTHER, "")
_BY_NAME = {one.name: one for one in CLASSES}
_FUSED_OPERATORS = re.compile(r"^triton_(tem|poi|red|per|for|unk)_fused_?(.*)", re.I)
OPERATIONS = (
    ("reduce_scatter", "reduce_scatter"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("all_gather", "all_gather"),
    ("allreduce", "all_reduce"),
    ("all_reduce", "all_reduce"),
    ("alltoall", "all_to_all"),
    ("all_to_all", "all_to_all"),
    ("broadcast", "broadcast"),
    ("send", "send_recv"),
    ("recv", "send_recv"),
    ("gather", "all_gather"),
    ("scatter", "reduce_scatter"),
    ("reduce", "all_reduce"),
    ("barrier", "all_reduce"),
)
"""Classes of torch.distributed's collectives by what their names hold."""


@lru_cache(maxsize=65536)
def class_of_name(name: str) -> KernelClass:
    """The class of a kernel by its name alone."""
    fused = _FUSED_OPERATORS.match(name)
    if fused:
        template = fused.group(1).lower() == "tem"
        attention = "attention" in fused.group(2) or "flex" in fused.group(2)
        if template:
            return _BY_NAME["attention" if attention else "gemm"]
        rows = ("norm", "loss", "embedding", "activation", "triton")
        patterns = ((one, compiled) for one, compiled in _PATTERNS if one.name in rows)
        return next((one for one, p in patterns if p.search(fused.group(2))), _BY_NAME["triton"])
    return next((one for one, pattern in _PATTERNS if pattern.search(name)), _UNKNOWN)


def class_of(kernel: Kernel) -> KernelClass:
    """The class of a kernel: of a collective what its metadata says, then what its name says."""
    if kernel.category == "memset":
        return _BY_NAME["elementwise"]
    if kernel.category == "memcpy":
        return copy_class(kernel.name)
    by_name = class_of_name(kernel.name)
    if kernel.collective.operation and by_name.part in (COMMUNICATION, OTHER):
        for word, name in OPERATIONS:
            if word in kernel.collective.operation:
                return _BY_NAME[name]
    return by_name


def copy_class(name: str) -> KernelClass:
    """Copies inside a GPU move bytes; others go to or come from the host or another GPU."""
    text = name.lower().replace(" ", "")
    if "ptop" in text or "peer" in text:
        return KernelClass("peer_copy", COMMUNICATION, "")
    on_host = any(word in text for word in ("htod", "dtoh", "hosttodevice", "devicetohost"))
    return KernelClass("host_copy", "host_comm", "") if on_host else _BY_NAME["elementwise"]


def part_of(kernel: Kernel, phase: int) -> str:
    """The part of a step that a kernel belongs to; whatever moves bytes inside an optimizer's step
    is the optimizer's."""
    part = class_of(kernel).part
    return "optimizer" if phase == UPDATE_PASS and part in ("memory_bound", OTHER) else part


def short_name(name: str) -> str:
    """A kernel's name as people say it: without return type, namespaces and template arguments."""
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    inner = re.search(r"(?:Kernel|device_kernel|Kernel2)<([\w:]+)", text)
    head = re.split(r"[<(]", text, maxsplit=1)[0]
    if inner and head.rpartition("::")[2] in ("Kernel", "Kernel2", "device_kernel"):
        head = inner.group(1)
    if head.endswith("elementwise_kernel"):
        functor = re.search(r"(\w+?)(?:_kernel_cuda|Functor|_kernel_impl|CUDAKernelImpl)", text)
        if functor:
            return f"{head.rpartition('::')[2]} {functor.group(1)}"
    parts = [part for part in head.split("::") if part]
    return "::".join(parts[-2:])[:60] if parts else name[:60]
