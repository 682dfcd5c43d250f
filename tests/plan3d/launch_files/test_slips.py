"""A name one slip from a known one is told, in flags and in keys; other names are kept quietly."""

import json

import pytest

from plan3d.launch_files.deepspeed.keys import CONFIG as DEEPSPEED
from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.nanotron.keys import TABLE as NANOTRON
from plan3d.launch_files.registry import READERS
from plan3d.launch_files.spellings import SPELLINGS, table_of
from plan3d.launch_files.tables import REQUIRED, Effect, Row
from plan3d.launch_files.torchtitan.keys import TABLE as TORCHTITAN
from plan3d.simulator.base.errors import intended_name


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--tensor-model-paralel-size", "--tensor-model-parallel-size"),
        ("--tensor-model-parallel-siize", "--tensor-model-parallel-size"),
        ("--tensor-model-parallel-sise", "--tensor-model-parallel-size"),
        ("--seq-lenght", "--seq-length"),
        ("--fp4-format", ""),
        ("--encoder-num-layers", ""),
        ("--lr", ""),
        ("--seq-length", ""),
    ],
)
def test_a_name_one_slip_from_a_flag_is_told(typed, meant):
    known = {"--tensor-model-parallel-size", "--seq-length", "--fp8-format", "--decoder-num-layers"}
    assert intended_name(typed, known) == meant


JOB = """
[model]
name = "llama3"
flavor = "8B"
[training]
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "none"
[job]
description = "mine"
"""
ZERO = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 2},
    "steps_per_print": 1,
}
ZERO["zero_optimization"] |= {"reduce_bucket_size": 5, "offload_optimizer": {"device": "cpu"}}
LLAMA = """
general: {project: debug}
model:
  dtype: bfloat16
  model_config: {hidden_size: 512, intermediate_size: 2048, num_attention_heads: 8,
    num_hidden_layers: 4, num_key_value_heads: 2, vocab_size: 32000}
parallelism: {dp: 2, pp: 2, tp: 2, tp_mode: REDUCE_SCATTER, recompute_layer: true}
tokens: {sequence_length: 256, micro_batch_size: 2, train_steps: 15}
optimizer: {zero_stage: 1}
"""
FILES = {"torchtitan": JOB, "deepspeed": json.dumps(ZERO), "nanotron": LLAMA}


def near(name, old="", new=""):
    """(where, the known place) of the keys that one slip hides, after a change of the file."""
    text = FILES[name]
    assert old in text
    kept = READERS[name](text.replace(old, new, 1), "file", ReaderOptions()).unread
    assert all(part.affects_cost for part in kept if part.suggestion)
    return [(part.place, part.suggestion) for part in kept if part.suggestion]


@pytest.mark.parametrize(
    ("name", "key", "slip", "section"),
    [
        ("torchtitan", "tensor_parallel_degree", "tensor_parallel_degre", "parallelism"),
        ("torchtitan", "seq_len", "seq_len_", "training"),
        ("deepspeed", "stage", "stgae", "zero_optimization"),
        ("deepspeed", "reduce_bucket_size", "reduce_bucket_szie", "zero_optimization"),
        ("deepspeed", "device", "devices", "zero_optimization.offload_optimizer"),
        ("nanotron", "num_key_value_heads", "num_key_value_head", "model.model_config"),
        ("nanotron", "recompute_layer", "recompute_layers", "parallelism"),
        ("nanotron", "zero_stage", "zero_state", "optimizer"),
    ],
)
def test_a_key_one_slip_from_one_that_is_read_is_told(name, key, slip, section):
    assert near(name) == []
    assert near(name, key, slip) == [(f"$.{section}.{slip}", f"$.{section}.{key}")]


@pytest.mark.parametrize(
    ("name", "section", "slip", "keys"),
    [
        ("torchtitan", "training", "trainning", ["seq_len"]),
        ("torchtitan", "parallelism", "paralelism", ["tensor_parallel_degree"]),
        ("torchtitan", "activation_checkpoint", "activation_checkpiont", ["mode"]),
        ("nanotron", "optimizer", "optimiser", ["zero_stage"]),
        (
            "deepspeed",
            "zero_optimization",
            "zero_optimizatoin",
            ["stage", "reduce_bucket_size", "offload_optimizer.device"],
        ),
    ],
)
def test_a_section_one_slip_from_one_that_is_read_is_told_of_each_key(name, section, slip, keys):
    assert near(name, section, slip) == [(f"$.{slip}.{key}", f"$.{section}") for key in keys]


@pytest.mark.parametrize("table", [TORCHTITAN, DEEPSPEED, NANOTRON])
def test_no_key_that_may_be_idle_is_one_slip_from_another(table):
    """nanotron's dp, pp and tp are, and always read."""
    places = {row.key for row in table if getattr(row, "effect", None) is not Effect.NONE}
    may_be_idle = places - {row.key for row in table if getattr(row, "default", None) is REQUIRED}
    assert [place for place in may_be_idle if intended_name(place, places - {place})] == []


PROGRAMS = (
    *("trainer", "llama-factory", "axolotl", "ms-swift"),
    *("megatron-swift", "recipe", "primus", "nemo"),
)


def test_every_program_spells_a_number_once():
    for program in PROGRAMS:
        rows = table_of(program)
        keys = [row.key for row in rows]
        names = [row.name for row in rows if isinstance(row, Row)]
        assert (len(set(keys)), len(set(names))) == (len(keys), len(names)), program
    named = {one for each in SPELLINGS for programs in each.by_programs for one in programs.split()}
    assert named == {*PROGRAMS}
    assert {row.key for row in table_of("nemo")} >= {"trainer.num_nodes", "model.micro_batch_size"}
