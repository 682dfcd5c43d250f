"""What adapters are asked for in words, and what is refused by name."""

from itertools import pairwise

import pytest
from not_empty import not_empty

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.runs.published_runs import read_runs
from plan3d.simulator.runs.run_model import adapters_of, model_of
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import FORMATS, TARGETS, Adapters, FrozenFormat
from plan3d.simulator.workload.model import Model


def question(model: str, adapters: Adapters) -> Task:
    cluster = Cluster.profile("a100-80gb-sxm", gpus=1)
    sequence = Model.preset(model).sequence and 1024 if model != "resnet-50" else 1
    return Task(
        Model.preset(model), cluster, sequence=sequence or 1024, global_batch=8, adapters=adapters
    )


@pytest.mark.parametrize(
    ("words", "targets"),
    [
        (("attention",), ("q", "k", "v", "o")),
        (("all-linear",), TARGETS),
        (("v_proj", "q_proj"), ("q", "v")),
        (("fc1", "fc2"), ("up", "down")),
    ],
)
def test_targets_have_several_names(words: tuple[str, ...], targets: tuple[str, ...]) -> None:
    assert Adapters(targets=words).targets == targets


@pytest.mark.parametrize(
    ("name", "bits", "unpacked", "moved"),
    [
        ("bf16", 16, False, 0),
        ("fp8", 8, False, 0),
        ("int8", 8, True, 0),
        ("nf4", 4.5, True, 0),
        ("nf4-dq", 4 + 0.125 + 1 / 512, True, 0),
        # 4 bits read and 32 written, read and 8 written, two of 8, and 16 from 8.
        ("gptq4", 4 + 20 / 128, True, 4.5 + 5 + 2 + 2 + 3),
        ("gptq8", 8 + 24 / 128, True, 5 + 6 + 4 + 4 + 4),
    ],
)
def test_bits_of_frozen_formats_and_bytes_that_operators_move(
    name: str, bits: float, unpacked: bool, moved: float
) -> None:
    found = FORMATS[name]
    assert found == FrozenFormat(bits, unpacked, moved, *found[3:])


def test_bitsandbytes_unpacks_constants_before_weights() -> None:
    """Twice quantised ones: 4 bytes a constant written, 4 + 4 to add their mean, 4 read."""
    theirs = {name: found[3:] for name, found in FORMATS.items() if found.bitsandbytes}
    assert theirs == {"int8": (True, 0, 1), "nf4": (True, 0, 1), "nf4-dq": (True, 16 / 64, 3)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 0}, "LoRA rank must be a whole number from 1 to 4096, not 0"),
        ({"rank": True}, "not True"),
        ({"targets": ("q_prok",)}, "unknown LoRA target 'q_prok'; did you mean q_proj"),
        ({"targets": ()}, "no LoRA targets; known: attention"),
        ({"base": "nf5"}, "unknown format of frozen weights 'nf5'; did you mean nf4"),
    ],
)
def test_bad_adapters_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        Adapters(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "targets", "message"),
    [
        ("resnet-50", ("q",), "resnet-50 is a layer list"),
        ("deepseek-v3", ("q",), "multi-head latent attention"),
        ("mixtral-8x7b", ("all",), "gate, up, down of mixtral-8x7b; nearest targets: attention"),
        ("gpt3-125m", ("gate",), "gpt3-125m has none of the matrices gate"),
    ],
)
def test_models_whose_adapters_are_not_modelled(
    model: str, targets: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        question(model, Adapters(targets=targets))


def test_a_wider_adapter_is_never_lighter_or_faster() -> None:
    costs = [
        evaluate(question("llama-7b", Adapters(rank=rank)), Plan()) for rank in (4, 16, 64, 256)
    ]
    for less, more in not_empty(pairwise(costs)):
        assert less.step_seconds < more.step_seconds
        assert less.memory_bytes < more.memory_bytes


def test_published_runs_count_the_same_trained_parameters() -> None:
    stated = [
        run
        for run in read_runs()
        if run.states("trainable_params")
        and run.source == "litgpt_tables"
        and run["peft"] in ("lora", "qlora")
    ]
    assert len(stated) == 35
    for run in stated:
        adapters = adapters_of(run)
        assert adapters
        assert adapters.parameters(model_of(run)) == run["trainable_params"], run["run"]
