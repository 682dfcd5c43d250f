"""The bytes that the cost model counts for plain PyTorch agree with torch's own autograd.

Tensors are fake: torch follows shapes, storages and lifetimes without computing, so that shapes
meant for a GPU can be followed on any machine. The CPU's flash attention keeps what CUDA's keeps:
q, k, v (views of one projection), its output, and a logarithm of sums for each query and head.
RMSNorm has no fused kernel on a CPU; FusedNorm stands for aten::_fused_rms_norm, which keeps its
input, the scale and one fp32 number a row. Not followed: scratch memory inside kernels.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from plan3d.simulator.calibration.fit.layer_times import gated_block
from plan3d.simulator.calibration.fit.whole_steps import step_costs
from plan3d.simulator.calibration.measure.cases import Case
from plan3d.simulator.calibration.measure.cases_layer import layer_forward, layer_weights
from plan3d.simulator.calibration.measure.cases_training import (
    TrainingStep,
    mixed_precision,
    training,
    training_step,
)
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.operators.layer_work import block_work
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.stages import strategies

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

CASES = list(training(quick=False))
SHAPES = [case for case in CASES if not case.shape["recompute"]]


class FusedNorm(torch.autograd.Function):  # type: ignore[misc]
    """Shapes in and out of aten::_fused_rms_norm and its backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, shape: tuple[int, ...], scale: Any) -> Any:
        ctx.save_for_backward(x, scale, torch.empty(*x.shape[:-1], 1))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> tuple[Any, None, Any]:
        x, scale, _ = ctx.saved_tensors
        return torch.empty_like(x), None, torch.empty_like(scale)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(torch.nn.functional, "rms_norm", FusedNorm.apply)
    with FakeTensorMode():
        yield


class Storages(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of the storages alive, now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        for tensor in tensors(out):
            self.add(tensor.untyped_storage())
        return out

    def add(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.drop, key)

    def drop(self, key: int) -> None:
        self.now -= self.sizes.pop(key)


class Traffic(TorchDispatchMode):  # type: ignore[misc]
    """Elements that element-wise kernels and copies read and write."""

    KERNELS = ("add", "mul", "silu", "silu_backward", "cat", "clone")

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        if op.overloadpacket.__name__ in self.KERNELS:
            self.elements += sum(tensor.numel() for tensor in tensors((args, kwargs, out)))
        return out


def tensors(tree: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def sizes_of(case: Case) -> TrainingStep:
    run = case.run
    assert isinstance(run, partial)
    sizes: TrainingStep = run.keywords["sizes"]
    return sizes


def costs(shape: Mapping[str, int]) -> Costs:
    cluster = Cluster.profile("h200-sxm", gpus=1)
    return step_costs(shape, cluster, software_profile("torch"))


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.usefixtures("fake")
def test_a_layer_keeps_what_is_counted(case: Case) -> None:
    layer, shape = sizes_of(case).layer, case.shape
    tokens = shape["batch"] * shape["sequence"]
    options = {"dtype": torch.bfloat16, "requires_grad": True}
    weights = layer_weights(layer, options)
    x = torch.empty(shape["batch"], shape["sequence"], layer.hidden, **options)
    own = {w.untyped_storage()._cdata for w in weights}
    saved: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = layer_forward(x, weights, layer)
    assert y.shape == x.shape
    one, two = (costs({**shape, "layers": n}).memory["activations"] for n in (1, 2))
    # Not counted: logarithms of attention's sums and a number for each norm, in fp32.
    rest = 4 * tokens * (layer.heads + 2)
    assert sum(saved.values()) == two - one + rest
    assert rest < 0.002 * (two - one)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("fake")
def test_the_peak_of_a_step_is_what_is_predicted(case: Case) -> None:
    with Storages() as storages:
        train = training_step("cpu", sizes_of(case))
        train()
        train()
    memory = costs(case.shape).memory
    predicted = sum(memory.values()) - memory["reserve"]
    tolerance = 0.022 if case.shape["recompute"] else 0.001
    assert predicted == pytest.approx(storages.peak, rel=tolerance)


@pytest.mark.parametrize("case", [case for case in SHAPES if case.shape["sequence"] == 8192])
@pytest.mark.usefixtures("fake")
def test_separate_kernels_move_what_is_counted(case: Case) -> None:
    layer, tokens = sizes_of(case).layer, case.shape["sequence"]
    options = {"dtype": torch.bfloat16, "requires_grad": True}
    weights = layer_weights(layer, options)
    x = torch.empty(1, tokens, layer.hidden, **options)
    with Traffic() as forward:
        y = layer_forward(x, weights, layer)
    with Traffic() as backward:
        torch.autograd.grad(y, (x, *weights), torch.empty_like(y))
    # A norm reads and writes; backward its input, the gradient in and out, and both for the scale.
    moved = forward.elements + 2 * 2 * x.numel(), backward.elements + 2 * 5 * x.numel()
    block = gated_block(layer.ffn, layer.heads, layer.kv_heads, layer.head_dim)
    plan = resolve(Plan(micro_batch=1).table(), 1)
    work = block_work(block, layer.hidden, strategies(plan), tokens, ())
    stack = software_profile("torch")
    counted = float(work.moved_bytes[0]) / 2 / stack.memory_bound_rate
    assert counted == pytest.approx(moved[0], rel=0.04)
    assert counted * stack.backward_bytes_ratio == pytest.approx(moved[1], rel=0.04)


def test_recompute_changes_no_loss_and_training_lowers_it() -> None:
    losses = []
    for case in list(training(quick=True))[-2:]:
        torch.manual_seed(0)
        train = training_step("cpu", sizes_of(case))
        losses.append([float(train()) for _ in range(5)])
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0] - 0.3


def test_gradients_add_up_in_fp32_and_are_freed() -> None:
    weight = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    update = mixed_precision([weight])
    for step in (1, 2):
        # In 16 bits 256 + 1 is 256, and the sum would be 0.
        for gradient in (256.0, 1.0, -256.0):
            (gradient * weight).sum().backward()
            assert weight.grad is None
        update()
        # Adam at its default rate moves by 1e-3 a step where the gradient stays the same.
        assert weight.item() == pytest.approx(-1e-3 * step, rel=0.005)
