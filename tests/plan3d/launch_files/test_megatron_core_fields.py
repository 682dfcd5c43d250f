"""Files in the words of Megatron-Core's configuration: Megatron under ms-swift, NeMo 1, Primus."""

import pytest
import yaml
from not_empty import not_empty

from plan3d.cli.main import main
from plan3d.launch_files.launch_file import ReaderOptions, plan_of
from plan3d.launch_files.registry import READERS, framework_of_file, reader
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.pipeline.stage_placement import chunk_layers
from plan3d.simulator.plan.field_values import Dispatch, Recompute
from plan3d.simulator.workload.model import Model

SWIFT = """
NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-14B --tensor_model_parallel_size 4 \\
  --micro_batch_size 1 --global_batch_size 32 --packing true --recompute_granularity full \\
  --recompute_method uniform --recompute_num_layers 1 --max_length 8192 --sequence_parallel true \\
  --lr 1e-5
"""
NEMO = """
trainer: {num_nodes: 2, devices: 8, precision: bf16}
model:
  micro_batch_size: 2
  global_batch_size: 64
  encoder_seq_length: 2048
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 24
  hidden_size: 2048
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 16
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 3
  megatron_amp_O2: true
  sequence_parallel: true
  tokenizer: {library: megatron, type: GPT2BPETokenizer}
  optim: {name: mcore_distributed_optim, overlap_grad_sync: true, overlap_param_sync: true}
exp_manager: {name: x}
"""


def swift(old="", new="", text=SWIFT):
    return READERS["megatron-swift-command"](text.replace(old, new), "run.sh", ReaderOptions())


@pytest.mark.parametrize("text", ["learning: 1\n", "- model\n", "{}\n"])
def test_a_file_without_an_argument_of_ms_swift_is_refused(text):
    with pytest.raises(InputError, match=r"has no argument of ms-swift \(Megatron\)"):
        READERS["megatron-swift"](text, "job.yaml", ReaderOptions())


def test_weights_of_megatron_are_those_of_the_model_that_they_are_called():
    launch = swift("--model Qwen/Qwen2.5-14B", "--load /x/Qwen2.5-14B-Instruct-mcore")
    assert launch.model.name == "qwen2.5-14b"
    assert "the name of its weights" in launch.left_out[0]
    with pytest.raises(InputError, match=r"weights in iter_10, which no preset is called"):
        swift("--model Qwen/Qwen2.5-14B", "--mcore_model iter_10")


def nemo(vocabulary=None, **changes):
    content = yaml.safe_load(NEMO)
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        here = content[section] if section else content["model"]
        here[name] = value
    text = yaml.safe_dump(content)
    return READERS["nemo"](text, "job.yaml", ReaderOptions(vocabulary=vocabulary))


def test_megatron_under_ms_swift():
    assert framework_of_file(SWIFT, "run.sh") == "megatron-swift-command"
    launch = swift()
    assert (launch.model.name, launch.sequence, launch.global_batch) == ("qwen2.5-14b", 8192, 32)
    assert (launch.framework, launch.launcher_gpus) == ("megatron", 8)
    plan = plan_of(launch, {}).to_dict()
    assert (plan["tp"], plan["zero"], plan["recompute"], plan["loss"]) == (4, 1, "full", "fused")
    assert (plan["overlap_grad_reduce"], plan["precision"]) == (0, "bf16")
    assert [setting.place for setting in launch.unread] == ["sequences", "--lr"]
    assert launch.unread[1].why_neutral.startswith("hyperparameters")


@pytest.mark.parametrize(
    ("unclipped", "usual"),
    [
        (lambda: swift("--packing", "--clip_grad 0 --packing"), swift),
        (lambda: nemo(trainer__gradient_clip_val=0), nemo),
        (lambda: primus("clip_grad: 0.0"), lambda: primus()),
    ],
)
def test_gradients_that_are_not_clipped_are_not_read_for_it(unclipped, usual):
    assert unclipped().software["clipping_bytes"] == 0
    assert "clipping_bytes" not in usual().software


def test_adapters_under_megatron_keep_megatrons_stack(tmp_path, capsys):
    path = tmp_path / "run.sh"
    path.write_text(SWIFT.replace("--packing", "--tuner_type lora --lora_rank 4 --packing"))
    assert main(["import", str(path), "--cluster", "a100-80gb-sxm"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "read as ms-swift (Megatron)" in out
    assert "LoRA of rank 4" in out
    assert "software megatron-core" in out


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ("--lr 1e-5", "--pipeline_model_parallel_size 2 "
         "--virtual_pipeline_model_parallel_size 3", "virtual_stages", 3),
        ("--lr 1e-5", "--use_distributed_optimizer false", "zero", 0),
        ("--lr 1e-5", "--overlap_grad_reduce true", "overlap_grad_reduce", 1),
        ("--lr 1e-5", "--fp8_format hybrid --fp8_recipe blockwise", "precision", "fp8-blockwise"),
        ("--lr 1e-5", "--fp16 true", "precision", "fp16"),
        ("--lr 1e-5", "--optimizer_cpu_offload true --optimizer_offload_fraction 0.5",
         "offload_optimizer", 50),
        ("--recompute_granularity full --recompute_method uniform --recompute_num_layers 1".replace(
            " --recompute_method", " \\\n  --recompute_method"), "", "recompute", "selective"),
        ("--lr 1e-5", "--use_megatron_fsdp true", "zero", 3),
        ("--lr 1e-5", "--cross_entropy_loss_fusion false", "loss", "usual"),
        ("--lr 1e-5", "--pipeline_model_parallel_size 2 --decoder_first_pipeline_num_layers 20",
         "first_stage_layers", 20),
    ],
)  # fmt: skip
def test_arguments_of_ms_swift(old, new, field, value):
    assert plan_of(swift(old, new), {}).to_dict()[field] == value


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--lr 1e-5", "--rlhf_type dpo", "trains by dpo, which is not modelled"),
        ("--lr 1e-5", "--pipeline_model_parallel_size 5", "48 layers cannot be cut into 5 equal"),
        ("num_layers 1", "num_layers 2", "uniform recompute of 2 layers is not modelled"),
        ("Qwen2.5-14B", "Other-14B", "trains Qwen/Other-14B, which is no preset"),
        ("--lr 1e-5", "--fp8_format e4m3 --fp8_recipe custom", "fp8 by custom is not modelled"),
        ("--lr 1e-5", "--optimizer_offload_fraction x --optimizer_cpu_offload true",
         "must be a number from 0 to 1"),
        ("--lr 1e-5", "--pipeline_model_parallel_size 2 --pipeline_model_parallel_layout 'Et|L'",
         "has 2 stages with 1 layers"),
    ],
)  # fmt: skip
def test_what_megatron_under_ms_swift_cannot_say_is_refused(old, new, message):
    with pytest.raises(InputError, match=message):
        plan_of(swift(old, new), {})


def test_a_job_of_nemo():
    assert framework_of_file(NEMO, "job.yaml") == "nemo"
    launch = nemo()
    h, layers, vocabulary = 2048, 24, 50257
    each = 12 * h * h + 13 * h  # matrices, biases and norms of a GPT-2 layer
    positions = 2048
    assert launch.model.parameters == layers * each + (vocabulary + positions) * h + 2 * h
    assert (launch.gpus, launch.global_batch, launch.sequence) == (16, 64, 2048)
    plan = plan_of(launch, {}).to_dict()
    assert [plan[name] for name in ("tp", "pp", "virtual_stages", "micro_batch")] == [2, 2, 3, 2]
    assert [plan[name] for name in ("zero", "precision", "recompute")] == [1, "bf16", "none"]
    assert launch.software["dropout"]


def test_a_llama_of_nemo():
    launch = nemo(
        **{"normalization": "rmsnorm", "bias": False, "activation": "fast-swiglu"},
        **{"position_embedding_type": "rope", "num_query_groups": 4, "ffn_hidden_size": 5632},
        **{"share_embeddings_and_output_weights": False, "hidden_dropout": 0.0},
        **{"attention_dropout": 0.0, "megatron_amp_O2": False},
        tokenizer={"library": "huggingface", "type": "meta-llama/Meta-Llama-3-8B"},
    )
    h, ffn, kv = 2048, 5632, 4 * 128
    layer = 2 * h * h + 2 * h * kv + 3 * h * ffn + 2 * h
    assert launch.model.parameters == 24 * layer + 2 * 128256 * h + h
    assert plan_of(launch, {}).to_dict()["precision"] == "amp"
    assert not launch.software["dropout"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": {"library": "sentencepiece"}}, "decides the vocabulary: give --vocabulary"),
        ({"position_embedding_type": "alibi"}, "is alibi, which is not modelled"),
        ({"mm_cfg": {"llm": 1}}, r"\$.model.mm_cfg is not modelled"),
        ({"attention_type": "multiquery"}, r"\$.model.attention_type is not modelled"),
        ({"transformer_block_type": "gpt_j"}, r"\$.model.transformer_block_type is not modelled"),
        ({"num_attention_heads": 15}, "is 15, which does not divide 2048"),
        ({"trainer__precision": "fp4"}, "must be one of 32, 16, bf16"),
        ({"window_size": 5}, r"must be \[LEFT, 0\]"),
        ({"hidden_size": "${.x}"}, r"\$.model.hidden_size is"),
    ],
)
def test_what_nemo_cannot_say_is_refused(changes, message):
    with pytest.raises(InputError, match=message) as error:
        nemo(**changes)
    assert "\n" not in str(error.value)


def test_the_vocabulary_of_nemo_may_be_given():
    launch = nemo(vocabulary=32000, tokenizer={"library": "sentencepiece"})
    assert launch.model.vocabulary == 32000


PRIMUS = """
work_group: ${TEAM:amd}
modules:
  pre_trainer:
    framework: FRAMEWORK
    model: ${MODEL:MODEL_NAME}.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: 64
      seq_length: 4096
      tensor_model_parallel_size: 2
      use_turbo_attention: false
      OVERRIDE
"""


def primus(override="lr: 1e-5", model="qwen2.5_7B", framework="megatron"):
    text = PRIMUS.replace("OVERRIDE", override).replace("MODEL_NAME", model)
    text = text.replace("FRAMEWORK", framework)
    return reader(text, "p.yaml", None)(text, "p.yaml", ReaderOptions())


@pytest.mark.parametrize(
    ("override", "zero", "recompute", "precision"),
    [
        ("lr: 1e-5", 1, Recompute.NONE, Precision.BF16),
        ("use_distributed_optimizer: false", 0, Recompute.NONE, Precision.BF16),
        ("use_torch_fsdp2: true", 3, Recompute.NONE, Precision.BF16),
        (
            "recompute_granularity: full\n      recompute_method: uniform",
            1,
            Recompute.FULL,
            Precision.BF16,
        ),
        ("fp8: hybrid", 1, Recompute.NONE, Precision.FP8_DELAYED),
        ("fp4: e2m1", 1, Recompute.NONE, Precision.NVFP4),
    ],
)
def test_an_experiment_of_primus(override, zero, recompute, precision):
    found = primus(override)
    assert (found.model.name, found.sequence, found.global_batch) == ("qwen2.5-7b", 4096, 64)
    assert (found.plan["tp"], found.plan["micro_batch"], found.plan["zero"]) == (2, 2, zero)
    assert (found.plan["recompute"], found.plan["precision"]) == (recompute, precision)
    assert found.plan["sequence_parallel"] == 1
    assert not any("turbo" in setting.place for setting in found.unread)


def test_defaults_of_experts_in_an_experiment_of_primus():
    """models/megatron: language_model.yaml gathers tokens, deepseek_v3_base.yaml exchanges them;
    tensor ranks of experts are those of the model."""
    for name, dispatch in (("qwen3_30B_A3B", "ALL_GATHER"), ("deepseek_v3", "ALLTOALL")):
        plan = primus("expert_model_parallel_size: 4", name).plan
        assert (plan["expert_dispatch"], plan["etp"]) == (Dispatch[dispatch], 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"framework": "maxtext"}, "of Primus for maxtext, which is not read"),
        ({"model": "grok1"}, "trains grok1, which is no preset"),
        ({"override": "num_layers: 4"}, "changes qwen2.5-7b by num_layers = 4"),
        ({"override": "num_query_groups: 2"}, "changes qwen2.5-7b by num_query_groups = 2"),
        ({"override": "is_hybrid_model: true"}, "state-space or linear-attention"),
    ],
)
def test_other_experiments_of_primus_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        primus(**changes)


@pytest.mark.parametrize(
    "override",
    [
        *("multi_latent_attention: true", "qk_layernorm: true", "normalization: LayerNorm"),
        *("position_embedding_type: learned_absolute", "window_size: [4096, 0]"),
        *("untie_embeddings_and_output_weights: false", "kv_channels: 64", "swiglu: false"),
        *("add_bias_linear: true", "group_query_attention: false"),
    ],
)
def test_a_trait_that_a_named_model_has_not_is_refused(override):
    with pytest.raises(InputError, match=f"changes qwen2.5-7b by {override.partition(':')[0]} = "):
        primus(override)


@pytest.mark.parametrize(
    ("override", "model"),
    [
        ("add_qkv_bias: true\n      kv_channels: 128\n      swiglu: true", "qwen2.5_7B"),
        ("normalization: RMSNorm\n      window_size: null", "qwen2.5_7B"),
        ("multi_latent_attention: true\n      kv_lora_rank: 512", "deepseek_v3"),
        ("moe_layer_freq: [0, 0, 0" + ", 1" * 58 + "]", "deepseek_v3"),
        ("group_query_attention: true", "qwen2.5_7B"),
        ("group_query_attention: false", "llama2_7B"),
    ],
)
def test_traits_of_a_named_model_that_are_stated_are_its_own(override, model):
    found = primus(override, model)
    assert not [one for one in found.unread if not one.why_neutral]


@pytest.mark.parametrize("freq", ["1", "[1" + ", 1" * 60 + "]"])
def test_layers_that_are_sparse_in_another_run_are_refused(freq):
    with pytest.raises(InputError, match="changes deepseek-v3 by moe_layer_freq"):
        primus(f"moe_layer_freq: {freq}", "deepseek_v3")


@pytest.mark.parametrize(
    ("name", "published", "more"),
    [
        ("llama3.2_1B", "llama-3.2-1b", 128_256 * 2048),
        ("qwen2.5_7B", "qwen2.5-7b", -28 * (3584 + 2 * 512)),
        ("qwen2.5_3B", "qwen2.5-3b", 151_936 * 2048 - 36 * (2048 + 2 * 256)),
        ("qwen3_8B", "qwen3-8b", -36 * 2 * 128),
        ("llama3.1_8B", "llama-3.1-8b", 0),
    ],
)
def test_models_of_primus_are_those_of_its_own_files(name, published, more):
    found = primus(model=name)
    assert found.model.parameters - Model.preset(published).parameters == more
    assert any("of Primus has" in one for one in found.left_out) == bool(more)


def test_a_model_of_primus_that_is_another_one_is_refused():
    with pytest.raises(InputError, match="gpt_oss_20B, which in Primus has a shared expert"):
        primus(model="gpt_oss_20B")
    override = "window_size: [128, 0]\n      add_bias_linear: true"
    text = PRIMUS.replace("OVERRIDE", override).replace("FRAMEWORK", "megatron")
    text = text.replace("MODEL_NAME", "gpt_oss_20B")
    given = ReaderOptions(model=Model.preset("gpt-oss-20b"))
    found = READERS["primus"](text, "run.yaml", given)
    assert found.model.name == "gpt-oss-20b"
    assert not [one for one in found.unread if not one.why_neutral]


def test_the_tokenizer_of_primus_decides_the_vocabulary():
    found = primus("tokenizer_model: meta-llama/Llama-3.1-8B")
    assert (found.model.vocabulary, found.vocabulary_source) == (128_256, "meta-llama/Llama-3.1-8B")
    assert primus("tokenizer_model: Qwen/Qwen2.5-7B").model.vocabulary == 152_064
    assert (
        "its tokenizer /own/tokenizer is not known"
        in primus("tokenizer_model: /own/tokenizer").left_out[-1]
    )


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("bf16: false", "precision"),
        ("checkpoint_activations: true", "recompute"),
        ("recompute_layer_ids: [0, 1]", "recompute"),
        ("pipeline_model_parallel_size: 2\n      patch_zero_bubble: true", "schedule"),
    ],
)
def test_what_primus_decides_otherwise_is_asked_for(override, field):
    assert [*primus(override).unmodelled] == [field]
    assert primus("patch_zero_bubble: true").unmodelled == {}


def test_other_words_of_primus_for_what_megatron_has():
    assert primus("recompute_activations: true").plan["recompute"] == Recompute.SELECTIVE
    assert primus("hidden_dropout: 0.1").software["dropout"] is True
    assert primus("hidden_dropout: 0.0").software["dropout"] is False
    assert primus("fp8: none").plan["precision"] == Precision.BF16


def test_another_format_of_four_bits_is_asked_for():
    found = primus("fp4: e2m1\n      fp4_recipe: mxfp4")
    assert "fp4 by mxfp4" in found.unmodelled["precision"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hyena", {"ns": 3}),
        ("hybrid_override_pattern", None),
        ("activations_checkpoint_recurrent", False),
    ],
)
def test_recurrent_models_of_nemo_are_refused(key, value):
    with pytest.raises(InputError, match="state-space or linear-attention layers"):
        nemo(**{key: value})
    text = f"name: megatron_griffin\n{NEMO}"
    with pytest.raises(InputError, match="megatron_griffin"):
        READERS["nemo"](text, "job.yaml", ReaderOptions())


def test_first_and_last_layers_stay_in_16_bits():
    found = primus("fp8: hybrid\n      first_last_layers_bf16: true")
    assert [found.plan[f"bf16_{end}_layers"] for end in ("first", "last")] == [1, 1]


def test_a_key_of_primus_that_is_no_text_is_none_of_its_arguments():
    assert primus("null: 1\n      5: 2").plan["tp"] == 2


def test_an_override_of_primus_that_is_not_read_is_named():
    found = primus("tensor_model_paralel_size: 2\n      foo_bar: 0")
    assert [(one.place, one.suggestion) for one in found.unread if not one.why_neutral] == [
        ("tensor_model_paralel_size", "tensor_model_parallel_size"),
        ("foo_bar", ""),
    ]


def test_a_job_of_nemo_may_leave_its_nodes_open_or_train_by_rewards():
    text = NEMO.replace("num_nodes: 2, ", "")
    assert framework_of_file(text, "job.yaml") == "nemo"
    assert READERS["nemo"](text, "job.yaml", ReaderOptions()).gpus is None
    with pytest.raises(InputError, match=r"trains by rm \(\$\.trainer\.rm\)"):
        READERS["nemo"](NEMO.replace("num_nodes: 2", "rm: {}"), "job.yaml", ReaderOptions())


def test_experts_that_differ_from_those_of_a_named_model_are_refused():
    with pytest.raises(InputError, match="changes qwen3-30b-a3b by num_experts = 64"):
        primus("num_experts: 64", "qwen3_30B_A3B")
    assert primus("num_experts: 128", "qwen3_30B_A3B").model.name == "qwen3-30b-a3b"


def test_a_vocabulary_that_overrides_the_tokenizer_of_nemo_and_what_changes_nothing():
    launch = nemo(
        override_vocab_size=65024, bias_activation_fusion=False, masked_softmax_fusion=True
    )
    assert launch.model.vocabulary == 65024
    effects = {part.place: part.affects_cost or part.why_neutral for part in launch.unread}
    assert effects["$.model.bias_activation_fusion"] is True
    assert effects["$.model.masked_softmax_fusion"] == "the implementation that is modelled"
    assert all(not_empty(effects.values()))
    with pytest.raises(InputError, match="attention beside the MLP"):
        nemo(name="megatron_falcon_gpt")


def test_adapters_and_fsdp_of_nemo_are_not_read_as_full_training():
    for scheme in ("lora", "ia3"):
        with pytest.raises(InputError, match=r"peft.peft_scheme is not modelled"):
            nemo(peft={"peft_scheme": scheme, "lora_tuning": {"adapter_dim": 32}})
    assert nemo(peft={"peft_scheme": "none"}).model
    assert nemo(peft={"peft_scheme": None}).model
    assert "zero" in nemo(fsdp=True).unmodelled
    assert not nemo(fsdp=False).unmodelled
    assert not nemo(fsdp=None).unmodelled


def test_states_of_the_optimizer_of_nemo_in_other_formats_are_said():
    optim = yaml.safe_load(NEMO)["model"]["optim"]
    found = nemo(optim=optim | {"dtype": "bf16"}).unread
    assert [one.affects_cost for one in found if one.place == "$.model.optim.dtype"] == [True]
    found = nemo(optim=optim | {"dtype": "fp32"}).unread
    assert not [one for one in found if one.place == "$.model.optim.dtype" and one.affects_cost]


def primus_chunks(model, **settings):
    """Layers of each chunk, in the order of the layers."""
    words = "\n      ".join(f"{name}: {value}" for name, value in settings.items())
    found = primus(words, model)
    plan = plan_of(found, {})
    ends = (plan.first_stage_layers, plan.last_stage_layers, plan.layers_per_stage)
    return chunk_layers(found.model.layers, plan.pp, plan.virtual_stages, *ends)


@pytest.mark.parametrize(
    ("model", "stages", "virtual", "embedding", "loss", "chunks"),
    [
        # 28 layers and two ends are 30; 32 and one are 33.
        ("qwen2.5_7B", 2, 1, True, True, (14, 14)),
        ("qwen2.5_7B", 3, 1, True, True, (9, 10, 9)),
        ("qwen2.5_7B", 5, 3, True, True, (1, *[2] * 13, 1)),
        ("qwen2.5_7B", 5, 2, True, True, (2, *[3] * 8, 2)),
        ("llama2_7B", 3, 1, True, False, (10, 11, 11)),
        ("llama2_7B", 3, 1, False, True, (11, 11, 10)),
        ("qwen2.5_7B", 7, 2, False, False, (2,) * 14),
    ],
)
def test_ends_that_count_as_layers(model, stages, virtual, embedding, loss, chunks):
    found = primus_chunks(
        model,
        pipeline_model_parallel_size=stages,
        virtual_pipeline_model_parallel_size=virtual,
        account_for_embedding_in_pipeline_split=str(embedding).lower(),
        account_for_loss_in_pipeline_split=str(loss).lower(),
    )
    assert found == chunks


@pytest.mark.parametrize(
    ("layout", "chunks"),
    [
        ("Et*10|t*18L", (10, 18)),
        ("Et*5|t*9|t*7|t*7L", (5, 9, 7, 7)),
        ("Et*5||t*9|t*7||t*7L", (5, 0, 9, 7, 0, 7)),
    ],
)
def test_a_layout_that_is_written_out(layout, chunks):
    layout = f"'{layout}'"
    settings = {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": layout}
    assert primus_chunks("qwen2.5_7B", **settings) == chunks


@pytest.mark.parametrize(
    ("method", "count", "is_every"),
    [("block", 6, False), ("block", 7, True), ("uniform", 1, True), ("uniform", 2, False)],
)
def test_recompute_of_every_layer_of_a_chunk(method, count, is_every):
    """Of 28 layers over two stages of two chunks, 7 a chunk."""
    settings = {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "recompute_granularity": "full",
        "recompute_method": method,
        "recompute_num_layers": count,
    }
    found = primus("\n      ".join(f"{name}: {value}" for name, value in settings.items()))
    assert ("recompute" not in found.unmodelled) is is_every
