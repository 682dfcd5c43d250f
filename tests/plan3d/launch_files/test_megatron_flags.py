"""Flags of Megatron-LM: the table of all of them, and models that are refused or said by name."""

import re

import pytest

from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.megatron.flags import ALIASES, TABLE
from plan3d.launch_files.megatron.other_flags import group_of, groups
from plan3d.launch_files.registry import reader
from plan3d.launch_files.tables import Effect
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Optimizer
from plan3d.simulator.plan.field_values import Dispatch

DENSE = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 8 --bf16"
)
LAYER, ENDS = 12 * 512**2 + 13 * 512, 50257 * 512 + 128 * 512 + 2 * 512
"""Parameters of a layer of GPT, and of embedding, positions and final norm."""


def launch(more="", program="pretrain_gpt.py", vocabulary=None, flags=DENSE):
    text = f"torchrun {program} {flags} {more}\n"
    return reader(text, "run.sh", None)(text, "run.sh", ReaderOptions(vocabulary=vocabulary))


@pytest.mark.parametrize(
    ("flag", "changes"),
    [("", {}), ("--clip-grad 1.0", {}), ("--clip-grad 0.0", {"clipping_bytes": 0})],
)
def test_gradients_that_are_not_clipped_are_not_read_for_it(flag, changes):
    read = launch(flag)
    assert {n: v for n, v in read.software.items() if n == "clipping_bytes"} == changes
    assert not [one for one in read.unread if one.name == "--clip-grad"]


def test_the_table_has_every_flag_once():
    names = [entry.partition("=")[0] for group in groups() for entry in group.keys.split()]
    assert len(names) == len(set(names)) > 750
    assert all(name.strip("-") == name for name in names)
    rows = {row.key.replace("_", "-") for row in TABLE}
    models = [group for group in groups() if group.effect is Effect.MODEL]
    assert not rows & {f"--{e.partition('=')[0]}" for g in models for e in g.keys.split()}
    assert {*ALIASES.values()} <= rows
    assert not {*ALIASES} & rows


@pytest.mark.parametrize(
    ("flag", "values", "effect"),
    [
        ("--lr", ["3e-4"], Effect.NONE),
        ("--lr-warmup-samples", ["10"], Effect.NONE),
        ("--hybrid-attention-ratio", ["0.125"], Effect.MODEL),
        ("--hybrid-attention-ratio", ["0.0"], Effect.NONE),
        ("--softmax-type", ["learnable"], Effect.MODEL),
        ("--defer-embedding-wgrad-compute", [], Effect.COST),
        ("--freeze-ViT", [], Effect.PART),
    ],
)
def test_every_flag_has_an_effect(flag, values, effect):
    assert group_of(flag, values).effect is effect


def test_a_flag_that_nobody_knows_is_unknown():
    (part,) = launch("--brand-new-switch 3").unread
    assert (part.affects_cost, part.why_neutral) == (False, "")
    assert group_of("--brand-new-switch") is None


@pytest.mark.parametrize(
    ("program", "more", "message"),
    [
        ("pretrain_mamba.py", "", "pretrain_mamba.py is not modelled: state-space"),
        ("pretrain_bert.py", "", "BERT, an encoder"),
        ("tools/run_text_generation_server.py", "", "does not train"),
        ("tasks/main.py", "--task RACE", "trains no language model"),
        ("./tasks/msdp/main.py", "--task MSDP-EVAL-F1", "trains no language model"),
        ("evaluation.py", "--task boolq", "does not train"),
        ("test_blendable_dataset.py", "", "does not train"),
        ("hf2megablocks_qwen.py", "", "does not train"),
        ("mcore2hf.py", "", "does not train"),
        ("pretrain_gpt.py", "--use-bridge --bridge-hf-model x", "that a checkpoint states"),
        ("finetune.py", "--transformer-type huggingface", "that a checkpoint states"),
        ("pretrain_gpt.py", "--num-experts 8 --routing-mode sinkhorn", "one expert a token"),
        ("my_train.py", "--is-hybrid-model", "--is-hybrid-model is not modelled: state-space"),
        ("pretrain_gpt.py", "--attention-output-gate", "sparse, linear or gated"),
        ("pretrain_gpt.py", "--retro-tasks build", "a retriever"),
        ("train.py", "--rollout-batch-size 32", "reinforcement learning"),
        ("pretrain_gpt.py", "--expert-interval 2 --num-experts 8", "every Nth layer"),
    ],
)
def test_another_model_is_refused_by_name(program, more, message):
    with pytest.raises(InputError, match=message):
        launch(more, program)


def test_a_vision_tower_is_said_to_be_left_out():
    found = launch("--img-h 336 --freeze-ViT --decoder-seq-length 256", "train.py")
    assert found.sequence == 256
    assert [text.partition(" (")[0] for text in found.left_out] == [
        "a vision tower, which is left out",
        "frozen parts, which are taken as trained",
        "the sequence is the decoder's, 256 tokens",
    ]


@pytest.mark.parametrize(
    ("more", "is_said"),
    [
        ("--num-experts 8", True),
        ("--num-experts 8 --moe-router-topk 2", False),
        ("--num-experts 8 --moe-grouped-gemm", False),
        ("--num-experts 1", False),
        ("--num-experts 8 --routing-mode top2", False),
    ],
)
def test_experts_a_token_by_a_default_that_changed_are_said(more, is_said):
    found = launch(more)
    assert [text.partition(",")[0] for text in found.left_out] == ["2 experts a token"] * is_said


def test_one_expert_is_a_dense_model():
    model = launch("--num-experts 1").model
    assert model.parameters == model.active_parameters == 4 * LAYER + ENDS


def test_multi_query_attention_has_one_key_and_value():
    narrower = 2 * (512 - 64) * 513
    for more in (
        "--attention-head-type multiquery",
        "--group-query-attention --num-query-groups 1",
    ):
        assert launch(more).model.parameters == 4 * (LAYER - narrower) + ENDS


def test_megatron_deepspeed_has_experts_in_every_second_layer_and_one_a_token():
    found = launch("--deepspeed --zero-stage 0 --num-experts 4").model
    expert = 2 * 4 * 512**2 + 5 * 512
    assert found.parameters == 4 * LAYER + ENDS + 2 * (3 * expert + 4 * 512)
    assert found.active_parameters == 4 * LAYER + ENDS + 2 * 4 * 512


@pytest.mark.parametrize(
    "more",
    [
        "--tokenizer-type GPT2BPETokenizer --vocab-file tok_131072/vocab.json",
        "--vocab-file $1",
        "--patch-tokenizer-type Qwen2Tokenizer",
        "--tokenizer-type HuggingFaceTokenizer --tokenizer-model x",
    ],
)
def test_the_vocabulary_of_another_tokenizer_is_asked_for(more):
    with pytest.raises(InputError, match="give --vocabulary N"):
        launch(more)
    found = launch(more, vocabulary=1000)
    assert (found.model.vocabulary, found.vocabulary_source) == (1000, "--vocabulary")


def test_the_vocabulary_of_gpt2_and_a_padded_one_are_read():
    assert launch("--vocab-file data/gpt2-vocab.json").model.vocabulary == 50257
    assert launch("--padded-vocab-size 51200").vocabulary_source == "--padded-vocab-size"


def test_a_flag_that_another_replaces_is_said():
    found = launch("--num-layers 6")
    assert found.model.layers == 6
    assert found.left_out == [
        "line 1: --num-layers 4 gives way to line 1: --num-layers 6",
    ]


@pytest.mark.parametrize(
    ("flags", "launches", "dispatch"),
    [
        ("", 3, Dispatch.ALL_GATHER),
        ("--moe-grouped-gemm", None, Dispatch.ALL_GATHER),
        ("--moe-grouped-gemm --moe-token-dispatcher-type alltoall", None, Dispatch.ALLTOALL),
        ("--moe-token-dispatcher-type flex", 3, Dispatch.HIERARCHICAL),
        ("--moe-token-dispatcher-type allgather", 3, Dispatch.ALL_GATHER),
        ("--expert-model-parallel-size 1", 3, Dispatch.ALLTOALL),
    ],
)
def test_experts_are_modules_and_gathered_to_every_rank_unless_flags_say_otherwise(
    flags, launches, dispatch
):
    experts = "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4"
    found = launch(f"{experts} --world-size 8 {flags}")
    assert found.software.get("expert_launches") == launches
    assert found.plan["expert_dispatch"] == dispatch


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--use-lf-gate --lf-conv2d-group 1", "sparse, linear or gated"),
        ("--num-experts 8 --first-k-dense-replace 1", "layers of MindSpeed-LLM that have no"),
        ("--noop-layers 2,3", "do nothing"),
        ("--lora-r 16 --lora-alpha 32", "adapters, which are read of scripts of a trainer"),
        ("--stage dpo", "preferences or rewards"),
        ("--num-layer-list 1,3", "stages of unequal length"),
    ],
)
def test_flags_of_forks_that_change_the_model_are_refused(more, message):
    with pytest.raises(InputError, match=message):
        launch(more)


def test_words_of_forks_and_older_versions_are_read():
    found = launch("--pad-vocab-size-to 51200 --optimizer adamw-bnb-8bit --bitfit --stage sft")
    assert (found.model.vocabulary, found.vocabulary_source) == (51200, "--padded-vocab-size")
    assert found.plan["optimizer"] == Optimizer.ADAM_8BIT
    assert [text.partition(" (")[0] for text in found.left_out] == [
        "frozen parts, which are taken as trained"
    ]
    experts = "--num-experts 8 --moe-token-dispatcher-type alltoall_seq --disable-bias-linear"
    assert launch(experts).plan["expert_dispatch"] == Dispatch.ALLTOALL
    narrow = launch(f"{experts} --moe-intermediate-size 64").model
    assert narrow.parameters < launch(experts).model.parameters


def test_as_many_groups_of_queries_as_heads_are_none():
    heads = re.search(r"--num-attention-heads (\d+)", DENSE)[1]
    assert launch(f"--num-query-groups {heads}").model == launch("").model


def test_the_command_with_sizes_trains():
    text = f"python catalogue/ratios.py --split train\ntorchrun pretrain_gpt.py {DENSE}\n"
    assert reader(text, "run.sh", None)(text, "run.sh", ReaderOptions()).sequence == 128
    with pytest.raises(InputError, match=r"tools/retro/main\.py trains no language model"):
        launch(program="./tools/retro/main.py")


def test_flags_of_megatron_llama():
    fork = "--swiglu --disable-bias-linear --use-rotary-position-embeddings --ffn-hidden-size 1024"
    found = launch(f"{fork} --RMSNorm --causal-lm --overlapped-distributed-optimizer")
    usual = "--normalization RMSNorm --untie-embeddings-and-output-weights"
    more = "--use-distributed-optimizer --overlap-grad-reduce"
    assert found.model == launch(f"{fork} {usual}").model
    assert found.plan == launch(f"{fork} {usual} {more}").plan


def test_flags_of_megatron_on_gaudi():
    """Habana's Megatron-DeepSpeed of 2023."""
    found = launch("--no-bias --layernorm-type RMSNorm")
    assert found.model == launch("--disable-bias-linear --normalization RMSNorm").model
    assert launch("--activation-func-type gelu").model == launch("").model
    with pytest.raises(InputError, match="activation-func-type swiglu is not modelled: a gated"):
        launch("--activation-func-type swiglu")


@pytest.mark.parametrize("word", ["ademamix", "cpu-adam", "lion", "soap"])
def test_optimizers_that_are_not_modelled_are_named_and_may_be_replaced(word):
    found = launch(f"--optimizer {word}")
    assert f"--optimizer {word} is not modelled" in found.unmodelled["optimizer"]


def test_buckets_of_more_parameters_than_a_rank_holds_are_one_bucket():
    """Ten thousand million parameters, of scripts that reduce gradients at once."""
    found = launch("--overlap-grad-reduce --ddp-bucket-size 10000000000")
    assert found.plan["bucket_parameters"] == 2**31 - 1


@pytest.mark.parametrize(
    "flag", ["--enable-zero-bubble", "--zero-bubble-v-schedule", "--schedules-method dualpipev"]
)
def test_another_schedule_of_a_fork_is_asked_for(flag):
    assert "schedule" in launch(f"{flag} --pipeline-model-parallel-size 2").unmodelled
    read = launch(flag)
    assert not read.unmodelled
    assert [one.affects_cost for one in read.unread if flag.split()[0] in str(one)] == [True]


def test_a_training_that_states_no_sizes_is_not_megatron_lms():
    flags = "--seq-length 512 --micro-batch-size 1 --base-model x --sharding-strategy FULL_SHARD"
    with pytest.raises(InputError, match=r"starts pretrain.py, which has no sizes of a model"):
        launch(program="pretrain.py", flags=flags)
    with pytest.raises(InputError, match=r"--num-layers is missing"):
        launch(program="pretrain.py", flags=f"{flags} --hidden-size 512")


OLD = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 --batch-size 4 --fp16 --checkpoint-activations "
    "--distributed-backend nccl --warmup .01 --data-impl mmap --model-parallel-size 2"
)
"""As Megatron-LM 1.1.5 has it: a batch is that of one replica, and there is no accumulation."""


def test_names_of_2020_are_read():
    read = launch("--DDP-impl torch", "pretrain_gpt2.py", flags=OLD)
    assert read.plan.items() >= {"tp": 2, "micro_batch": 4, "recompute": 2}.items()
    assert (read.plan["overlap_grad_reduce"], read.accumulation, read.global_batch) == (1, 1, None)
    assert read.model.parameters == 4 * LAYER + ENDS
    read = launch("--DDP-impl local --pipe-parallel-size 2 --gas 8", "pretrain_gpt2.py", flags=OLD)
    assert (read.plan["pp"], read.plan["overlap_grad_reduce"], read.accumulation) == (2, 0, 8)
    assert launch("--pipe-parallel-size 0", "pretrain_gpt2.py", flags=OLD).plan["pp"] == 1
    assert not [one for one in read.unread if not (one.affects_cost or one.why_neutral)]


@pytest.mark.parametrize(
    ("more", "flags", "message"),
    [
        ("--model-parallel-size 2 --tensor-model-parallel-size 1", DENSE, "its name of 2020"),
        ("--pipe-parallel-size 2 --pipeline-model-parallel-size 2", DENSE, "its name of 2020"),
        ("--num-unique-layers 2", OLD, "layers that share weights"),
        ("--sparsity interspersed", OLD, "attention that is sparse"),
        ("--gas 0", OLD, "--gas 0 must be a whole number"),
    ],
)
def test_names_of_2020_that_contradict_or_change_the_model_are_refused(more, flags, message):
    with pytest.raises(InputError, match=message):
        launch(more, "pretrain_gpt2.py", flags=flags)


def test_weights_and_positions_by_their_names_of_2020():
    read = launch("--no-weight-tying --sinusoidal-pos-emb", "pretrain_gpt2.py", flags=OLD)
    assert read.model.parameters == 4 * LAYER + ENDS + 50257 * 512 - 128 * 512
