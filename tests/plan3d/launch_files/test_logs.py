"""A log that prints its settings is read as a launch file, with its timed steps and peaks."""

import base64
import json

import pytest
import yaml

from plan3d.cli.arguments.positional import placed
from plan3d.cli.main import main, parser
from plan3d.cli.options.table import OPTIONS
from plan3d.cli.plans.explain import question_of_file
from plan3d.launch_files.launch_file import NO_OPTIONS, ReaderOptions, plan_of
from plan3d.launch_files.logs.launch import measured_run
from plan3d.launch_files.logs.printed_settings import printed_settings
from plan3d.launch_files.registry import READERS, framework_of_file, reader
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Optimizer
from plan3d.simulator.workload.model import Model

ARGUMENTS = {
    "add_bias_linear": False,
    "attention_dropout": 0.0,
    "bf16": True,
    "cp_comm_type": ["p2p"],
    "encoder_num_layers": 16,
    "expert_model_parallel_size": 1,
    "ffn_hidden_size": 5632,
    "fp8": None,
    "fp8_recipe": "delayed",
    "global_batch_size": 32,
    "group_query_attention": True,
    "hidden_dropout": 0.0,
    "hidden_size": 2048,
    "hybrid_override_pattern": None,
    "max_position_embeddings": 4096,
    "micro_batch_size": 2,
    "moe_layer_freq": 1,
    "moe_token_dispatcher_type": "allgather",
    "normalization": "RMSNorm",
    "num_attention_heads": 16,
    "num_experts": None,
    "num_layers": 16,
    "num_query_groups": 4,
    "overlap_grad_reduce": True,
    "overlap_p2p_comm": True,
    "overlap_param_gather": True,
    "pipeline_model_parallel_size": 2,
    "position_embedding_type": "rope",
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "rotary_base": 500000,
    "seq_length": 4096,
    "swiglu": True,
    "tensor_model_parallel_size": 2,
    "tokenizer_type": "HuggingFaceTokenizer",
    "untie_embeddings_and_output_weights": True,
    "use_distributed_optimizer": True,
    "virtual_pipeline_model_parallel_size": 4,
    "vocab_size": None,
    "world_size": 8,
}


def megatron(**changes):
    """A log of Megatron-LM: arguments, the tokenizer, 24 steps of 1.5 s and a peak."""
    lines = ["-------- arguments --------"]
    lines += [f"  {k} {'.' * (40 - len(k))} {v}" for k, v in (ARGUMENTS | changes).items()]
    lines += ["-------- end of arguments --------"]
    lines += [" > padded vocab (size: 32000) with 256 dummy tokens (new size: 32256)"]
    lines += [
        f" iteration {i:6d}/ 99 | consumed samples: {32 * i} | elapsed time per iteration (ms): "
        f"{9000.0 if i < 3 else 1500.0} | global batch size: 32 | lm loss: 1.0 |"
        for i in range(1, 25)
    ]
    lines += [
        "[Rank 0] memory (MB) | allocated: 1.0 | max allocated: 20480.0 | max reserved: 30720.0"
    ]
    return "\n".join(lines) + "\n"


def read(text):
    return READERS["log"](text, "train.log", ReaderOptions())


def test_arguments_of_megatron_are_its_flags():
    assert framework_of_file(megatron(), "train.log") == "log"
    assert framework_of_file(megatron(), "stdout.txt") == "log"
    launch = read(megatron())
    h, ffn, kv = 2048, 5632, 4 * 128
    layer = 2 * h * h + 2 * h * kv + 3 * h * ffn + 2 * h
    assert launch.model.parameters == 16 * layer + 2 * 32000 * h + h
    assert (launch.launcher_gpus, launch.global_batch, launch.sequence) == (8, 32, 4096)
    plan = plan_of(launch, {}).to_dict()
    assert [plan[name] for name in ("tp", "pp", "virtual_stages", "micro_batch")] == [2, 2, 4, 2]
    assert [plan[name] for name in ("zero", "recompute", "overlap_p2p")] == [1, "full", 1]
    assert launch.unread == []


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"fp8": "hybrid", "fp8_recipe": "blockwise"}, "precision", "fp8-blockwise"),
        ({"overlap_p2p_comm": False}, "overlap_p2p", 0),
        ({"overlap_p2p_comm": False, "virtual_pipeline_model_parallel_size": None},
         "virtual_stages", 1),
        ({"num_experts": 8, "expert_model_parallel_size": 2, "moe_router_topk": 2,
          "moe_layer_freq": [0] + [1] * 15, "moe_token_dispatcher_type": "alltoall"}, "ep", 2),
    ],
)  # fmt: skip
def test_arguments_with_defaults_and_other_names(changes, field, value):
    assert plan_of(read(megatron(**changes)), {}).to_dict()[field] == value


def test_the_log_of_llama_factory_prints_no_settings():
    line = {"current_steps": 10, "total_steps": 100, "elapsed_time": "0:00:24", "loss": 2.5}
    assert framework_of_file(json.dumps(line), "trainer_log.jsonl") == "log"
    with pytest.raises(InputError, match="give the launch file, and the log to plan3d calibrate"):
        read(json.dumps(line))


def test_lines_into_which_another_program_writes_are_read():
    """Two programs share a screen: dots and words of one stand before and after those of the
    other."""
    log = megatron(retro_add_retriever=False)
    log = log.replace("  num_attention_heads ", ".......  num_attention_heads ")
    log = log.replace("  retro_add_retriever .", "[NO]   retro_add_retriever .")
    log = log.replace(". False\n  rotary_base", ". False0.18.3, unknown\n  rotary_base")
    log = log.replace(" 500000\n", " 500000.......\n")
    assert read(log).model == read(megatron()).model


def test_arguments_of_megatron_deepspeed_have_the_json_of_its_engine():
    """One expert is none, and hosts stand before lines as pdsh writes them."""
    engine = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
        "bf16": {"enabled": True},
    }
    log = megatron(deepspeed=True, num_experts=[1], tile_factor=1, moe_train_capacity_factor=1.0)
    log = log.replace("virtual_pipeline_model_parallel_size", "no_argument")
    log += f"[INFO] [config.py:986:print_user_config]   json = {json.dumps(engine, indent=2)}\n"
    launch = read("".join(f"node-1: {line}\n" for line in log.splitlines()))
    assert (launch.framework, launch.plan["offload_optimizer"]) == ("deepspeed", 100)
    assert launch.model.active_parameters == launch.model.parameters
    assert not [one for one in launch.unread if one.text.startswith(("--moe", "--tile"))]


def test_another_model_than_its_flags_describe_is_refused():
    with pytest.raises(
        InputError, match=r"hybrid_override_pattern M-M-M-.* makes it another model"
    ):
        read(megatron(hybrid_override_pattern="M-M-M-M*-"))


def test_timed_steps_and_peaks_stand_beside_the_plan(tmp_path, capsys):
    path = tmp_path / "train.log"
    path.write_text(megatron())
    assert main(["import", str(path), "--cluster", "h100-sxm", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert (measured["seconds"], measured["steps"]) == (1.5, 14)  # after ten of warm-up
    assert (measured["memory_bytes"], measured["reserved_bytes"]) == (20 * 2**30, 30 * 2**30)
    assert main(["import", str(path), "--cluster", "h100-sxm"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Measured: 1.5 s a step (median of 14 lines), 20.0 GiB of tensors, 30.0 GiB" in out


def test_a_log_that_ends_in_the_warm_up_has_its_settings_and_peaks(tmp_path, capsys):
    path, lines = tmp_path / "train.log", megatron().splitlines(keepends=True)
    steps = [i for i, line in enumerate(lines) if "elapsed time per iteration" in line]
    assert len(steps) > 9
    path.write_text("".join(line for i, line in enumerate(lines) if i not in steps[8:]))
    assert main(["import", str(path), "--cluster", "h100-sxm", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert (measured["seconds"], measured["steps"]) == (None, 0)
    assert (measured["memory_bytes"], measured["reserved_bytes"]) == (20 * 2**30, 30 * 2**30)
    assert main(["explain", str(path), "--cluster", "h100-sxm"]) == 0
    assert "no step after the first 10, which are warm-up" in capsys.readouterr().err


def test_the_measured_step_of_a_log_is_explained(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(megatron())
    words = ["explain", str(path), "h100-sxm"]
    args = parser("explain").parse(words, "explain", OPTIONS, True)
    args.script_arguments = ()
    placed(args)
    question, plan = question_of_file(args)
    assert (args.measured_step, question.task.gpus, int(plan.tp)) == (1.5, 8, 2)


def test_a_run_that_ran_out_of_memory():
    text = megatron() + "torch.OutOfMemoryError: CUDA out of memory\n"
    run = measured_run(text, 8, 4096, 32, "train.log")
    assert run.ran_out
    assert run.seconds is None


JOB = {
    "model": {"name": "llama3", "flavor": "8B", "tokenizer_path": None},
    "training": {"seq_len": 8192, "local_batch_size": 1},
    "parallelism": {"tensor_parallel_degree": 2, "data_parallel_shard_degree": -1},
    "activation_checkpoint": {"mode": "full"},
}


@pytest.mark.parametrize(
    "printed",
    [
        f"[titan] 2025-01-01 - root - INFO - Running with configs: {json.dumps(JOB, indent=2)}\n"
        "[titan] Building 2-D device mesh with ['dp_shard', 'tp'], [8, 2]\n",
        f"[titan] - INFO - Running with args: {JOB}\n[titan] Building device mesh with "
        "parallelism: pp=1, dp_replicate=2, dp_shard=4, cp=1, tp=2, ep=1, etp=1\n",
    ],
)
def test_a_log_of_torchtitan(printed):
    launch = read(printed)
    assert (launch.model.name, launch.sequence) == ("llama-3.1-8b", 8192)
    assert (launch.launcher_gpus, launch.plan["tp"]) == (16, 2)


def test_a_log_of_nemo():
    text = """[NeMo I 2024-01-01 megatron_gpt_pretraining:46]

    ************** Experiment configuration ***********
[NeMo I 2024-01-01 megatron_gpt_pretraining:47]
    trainer:
      num_nodes: 1
      precision: bf16
      devices: 8
    model:
      micro_batch_size: 1
      global_batch_size: 16
      encoder_seq_length: 2048
      num_layers: 24
      hidden_size: 2048
      num_attention_heads: 16
      tokenizer:
        library: megatron
[NeMo W 2024-01-01 nemo_logging:349] more
"""
    launch = read(text)
    assert (launch.model.layers, launch.gpus, launch.global_batch) == (24, 8, 16)


NANOTRON = """01/01/2026 10:00:00 [INFO|DP=0|PP=0|TP=0]: Config(general=GeneralArgs(project="a (b)",
                           run='r', seed=42, ignore_sanity_checks=True),
       parallelism=ParallelismArgs(dp=2, pp=2, tp=2,
                                   pp_engine=<nanotron.parallel.pipeline_parallel.engine.OneForward\
OneBackwardPipelineEngine object at 0x7f>,
                                   tp_mode=<TensorParallelLinearMode.REDUCE_SCATTER: 2>,
                                   tp_linear_async_communication=None, recompute_layer=True),
       model=ModelArgs(model_config=LlamaConfig(bos_token_id=1, hidden_act='silu', hidden_size=512,
                                                intermediate_size=2048, is_llama_config=True,
                                                max_position_embeddings=256, num_attention_heads=8,
                                                num_hidden_layers=4, num_key_value_heads=2,
                                                pad_token_id=None, rope_theta=10000.0,
                                                tie_word_embeddings=False, vocab_size=32000),
                       init_method=RandomInit(std=0.02), dtype=torch.bfloat16),
       optimizer=OptimizerArgs(optimizer_factory=AdamWOptimizerArgs(name='adamW'), zero_stage=1,
                               accumulate_grad_in_fp32=True),
       tokens=TokensArgs(sequence_length=256, train_steps=15, micro_batch_size=2,
                         batch_accumulation_per_replica=4))
01/01/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|a]: Model Config:
"""


def test_a_log_of_nanotron():
    launch = read(NANOTRON)
    assert (launch.model.layers, launch.model.vocabulary, launch.sequence) == (4, 32000, 256)
    sizes = {name: launch.plan[name] for name in ("tp", "pp", "zero", "micro_batch")}
    assert sizes == {"tp": 2, "pp": 2, "zero": 1, "micro_batch": 2}
    assert launch.plan["sequence_parallel"] == 1


BATCHES = """***** Running training *****
  Num examples = 100
  Instantaneous batch size per device = 2
  Total train batch size (w. parallel, distributed & accumulation) = 64
  Gradient Accumulation steps = 4
"""


@pytest.mark.parametrize(
    ("text", "model", "accumulation"),
    [
        (
            "loading configuration file /hf/models--Qwen--Qwen2.5-7B/snapshots/1/config.json\n"
            "Training/evaluation parameters TrainingArguments(\n_n_gpu=1,\nbf16=True,\n"
            "gradient_accumulation_steps=4,\nlr_scheduler_type=<SchedulerType.LINEAR: 'linear'>,\n"
            "fsdp=[],\nper_device_train_batch_size=2,\n)\n",
            "qwen2.5-7b",
            4,
        ),
        (
            "[INFO:swift] args: SftArguments(model='Qwen/Qwen3-8B', tuner_type='full', "
            "max_length=4096, per_device_train_batch_size=2, gradient_accumulation_steps=4)\n",
            "qwen3-8b",
            4,
        ),
        (
            '[INFO] [axolotl.cli.config] config:\n{\n  "base_model": "Qwen/Qwen3-8B",\n'
            '  "micro_batch_size": 2,\n  "gradient_accumulation_steps": 4\n}\n',
            "qwen3-8b",
            4,
        ),
    ],
)
def test_logs_of_the_trainer(text, model, accumulation):
    launch = read(text + BATCHES)
    assert (launch.model.name, launch.accumulation) == (model, accumulation)
    assert (launch.plan["micro_batch"], launch.launcher_gpus) == (2, 64 // (2 * 4))


def test_a_log_of_swift_without_the_table_of_batches_says_its_processes():
    launch = read(
        "[INFO:swift] rank: 0, local_rank: 0, world_size: 16, local_world_size: 8\n"
        "[INFO:swift] args: SftArguments(model='Qwen/Qwen3-8B', tuner_type='full', "
        "max_length=4096, per_device_train_batch_size=2, gradient_accumulation_steps=4)\n"
    )
    assert launch.launcher_gpus == 16


def test_a_log_of_deepspeed_asks_for_the_model():
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 16,
        "bf16": {"enabled": True},
    }
    config["zero_optimization"] = {"stage": 3}
    launch = read(
        f"[INFO] [config.py:1000:print_user_config]   json = {json.dumps(config, indent=4)}\n"
    )
    assert launch.model is None
    assert (launch.plan["zero"], launch.plan["micro_batch"], launch.global_batch) == (3, 2, 16)


def test_whole_numbers_that_deepspeed_prints_as_decimal_ones():
    launch = read(
        '[INFO] [config.py:904:print]   json = {\n    "train_batch_size": 2.048000e+03, \n'
        '    "train_micro_batch_size_per_gpu": 32, \n    "gradient_clipping": 1.0\n}\n'
    )
    assert (launch.global_batch, launch.plan["micro_batch"]) == (2048, 32)


def runner(program, hosts):
    info = base64.b64encode(json.dumps(hosts).encode()).decode()
    return (
        "[2024-01-05 10:00:00,111] [INFO] [runner.py:571:main] cmd = /opt/bin/python -u -m "
        f"deepspeed.launcher.launch --world_info={info} --master_addr=127.0.0.1 --master_port=1 "
        f"{program}\n"
    )


TUNE = (
    "tune.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 4 "
    "--gradient_accumulation_steps 2 --model_max_length 2048 --bf16 True --deepspeed auto.json"
)
ENGINE = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}


def test_the_command_that_deepspeed_starts_is_read_with_the_configuration_that_it_prints():
    engine = f"[INFO] [config.py:1000:print_user_config]   json = {json.dumps(ENGINE)}\n"
    launch = read(runner(TUNE, {"a": [0, 1, 2, 3], "b": [0, 1]}) + engine)
    assert (launch.model.name, launch.sequence, launch.launcher_gpus) == ("qwen2.5-7b", 2048, 6)
    assert (launch.plan["zero"], launch.plan["micro_batch"], launch.accumulation) == (2, 4, 2)
    with pytest.raises(InputError, match=r"shards by auto\.json: put that file beside it"):
        read(runner(TUNE, {"a": [0]}))


@pytest.mark.parametrize("hosts", [{}, {"a": 3}, []])
def test_a_command_of_no_host_is_none(hosts):
    assert printed_settings(runner(TUNE, hosts)) is None
    assert printed_settings(runner("other.py --x 1", {"a": [0]})) is None


@pytest.mark.parametrize("sign", ["'rewards/chosen': 0.1", "'completions/mean_length': 9.0"])
def test_steps_of_other_work_are_refused(sign, tmp_path, capsys):
    path = tmp_path / "train.log"
    path.write_text(f"{megatron()}{{'loss': 1.0, {sign}}}\n")
    assert main(["import", str(path), "--cluster", "h100-sxm"]) == 2
    assert "which is not read" in capsys.readouterr().err


def test_the_data_ranks_of_deepspeed_are_not_its_gpus(tmp_path, capsys):
    path = tmp_path / "train.log"
    ranks = (
        "[2021-06-10 20:47:51] [INFO] [config.py:904:print]   world_size ................... 1\n"
    )
    path.write_text(megatron() + ranks)
    assert main(["import", str(path), "--cluster", "h100-sxm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"]["seconds"] == 1.5


def test_a_log_of_lines_without_a_step_is_still_a_launch_file(tmp_path, capsys):
    path = tmp_path / "train.log"
    steps = "".join(line for line in megatron().splitlines(True) if "iteration" not in line)
    path.write_text(f"{steps} 0%| | 0/10 [00:00<?, ?it/s]\n")
    assert main(["import", str(path), "--cluster", "h100-sxm"]) == 0
    assert "Measured: no step after the first 10" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "-------- arguments --------\n",
        "Running with configs: {",
        "args: SftArguments(",
    ],
)
def test_a_log_without_settings_is_refused_in_one_line(text):
    assert printed_settings(text) is None
    with pytest.raises(InputError, match="a trainer that plan3d reads: give the launch") as error:
        read(text)
    assert "\n" not in str(error.value)
    steps = "\n".join(line for line in megatron().splitlines() if "iteration" in line)
    with pytest.raises(InputError, match="give the launch file, and the log to plan3d calibrate"):
        read(f"{text}\n{steps}")


def test_what_its_settings_lack_is_said_of_the_log():
    text = "Running with args: {'per_device_train_batch_size': 1}\n"
    with pytest.raises(InputError, match=r"^a\.log: has neither \[training\]"):
        READERS.lookup("log", "--from")(text, "a.log", ReaderOptions())


def bridge(sequence):
    return f"""_target_: megatron.bridge.training.config.ConfigContainer
dataset:
  _target_: megatron.bridge.training.config.GPTDatasetConfig
  sequence_length: {sequence}
  split_matrix:
  - - 0
    - 0.5
mixed_precision:
  bf16: true
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama31ModelProvider
  activation_func:
    _call_: false
    _target_: torch.nn.functional.silu
  add_bias_linear: false
  ffn_hidden_size: 1024
  gated_linear_unit: true
  hidden_size: 512
  num_attention_heads: 8
  num_layers: 4
  num_query_groups: 4
  position_embedding_type: rope
  seq_length: 131072
  tensor_model_parallel_size: 2
  vocab_size: 1000
train:
  global_batch_size: 64
  micro_batch_size: 2

"""


def test_a_log_of_megatron_bridge():
    steps = " iteration 1/ 100 | elapsed time per iteration (ms): 900.0 | global batch size: 64 |\n"
    head = "------- Task Configuration -------\n"
    launch = read(f"{head}{bridge(512)}--- Final Configuration ---\n{bridge(256)}{steps}")
    assert (launch.model.layers, launch.sequence, launch.global_batch) == (4, 256, 64)
    assert (launch.plan["tp"], launch.plan["micro_batch"]) == (2, 2)
    assert launch.title == "Megatron-Bridge, in a log"


def kept(values, options=NO_OPTIONS):
    """The launch of settings as Weights & Biases keeps them."""
    content = {"_wandb": {"value": {"cli_version": "0.19"}}}
    content |= {name: {"desc": None, "value": value} for name, value in values.items()}
    text = yaml.safe_dump(content)
    return reader(text, "config.yaml", None)(text, "config.yaml", options)


KEPT = {
    **dict(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32),
    **dict(group_query_attention=True, num_query_groups=8, swiglu=True, normalization="RMSNorm"),
    **dict(seq_length=4096, max_position_embeddings=4096, micro_batch_size=1, bf16=True),
    **dict(global_batch_size=128, tensor_model_parallel_size=2, world_size=16, fp16=False),
    **dict(add_bias_linear=False, untie_embeddings_and_output_weights=True, vocab_size=128256),
    **dict(position_embedding_type="rope", num_experts=None, params_dtype="torch.bfloat16"),
}
"""Arguments of Megatron-LM, which it gives to the tracker as they are."""


def test_settings_that_a_tracker_keeps_are_read():
    found = kept(KEPT)
    assert (found.model.parameters, found.launcher_gpus) == (8_030_261_248, 16)
    assert (found.plan["tp"], found.global_batch, found.sequence) == (2, 128, 4096)
    with pytest.raises(InputError, match="spec makes it another model"):
        kept(KEPT | {"spec": ["mamba", "layers"]})
    with pytest.raises(InputError, match="settings of no trainer"):
        kept({"lr": 1})
    config = {"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config |= {"vocab_size": 512, "tie_word_embeddings": True, "max_position_embeddings": 256}
    arguments = {
        "per_device_train_batch_size": 2,
        "bf16": True,
        "fsdp": [],
        "fsdp_config": {"a": 1},
    }
    found = kept(config | arguments)
    assert (found.model.layers, found.plan["micro_batch"], found.plan["zero"]) == (2, 2, 0)
    text = '{"_runtime": 3, "_step": 5, "_timestamp": 1, "loss": 2}'
    with pytest.raises(InputError, match=r"whose config\.yaml is read"):
        reader(text, "wandb-summary.json", None)


@pytest.mark.parametrize(
    ("word", "optimizer"),
    [
        ("OptimizerNames.ADAMW_BNB", Optimizer.ADAM_8BIT),
        ("<OptimizerNames.ADAMW_BNB: 'adamw_bnb_8bit'>", Optimizer.ADAM_8BIT),
        ("OptimizerNames.ADAMW_TORCH_FUSED", Optimizer.ADAM),
        ("OptimizerNames.ADAFACTOR", Optimizer.ADAFACTOR),
    ],
)
def test_members_of_enumerations_are_the_texts_that_they_stand_for(word, optimizer):
    """Python 3.12 prints their names."""
    text = (
        "Training/evaluation parameters TrainingArguments(\nactivation_checkpointing=True,\n"
        "activation_checkpointing_kwargs={'use_reentrant': False},\nbf16=True,\n"
        f"gradient_checkpointing=True,\noptim={word},\nper_device_train_batch_size=2,\n)\n"
    )
    options = ReaderOptions(model=Model.preset("llama-3.2-1b"), sequence=64)
    launch = READERS["log"](text, "run.log", options)
    assert launch.plan["optimizer"] == optimizer
    assert (launch.plan["recompute"], launch.unmodelled) == (2, {})
