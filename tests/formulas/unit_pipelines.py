"""Pipelines in which everything takes whole seconds, so that a step can be added up by hand.

A GPU does 1 FLOP/s, so a layer of 1 FLOP runs forward in a second, and its input and weight
gradients take another each. A layer has 100 parameters (200 bytes of weights, 400 of gradients,
1,200 of optimizer state), keeps 10 bytes for its backward pass and hands on 50. A send takes half a
second. The stack adds nothing of its own: no launches, buffers, context or contention.
"""

from dataclasses import replace

from plan3d.simulator.hardware.accelerator import (
    Accelerator,
    AttentionTime,
    GemmTime,
    MemoryBoundTime,
    TrainingTime,
)
from plan3d.simulator.hardware.cluster import Cluster, CollectiveTime, FastDomain, InterNodeNetwork
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.blocks import ListedLayer
from plan3d.simulator.workload.model import Network

_AT_PEAK = GemmTime(efficiency=1.0, memory_efficiency=1e30, latency=0.0, sharpness=1.0)
ACCELERATOR = Accelerator(
    name="unit",
    title="One FLOP/s",
    memory=1e5,
    memory_bandwidth=1e4,
    power=1.0,
    peak={"bf16": 1.0},
    gemm={"16bit": _AT_PEAK},
    attention=AttentionTime(efficiency=1.0, diagonal_tokens=0.0, latency=0.0, backward_ratio=2.0),
    memory_bound=MemoryBoundTime(efficiency=1.0, latency=0.0),
    training=TrainingTime(streaming_efficiency=1.0),
)


def _link(bandwidth: float) -> CollectiveTime:
    return CollectiveTime(latency=0.0, latency_per_step=0.0, root=0.0, bandwidth=bandwidth)


FAST = FastDomain(
    name="unit link",
    gpus=8,
    bandwidth=100.0,
    all_reduce=_link(50.0),
    all_gather=_link(25.0),
    reduce_scatter=_link(40.0),
    all_to_all=_link(100.0),
    send=_link(100.0),
)
LINKS = InterNodeNetwork(
    name="unit network", bandwidth=20.0, efficiency=1.0, latency=0.0, latency_per_node=0.0, root=0.0
)
SOFTWARE = replace(
    software_profile("megatron-core"),
    step_seconds=0.0,
    lone_step_seconds=0.0,
    clipping_bytes=0.0,
    name="unit",
    title="A stack that adds nothing of its own",
    sustained=1.0,
    rank_spread=0.0,
    flash_attention=True,
    wgrad_rate=1.0,
    layer_floor=0.0,
    adapter_floor=0.0,
    expert_floor=0.0,
    module_seconds=0.0,
    backward_floor_ratio=1.5,
    contention=0.0,
    kernel_contention=0.0,
    fsdp_contention=0.0,
    boundary_buffers=0.0,
    context_bytes=0.0,
    connection_bytes=0.0,
    allocator_slack=0.0,
    rerun_slack=0.0,
    uncounted=0.0,
    selective=(),
    bucket_parameters_per_rank=0.0,
    expert_exchange=False,
    expert_overlap=False,
)


def layer(seconds: float = 1.0, parameters: int = 100, boundary: float = 50.0) -> ListedLayer:
    """A layer whose forward pass takes these seconds and which hands on these bytes."""
    return ListedLayer(
        parameters=parameters, forward_flops=seconds, activation_bytes=10, boundary_bytes=boundary
    )


FOUR = (layer(), layer(), layer(), layer())


def cluster(gpus: int, memory: float = 1e5) -> Cluster:
    """GPUs in fast domains of eight."""
    return Cluster(
        name="unit",
        accelerator=replace(ACCELERATOR, memory=memory),
        gpus=gpus,
        gpus_per_node=8,
        fast_domain=FAST,
        network=LINKS,
        host=None,
        provenance={},
    )


def task(
    gpus: int, batch: int = 8, layers: tuple[ListedLayer, ...] = FOUR, **software: object
) -> Task:
    """Train a list of layers with `batch` samples a step."""
    stack = replace(SOFTWARE, **software)
    return Task(
        Network.from_layers("unit", layers),
        cluster(gpus),
        sequence=1,
        global_batch=batch,
        software=stack,
    )


def costs(question: Task, text: str) -> Costs:
    """Costs of one plan as it is written."""
    return evaluate(question, Plan.parse(text))


def parts(question: Task, text: str) -> dict[str, float]:
    """Seconds of the parts of a step that are not zero."""
    return {name: seconds for name, seconds in costs(question, text).seconds.items() if seconds}
