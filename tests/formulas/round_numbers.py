"""A cluster, a stack and a model with round numbers, so that a reader can check expected values.

Kernels run at the peak of 100 TFLOP/s and at the memory bandwidth of 1 TB/s, backward passes take
twice as long as forward ones, and a collective takes a latency and bytes over a bandwidth; every
operation has numbers of its own, so that one in the place of another shows. The functions at the
end are those times as a person computes them, without plan3d's code.
"""

from dataclasses import replace

from plan3d.simulator.hardware.accelerator import (
    Accelerator,
    AttentionTime,
    GemmTime,
    MemoryBoundTime,
    TrainingTime,
)
from plan3d.simulator.hardware.cluster import (
    Cluster,
    CollectiveTime,
    FastDomain,
    Host,
    InterNodeNetwork,
)
from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.hardware.software import Software
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.layers.layer_kinds import LayerContext, LayerKind, layer_context, layer_kinds
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.step.stages import strategies
from plan3d.simulator.task import Task
from plan3d.simulator.workload.blocks import Attention, Block, Experts, Mlp
from plan3d.simulator.workload.model import Model

# Memory never decides a product, so a GEMM takes its FLOPs over the peak.
_AT_PEAK = GemmTime(efficiency=1.0, memory_efficiency=1e12, latency=0.0, sharpness=2.0)
ACCELERATOR = Accelerator(
    name="round",
    title="An accelerator of round numbers",
    memory=80e9,
    memory_bandwidth=1e12,
    power=500.0,
    peak={"bf16": 100e12, "fp16": 100e12, "fp8": 200e12, "fp32": 20e12},
    gemm={"32bit": _AT_PEAK, "16bit": _AT_PEAK, "8bit": _AT_PEAK},
    attention=AttentionTime(efficiency=1.0, diagonal_tokens=0.0, latency=0.0, backward_ratio=2.0),
    memory_bound=MemoryBoundTime(efficiency=1.0, latency=0.0),
    training=TrainingTime(streaming_efficiency=1.0),
)


def _link(latency: float, bandwidth: float) -> CollectiveTime:
    return CollectiveTime(latency=latency, latency_per_step=0.0, root=0.0, bandwidth=bandwidth)


FAST = FastDomain(
    name="round link",
    gpus=8,
    bandwidth=200e9,
    all_reduce=_link(30e-6, 80e9),
    all_gather=_link(10e-6, 100e9),
    reduce_scatter=_link(20e-6, 50e9),
    all_to_all=_link(0.0, 40e9),
    send=_link(5e-6, 20e9),
)
NETWORK = InterNodeNetwork(
    name="round network",
    bandwidth=10e9,
    efficiency=1.0,
    latency=100e-6,
    latency_per_node=0.0,
    root=0.0,
)
HOST = Host(link_bandwidth=20e9, link_gpus=2, memory_bandwidth=400e9, memory=1e12)
SOFTWARE = replace(
    software_profile("megatron-core"),
    step_seconds=0.0,
    lone_step_seconds=0.0,
    name="round",
    title="A stack that adds nothing of its own",
    sustained=1.0,
    rank_spread=0.0,
    flash_attention=True,
    backward_bytes_ratio=2.0,
    wgrad_rate=1.0,
    layer_floor=0.0,
    adapter_floor=0.0,
    expert_floor=0.0,
    module_seconds=0.0,
    expert_seconds=0.0,
    backward_floor_ratio=1.5,
    tp_overlap_share=0.5,
    contention=0.25,
    kernel_contention=0.0,
    fsdp_contention=0.5,
    bucket_parameters=1e6,
    expert_exchange=True,
    expert_overlap=True,
    vocabulary_multiple=1,
    logit_bytes=10.0,
    kept_logit_bytes=6.0,
    gather_buffers=3.0,
    cublas_workspaces=0.0,
    expert_workspaces=0.0,
    context_bytes=1e9,
    connection_bytes=1e6,
    allocator_slack=0.0,
    rerun_slack=0.0,
    uncounted=0.0,
    selective=(),
    norm_in_linear=False,
    bucket_parameters_per_rank=0.0,
    clipping_bytes=0.0,
)
ATTENTION = Attention(heads=8, kv_heads=8, head_dim=128, value_dim=128)
BLOCK = Block(attention=ATTENTION, mlp=Mlp(ffn=4096, gated=False))
EXPERTS = Experts(count=8, top_k=2, ffn=4096, gated=False)
MODEL = Model(name="tiny", hidden=1024, vocabulary=1024, kinds=(BLOCK,), order=(0, 0, 0, 0))
LAYER, TABLE = 12 * 1024**2 + 2 * 1024, 1024**2
"""Parameters of a layer, matrices and two norms; of embedding and head."""
PARAMETERS = 4 * LAYER + 2 * TABLE + 1024

# Seconds of forward passes of 1024 tokens: matrices twice a token at 100 TFLOP/s; 8 heads of 1024
# queries against 512 keys, 256 wide; at 1 TB/s two bytes of 11 h elements of norms and residuals,
# 8 h around attention and 12 h of the MLP, of 2 h elements at the ends, and 8 bytes a logit.
MATMUL = 2 * 1024 * 12 * 1024**2 / 100e12
SCORES = 2 * 8 * 1024 * 512 * 256 / 100e12
MOVED = 2 * 1024 * (11 + 8 + 12) * 1024 / 1e12
FORWARD = MATMUL + SCORES + MOVED
EMBEDDING = 2 * 1024 * 2 * 1024 / 1e12
LOGITS = 2 * 1024 * 1024**2 / 100e12
HEAD = LOGITS + EMBEDDING + 8 * 1024**2 / 1e12


def cluster(gpus: int, **changes: object) -> Cluster:
    """GPUs of round numbers in domains of eight."""
    parts = {"accelerator": ACCELERATOR, "fast_domain": FAST, "network": NETWORK, "host": HOST}
    return Cluster(name="round", gpus=gpus, gpus_per_node=8, provenance={}, **{**parts, **changes})


def task(gpus: int = 1, batch: int = 4, model: Model = MODEL, **changes: object) -> Task:
    """Train the tiny model with sequences of 1024 tokens."""
    fields = {"sequence": 1024, "cluster": cluster(gpus), "software": SOFTWARE, **changes}
    return Task(model=model, global_batch=batch, **fields)


def stack(**changes: object) -> Software:
    """The stack with some fields of its own."""
    return replace(SOFTWARE, **changes)


def of_blocks(*kinds: Block, **fields: object) -> Model:
    """The tiny model with other blocks, one after another; four where there is one kind."""
    order = tuple(range(len(kinds))) if len(kinds) > 1 else (0, 0, 0, 0)
    return replace(MODEL, kinds=kinds, order=order, **fields)


def sparse(**fields: object) -> Model:
    """The tiny model with experts in place of its MLPs."""
    return of_blocks(Block(attention=ATTENTION, experts=replace(EXPERTS, **fields)))


def costs_of(question: Task, text: str):
    """Costs of one plan as it is written."""
    return evaluate(question, Plan.parse(text))


def group_of(question: Task, text: str):
    """What plan3d tabulates for one plan: its stages, their synchronisation and memory."""
    (group,) = costs_of(question, text).groups
    return group


def local(question: Task, text: str = "tp=1") -> LayerContext:
    """What one layer sees of a plan."""
    plan = resolve(Plan.parse(text), question.gpus).table()
    return layer_context(question, RECIPES[Precision(int(plan.precision[0]))], strategies(plan))


def kind(model: Model, name: str) -> LayerKind:
    """A layer kind by name: block 0, embedding, head, mtp ..."""
    return next(one for one in layer_kinds(model) if one.name == name)


# Seconds of collectives among n ranks inside a domain: what a rank sends over the bandwidth.


def gather(size: float, n: int) -> float:
    return 10e-6 + (n - 1) / n * size / 100e9


def scatter(size: float, n: int) -> float:
    return 20e-6 + (n - 1) / n * size / 50e9


def reduce(size: float, n: int) -> float:
    return 30e-6 + 2 * (n - 1) / n * size / 80e9


def exchange(size: float, n: int) -> float:
    return (n - 1) / n * size / 40e9


def send(size: float) -> float:
    return 5e-6 + size / 20e9


def send_across(size: float) -> float:
    return 100e-6 + size / 10e9
