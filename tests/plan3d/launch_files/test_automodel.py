"""Recipes of NeMo AutoModel: what is read, and what is refused by its name."""

import json

import pytest

from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.registry import reader
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.workload.adapters import TARGETS

RECIPE = {
    "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
    "step_scheduler": {"global_batch_size": 64, "local_batch_size": 4},
    "model": {
        "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
        "pretrained_model_name_or_path": "meta-llama/Llama-3.1-8B",
    },
    "distributed": {"strategy": "fsdp2", "tp_size": 2, "dp_size": "none", "cp_size": None},
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 1e-5},
    "loss_fn": {"_target_": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
    "packed_sequence": {"packed_sequence_size": 4096},
}


def launch(**changes):
    content = dict(RECIPE)
    for path, value in changes.items():
        section, _, key = path.partition("__")
        content[section] = {**content.get(section, {}), key: value} if key else value
    text = json.dumps(content)
    return reader(text, "r.yaml", None)(text, "r.yaml", ReaderOptions())


def test_a_recipe_is_read():
    """FSDP2 shards weights, gradients and moments, which are as wide as the loaded weights."""
    found = launch()
    assert (found.model.name, found.sequence, found.global_batch) == ("llama-3.1-8b", 4096, 64)
    plan = {name: found.plan[name] for name in ("tp", "cp", "zero", "micro_batch")}
    assert plan == {"tp": 2, "cp": 1, "zero": 3, "micro_batch": 4}
    assert found.plan["precision"] != launch(model__torch_dtype="float32").plan["precision"]
    assert launch(distributed__reshard_after_forward=False).plan["zero"] == 2
    assert launch(distributed__strategy="ddp").plan["zero"] == 0
    assert launch(distributed__dp_size=4).gpus == 8
    assert launch(distributed__activation_checkpointing=True).plan["recompute"] == 2


def test_settings_that_are_not_read_are_named():
    found = launch(distributed__tp_sizes=2, qat={"enabled": True}, rng={"seed": 1}, model__x=1)
    named = {one.place: one.affects_cost for one in found.unread}
    assert named == {
        "sequences": True,
        "distributed.mp_policy": True,
        "$.qat.enabled": True,
        "$.distributed.tp_sizes": True,
        "$.model.x": False,
    }
    assert found.framework == "torchtitan"
    assert launch(distributed__tp_size=1).framework == "accelerate"


def test_adapters_of_a_recipe():
    peft = {"_target_": "nemo_automodel.components._peft.lora.PeftConfig", "dim": 16}
    found = launch(peft={**peft, "target_modules": "*_proj"}).adapters
    assert (found.rank, found.targets) == (16, TARGETS)
    assert launch(peft={**peft, "target_modules": ["*.q_proj"]}).adapters.targets == ("q",)
    others = launch(peft={**peft, "exclude_modules": ["*.out_proj", "*vision*"]}).adapters.targets
    assert others == tuple(one for one in TARGETS if one != "out_proj")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "KnowledgeDistillationRecipeForNextTokenPrediction"}, "recipe KnowledgeDist"),
        (
            {"model___target_": "nemo_automodel.NeMoAutoModelForImageTextToText.from_pretrained"},
            "Im",
        ),
        ({"model__config": {"num_hidden_layers": 2}}, "changes its model by num_hidden_layers"),
        ({"distributed__pp_size": 2}, "has 2 pipeline stages, which are not read"),
        ({"distributed__strategy": "megatron_fsdp"}, "shards by megatron_fsdp"),
        ({"distributed__tp_size": 0}, "tp_size must be a whole number"),
        ({"peft": {"dim": True}}, "dim must be a whole number"),
        ({"peft": {"dim": 8}}, "adapters of nothing"),
    ],
)
def test_what_is_not_read_is_refused_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        launch(**changes)


def test_a_format_of_eight_bits_is_asked_for():
    found = launch(model__backend={"te_fp8": {"recipe": "block"}})
    assert "te_fp8 is on" in found.unmodelled["precision"]


@pytest.mark.parametrize(
    ("axes", "gpus"),
    [
        ({"tp_size": 1}, 5),
        ({"tp_size": 2}, 10),
        ({"cp_size": 3}, 30),
        ({"tp_size": 4, "cp_size": 3}, 60),
        ({"tp_size": 1, "ep_size": 2}, 5),
    ],
)
def test_ranks_of_data_make_gpus_with_those_of_tensors_and_sequences(axes, gpus):
    """Experts are sharded over ranks of data; tp_size is 2 unless stated."""
    changes = {f"distributed__{name}": size for name, size in axes.items()}
    found = launch(distributed__dp_size=5, **changes)
    assert found.gpus == gpus
    assert launch(distributed__dp_size="none", **changes).gpus is None
    is_data_alone = axes == {"tp_size": 1}
    assert found.framework == ("accelerate" if is_data_alone else "torchtitan")


@pytest.mark.parametrize(
    ("strategy", "reshards", "overlaps"),
    [("fsdp2", True, (3, 1, 1)), ("fsdp2", False, (2, 1, 1)), ("ddp", True, (0, 1, 0))],
)
def test_gathers_of_shards_are_hidden_where_there_are_shards(strategy, reshards, overlaps):
    changes = {"strategy": strategy, "reshard_after_forward": reshards}
    plan = launch(distributed=changes).plan
    assert (plan["zero"], plan["overlap_grad_reduce"], plan["overlap_param_gather"]) == overlaps
    assert (plan["pp"], plan["recompute"], plan["sequence_parallel"]) == (1, 0, 0)


@pytest.mark.parametrize(("tp", "sharded"), [(1, 0), (2, 1)])
def test_sequences_are_sharded_among_ranks_of_tensors(tp, sharded):
    found = launch(distributed={"tp_size": tp, "sequence_parallel": True})
    assert found.plan["sequence_parallel"] == sharded


@pytest.mark.parametrize(
    ("place", "accepted", "refused"),
    [
        ("distributed__tp_size", [1, None, 2**20], [0, -1, 2**20 + 1, True, 2.0]),
        ("distributed__pp_size", [1, None], [0, 2**20 + 1]),
        ("peft__dim", [1, 4096], [0, 4097, 65_537, 8.0]),
    ],
)
def test_bounds_of_sizes(place, accepted, refused):
    adapters = {"target_modules": "*_proj"}
    section, _, key = place.partition("__")
    for value in accepted:
        peft = adapters | ({key: value} if section == "peft" else {})
        found = launch(peft=peft, **({place: value} if section != "peft" else {}))
        assert found.adapters.rank == peft.get("dim", 8)
    for value in refused:
        peft = adapters | ({key: value} if section == "peft" else {})
        where = rf"^r\.yaml: \$\.{place.replace('__', '.')} must be a whole number"
        with pytest.raises(InputError, match=where):
            launch(peft=peft, **({place: value} if section != "peft" else {}))


@pytest.mark.parametrize(("size", "length"), [(1, 1), (4096, 4096), (0, None), (None, None)])
def test_a_packed_size_of_0_packs_nothing(size, length):
    found = launch(packed_sequence={"packed_sequence_size": size})
    assert found.sequence == length
    (lengths,) = (one for one in found.unread if one.place == "sequences")
    assert ("usual one is taken" in lengths.text) is (length is None)
