"""Formats of gradients, master weights and moments: bytes a parameter, traffic and messages.

Sources: Megatron-LM 0075637, optimizer_config.py and distrib_optimizer.py; DeepSpeed 0.19,
precision_config.py. Two ranks that share their weights; every count is of bytes a parameter.
"""

import pytest
from round_numbers import costs_of, group_of, stack, task

from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.step.gradient_exchange import element_bytes
from plan3d.simulator.step.optimizer import moved_bytes

AWARE = "precision_aware=1"
CASES = [
    # Framework, what a plan states; gradients, optimizer state before sharding, wire, update.
    ("megatron", "", 4, 4 + 8, 4, 2 * 12 + 4 + 2),
    ("megatron", "grad_reduce_dtype=bf16", 2, 4 + 8, 2, 2 * (12 + 4) + 2 + 2),
    ("megatron", AWARE, 4, 2 + 8, 4, 2 * 10 + 4 + 2),
    ("megatron", f"{AWARE} grad_reduce_dtype=bf16", 2, 2 + 8, 2, 2 * 10 + 2 + 2),
    ("megatron", f"{AWARE} main_grads_dtype=bf16", 2, 2 + 8, 2, 2 * 10 + 2 + 2),
    ("megatron", f"{AWARE} main_params_dtype=fp16", 4, 2 + 8, 4, 2 * 10 + 4 + 2),
    ("megatron", f"{AWARE} exp_avg_dtype=bf16 exp_avg_sq_dtype=fp8", 4, 2 + 3, 4, 2 * 5 + 4 + 2),
    ("megatron", f"{AWARE} precision=fp8", 4, 4 + 8, 4, 2 * 12 + 4 + 2),
    ("megatron", f"{AWARE} precision=fp8-delayed", 4, 2 + 8, 4, 2 * 10 + 4 + 2),
    ("megatron", f"{AWARE} precision=fp8 main_grads_dtype=bf16", 2, 12, 2, 2 * 16 + 2 + 2),
    ("deepspeed", "main_grads_dtype=bf16", 2, 4 + 8, 4, 2 * (12 + 4) + 2 + 2),
    ("deepspeed", "grad_reduce_dtype=bf16", 4, 4 + 8, 2, 2 * 12 + 4 + 2),
    ("deepspeed", "main_params_dtype=bf16", 2, 2 + 8, 4, 2 * 10 + 2 + 2),
    (
        "deepspeed",
        "main_params_dtype=bf16 exp_avg_dtype=bf16 exp_avg_sq_dtype=bf16",
        2,
        2 + 4,
        4,
        2 * 6 + 2 + 2,
    ),
    ("", "grad_reduce_dtype=bf16", 4, 4 + 8, 2, 2 * 12 + 4 + 2),
]


@pytest.mark.parametrize(("framework", "text", "gradient", "state", "wire", "update"), CASES)
def test_bytes_follow_from_the_formats(framework, text, gradient, state, wire, update):
    question = task(2, software=stack(framework=framework))
    words = f"tp=1 zero=1 overlap_grad_reduce=0 overlap_param_gather=0 {text}"
    costs, group = costs_of(question, words), group_of(question, words)
    parameters = group.stages.weights.dense.sum()
    assert costs.memory["gradients"] == gradient * parameters
    assert costs.memory["optimizer"] == state * parameters / 2
    assert element_bytes(group.task, group.recipe, group.policy) == wire
    assert moved_bytes(group.recipe, 0) == update


def test_a_copy_of_gradients_is_alive_after_the_backward_pass():
    """The update widens the gradients of a shard to 4 bytes; a peak of activations hides it."""
    texts = ("grad_reduce_dtype=bf16", f"grad_reduce_dtype=bf16 {AWARE}")
    without, aware = (
        costs_of(task(2, software=stack(framework="megatron")), f"tp=1 zero=1 {text}")
        for text in texts
    )
    assert without.memory["buffers"] >= aware.memory["buffers"]
    parts = [costs.memory["activations"] + costs.memory["buffers"] for costs in (without, aware)]
    parameters = aware.memory["gradients"] / 2
    assert parts[0] == max(parts[1], 4 * parameters / 2)


@pytest.mark.parametrize(("text", "gradient"), [("", 2), ("main_grads_dtype=fp32", 4)])
def test_deepspeed_adds_up_gradients_as_weights_are_unless_told(text, gradient):
    """Under ZeRO; its update copies those of a shard to fp32, 4 bytes, in the place of what a
    backward pass needs."""
    costs = costs_of(task(2, software=software_profile("deepspeed")), f"tp=1 zero=1 {text}")
    parameters = costs.memory["weights"] / 2
    assert costs.memory["gradients"] == gradient * parameters
