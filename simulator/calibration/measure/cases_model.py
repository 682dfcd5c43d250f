"""Steps of small Llama models as FSDP2 runs them, on one rank: each layer compiled and wrapped.

fp32 parameters, gradients and AdamW moments; a layer is gathered as its bf16 copy before either
pass and dropped after it; gradients are clipped to a norm of one; logits and loss are compiled, the
logits bf16 and the loss fp32. No data loader and no logging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .cases import Case
from .cases_layer import MODELS, Layer, layer_forward, layer_weights
from .cases_training import TrainingStep, timed_step

LLAMA_1B, LLAMA_8B = (Layer(*sizes, 1) for sizes in MODELS[:2])
LLAMA_3B = Layer(3072, 8192, 24, 8, 128, 1)
SETTINGS = (
    TrainingStep(LLAMA_1B, 16, 128_256, 1, 4096, 1, 0),
    TrainingStep(LLAMA_3B, 28, 32_000, 1, 4096, 1, 0),
    TrainingStep(LLAMA_8B, 8, 128_256, 1, 4096, 1, 0),
    TrainingStep(LLAMA_8B, 8, 128_256, 1, 8192, 1, 1),
    TrainingStep(LLAMA_3B, 28, 32_000, 2, 4096, 1, 1),
    TrainingStep(LLAMA_1B, 16, 128_256, 2, 8192, 1, 1),
    TrainingStep(LLAMA_8B, 8, 128_256, 1, 4096, 4, 0),
    TrainingStep(LLAMA_3B, 28, 32_000, 1, 8192, 1, 1),
    TrainingStep(LLAMA_1B, 16, 128_256, 4, 2048, 1, 0),
    TrainingStep(LLAMA_8B, 8, 128_256, 2, 4096, 1, 0),
    TrainingStep(LLAMA_3B, 28, 32_000, 1, 2048, 4, 0),
    TrainingStep(LLAMA_1B, 16, 128_256, 1, 16_384, 1, 1),
)
"""Models of 1 to 4 billion parameters that train on 80 GB: depth, vocabulary, micro-batch,
sequence, micro-batches, recompute."""
QUICK_SETTINGS = (
    TrainingStep(Layer(64, 128, 4, 2, 16, 1), 2, 256, 1, 32, 1, 0),
    TrainingStep(Layer(64, 128, 4, 2, 16, 1), 2, 256, 2, 16, 2, 1),
)
LARGEST_NORM = 1.0


def model(quick: bool) -> Iterator[Case]:
    """Twelve settings, not predicted by anything that the other suites measure alone."""
    prepare = partial(model_step, compiled=not quick)
    for sizes in QUICK_SETTINGS if quick else SETTINGS:
        run = partial(timed_step, prepare=prepare, sizes=sizes)
        yield Case(suite="model", op="fsdp2_compiled", shape=sizes.shape, run=run)


def model_step(device: str, sizes: TrainingStep, *, compiled: bool = True) -> Callable[[], Any]:
    """Allocates a model and its optimizer; the call trains it by one step on the same random tokens
    every time and returns the loss. The first call compiles."""
    import torch

    torch.compiler.reset()  # else shapes of the case before would be made symbolic
    network = _network(device, sizes, compiled)
    adam = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    shape = (sizes.micro_batches, sizes.batch, sizes.sequence + 1)
    tokens = torch.randint(sizes.vocabulary, shape, device=device)
    loss_of = torch.compile(_loss, dynamic=False) if compiled else _loss

    def step() -> Any:
        adam.zero_grad()
        total = torch.zeros((), device=device)
        for ids in tokens:
            # One expression, so that no name keeps the logits beside their gradient.
            loss = loss_of(network(ids[:, :-1]), ids[:, 1:]) / sizes.micro_batches
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(network.parameters(), LARGEST_NORM, foreach=True)
        adam.step()
        return total

    return step


def _loss(logits: Any, targets: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _network(device: str, sizes: TrainingStep, compiled: bool) -> Any:
    """Embedding, layers, norm and head as modules, of which each layer and the rest are sharded."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.utils.checkpoint import checkpoint

    class TransformerLayer(torch.nn.Module):  # type: ignore[misc]
        """Pre-norm attention and gated MLP of cases_layer."""

        def __init__(self) -> None:
            super().__init__()
            options: dict[str, Any] = {"dtype": torch.float32, "device": device}
            made = layer_weights(sizes.layer, options)
            self.weights = torch.nn.ParameterList(map(torch.nn.Parameter, made))

        def forward(self, x: Any) -> Any:
            weights = list(self.weights)
            if sizes.recompute:
                return checkpoint(layer_forward, x, weights, sizes.layer, use_reentrant=False)
            return layer_forward(x, weights, sizes.layer)

    def layer() -> Any:
        made = TransformerLayer()
        return torch.compile(made, fullgraph=True, dynamic=False) if compiled else made

    class Network(torch.nn.Module):  # type: ignore[misc]
        """A decoder whose head is not tied to its embedding."""

        def __init__(self) -> None:
            super().__init__()
            table = (sizes.vocabulary, sizes.layer.hidden)
            self.embedding = torch.nn.Embedding(*table, device=device)
            self.layers = torch.nn.ModuleList(layer() for _ in range(sizes.layers))
            self.norm = torch.nn.RMSNorm(sizes.layer.hidden, device=device)
            self.head = torch.nn.Linear(*reversed(table), bias=False, device=device)

        def forward(self, ids: Any) -> Any:
            x = self.embedding(ids)
            for wrapped in self.layers:
                x = wrapped(x)
            return self.head(self.norm(x))

    network = Network()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = _mesh_of_one(device)
    for wrapped in network.layers:
        fully_shard(wrapped, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(network, mesh=mesh, mp_policy=policy)
    return network


def _mesh_of_one(device: str) -> Any:
    """A group of this process alone."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    if not distributed.is_initialized():
        backend = "nccl" if device == "cuda" else "gloo"
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    return init_device_mesh(device, (1,))
