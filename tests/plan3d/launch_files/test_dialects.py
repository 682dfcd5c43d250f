"""Files are recognised by their content; a framework that is not read is refused by its name."""

import json

import pytest
import yaml

from plan3d.launch_files.launch_file import Launch, ReaderOptions, effective_plan, plan_of
from plan3d.launch_files.registry import READERS, framework_of_file, is_script, reader
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.launch_files.yaml_frameworks import RECOGNITIONS
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

JOB = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
seq_len = 4096
[parallelism]
tensor_parallel_degree = 1
"""
COMMAND = """
NGPU=${NGPU:-"8"}
CONFIG_FILE=${CONFIG_FILE:-"./jobs/llama.toml"}
torchrun --nproc_per_node=${NGPU} -m torchtitan.train --job.config_file ${CONFIG_FILE} \\
  --parallelism.tensor_parallel_degree 2 --training.local_batch_size=2 --compile.enable
"""
NANOTRON = """
model:
  model_config: {is_llama_config: true, hidden_size: 512, intermediate_size: 2048,
    num_attention_heads: 8, num_hidden_layers: 4, vocab_size: 32000}
parallelism: {dp: 2, pp: 1, tp: 2, tp_linear_async_communication: true}
tokens: {sequence_length: 256, micro_batch_size: 2}
"""


JOBS = {"./jobs/llama.toml": JOB}


def titan(text=COMMAND, jobs=JOBS, **values):
    inputs = ScriptInputs(values=values, read_source=jobs.get)
    return READERS["torchtitan"](text, "run.sh", ReaderOptions(inputs=inputs))


def test_flags_of_a_torchtitan_command_replace_keys_of_its_job():
    launch = titan()
    assert (launch.model.name, launch.sequence, launch.launcher_gpus) == ("llama-3.1-8b", 4096, 8)
    assert (launch.plan["tp"], launch.plan["micro_batch"]) == (2, 2)
    assert "fused_norm" not in launch.software  # compiled
    assert titan(jobs={"x.toml": JOB}, CONFIG_FILE="x.toml").file == "run.sh: x.toml"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (COMMAND, r"the job is in ./jobs/llama.toml: give that file, with --parallelism.tensor_"),
        (
            "./torchtitan/train.py --module llama3 --config llama3_9b",
            r"the recipe llama3_9b of llama3, which is neither one that plan3d knows \(llama",
        ),
        ("python torchtitan/train.py", "in a TOML file that it does not name"),
        (
            COMMAND.replace("degree 2", "degree $TP"),
            r"TP has no value \(--parallelism.*: --set TP=",
        ),
        (COMMAND.replace("degree 2", "degree $(nproc)"), r"line 5: --para.*depends on a condition"),
    ],
)
def test_the_job_of_a_torchtitan_command_is_named(command, message):
    with pytest.raises(InputError, match=message) as error:
        titan(command, {})
    assert "\n" not in str(error.value)


def test_an_override_of_what_is_no_section_is_named():
    with pytest.raises(InputError, match="tensor_parallel_degree of the job is no section"):
        titan(COMMAND.replace("--compile", "--parallelism.tensor_parallel_degree.x"))


def test_overlap_of_tensor_communication_that_a_stack_does_not_hide_is_listed():
    launch = READERS["nanotron"](NANOTRON, "run.yaml", ReaderOptions())
    task = Task(
        launch.model,
        Cluster.profile("h100-sxm", gpus=4),
        sequence=256,
        global_batch=4,
        software=software_profile("nanotron"),
    )
    plan = effective_plan(launch, plan_of(launch, {}), task)
    assert (plan.tp, plan.overlap_tp) == (2, 0)
    (setting,) = (setting for setting in launch.unread if setting.overrides)
    assert setting.place == "$.parallelism.tp_linear_async_communication"
    assert setting.affects_cost
    hidden = effective_plan(
        READERS["nanotron"](NANOTRON, "run.yaml", ReaderOptions()),
        plan_of(launch, {}),
        Task(launch.model, task.cluster, sequence=256, global_batch=4),
    )
    assert hidden.overlap_tp == 1


ALTERNATIVES = [(one, keys) for one in RECOGNITIONS for keys in one.alternatives]


def document_with(keys):
    """A YAML document with those keys, 'section.key' in its section."""
    content = {}
    for key in keys:
        section, _, name = key.rpartition(".")
        here = content.setdefault(section, {}) if section else content
        here[name] = 1
    return yaml.safe_dump(content)


@pytest.mark.parametrize(
    ("reader", "keys"), [(one.reader, keys) for one, keys in ALTERNATIVES if one.reader]
)
def test_a_document_is_recognised_by_its_keys(reader, keys):
    assert framework_of_file(document_with(keys), "job.yaml") == reader


@pytest.mark.parametrize(
    ("title", "keys"), [(one.title, keys) for one, keys in ALTERNATIVES if not one.reader]
)
def test_a_document_that_is_not_read_is_refused_by_name(title, keys):
    with pytest.raises(InputError, match="is a file of") as error:
        framework_of_file(document_with(keys), "job.yaml")
    assert title in str(error.value)


@pytest.mark.parametrize(
    ("text", "file", "framework", "script"),
    [
        (NANOTRON, "run.yml", "nanotron", False),
        ("- 1", "run.yaml", "nanotron", False),
        (JOB, "job.toml", "torchtitan", False),
        (COMMAND, "run.slurm", "torchtitan", True),
        ("# torchtitan.train\npython pretrain_gpt.py --x", "run.sh", "megatron", True),
        ("python pretrain_gpt.py --deepspeed", "run.sh", "deepspeed", True),
        ("  {}", "config", "deepspeed", False),
    ],
)
def test_a_file_is_of_the_framework_that_its_content_says(text, file, framework, script):
    assert framework_of_file(text, file) == framework
    assert is_script(text, file, None) == is_script(text, file, framework) == script


def test_files_that_include_others_are_refused_by_the_name_of_their_framework():
    text = "data: !include mixtures/web.yaml\ntrainer: {train_batch_size: 8, tracker: {}}\n"
    with pytest.raises(InputError, match="is a file of Levanter, which is not read"):
        framework_of_file(text, "run.yaml")
    text = "finetuning_type: full\nmodel_name_or_path: !include model.yaml\n"
    with pytest.raises(InputError, match="the tag !include is not read: write out"):
        reader(text, "run.yaml", None)(text, "run.yaml", ReaderOptions())


def test_python_of_reinforcement_learning_is_refused():
    text = "from torchtitan.config import TrainingConfig\nfrom torchtitan.experiments.rl import X\n"
    with pytest.raises(InputError, match="is Python of reinforcement learning, which is not read"):
        framework_of_file(text, "config_registry.py")


def test_keys_of_no_framework_are_no_nanotron_file():
    """Nor is a model that learns at some rate axolotl's."""
    model = "base_model: Qwen/Qwen3-8B\n"
    for text in ("a: 1", f"{model}datasets: [a/b]\ntags: [text]", f"{model}learning_rate: 1e-5"):
        with pytest.raises(InputError, match="keys of no framework that plan3d reads"):
            framework_of_file(text, "run.yaml")


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B", "verl"),
        ("ray job submit -- python3 train.py --actor-num-nodes 1", "slime"),
        ("python3 -m MaxText.train MaxText/configs/base.yml run_name=x", "MaxText"),
        ("python3 -m MaxText.$EXECUTABLE MaxText/configs/base.yml \\\n steps=5", "MaxText"),
        ("composer train/train.py train/yamls/pretrain/mpt-7b.yaml", "llm-foundry"),
        ("metaseq-train --task streaming_language_modeling data", "metaseq"),
        ("fairseq-train --arch transformer_lm data", "fairseq"),
        ("python deepy.py train.py configs/49M.yml", "GPT-NeoX"),
        ("swift rlhf \\\n --rlhf_type dpo", "ms-swift (RLHF)"),
        ("swift rlhf --external_plugins a.py --deepspeed zero2", "ms-swift (RLHF)"),
        ("python examples/megatron_gpt_pretraining.py trainer.devices=8", "NeMo"),
        ("torchrun gpt/train_gpt_sft.py \\\n model.optim.lr=5e-6", "NeMo-Aligner"),
        ("torchrun -m lm_engine.pretrain --config $1", "dolomite-engine"),
        ("arctic_training run-sft.yml", "ArcticTraining"),
    ],
)
def test_programs_that_are_not_read_are_refused_by_their_names(line, title):
    with pytest.raises(InputError, match="which is not read") as error:
        framework_of_file(f"set -x\n{line}\n", "run.sh")
    assert f"run.sh: starts {title}, which" in str(error.value)
    assert framework_of_file(f"# {line.splitlines()[0]}\npython pretrain_gpt.py --x", "r.sh")


def test_a_file_of_a_model_of_images_is_none_of_nanotron():
    text = NANOTRON.replace("is_llama_config: true", "vision_config: {hidden_size: 8}")
    text = text.replace("hidden_size: 512", "text_config: {hidden_size: 512}")
    with pytest.raises(InputError, match=r"vision_config is not modelled.*an encoder of images"):
        READERS["nanotron"](text, "run.yaml", ReaderOptions())


def test_the_file_of_a_nanotron_command_is_named():
    line = "torchrun --nproc_per_node=8 run_train.py --config-file examples/tiny.yaml"
    with pytest.raises(InputError, match=r"the run is in examples/tiny.yaml: give that file"):
        reader(line, "run.sh", None)(line, "run.sh", ReaderOptions())


@pytest.mark.parametrize("stages", [{"layers_per_stage": (6, 6, 10)}, {"first_stage_layers": 40}])
def test_a_heading_with_stages_that_are_none_is_left_out(stages):
    task = Task(
        Model.preset("llama-3.1-8b"),
        Cluster.profile("h100-sxm", gpus=8),
        sequence=2048,
        global_batch=64,
    )
    launch = Launch("run.sh", "megatron", stated_plan=Plan(pp=4, **stages))
    plan = Plan(pp=4, layers_per_stage=(6, 6, 10, 10))
    assert effective_plan(launch, plan, task).layers_per_stage == (6, 6, 10, 10)


def test_json_is_deepspeeds_only_with_its_keys():
    """ms-swift saves the arguments of a run as JSON; reports and models are no launch files."""
    run = {"model": "Qwen/Qwen2.5-7B", "tuner_type": "full", "per_device_train_batch_size": 1}
    saved = json.dumps(run | {"bf16": True, "gradient_accumulation_steps": 4, "max_length": 64})
    assert framework_of_file(saved, "args.json") == "ms-swift"
    read = READERS["ms-swift"](saved, "args.json", ReaderOptions())
    assert (read.model.name, read.sequence, read.accumulation) == ("qwen2.5-7b", 64, 4)
    for text in ('{"train_batch_size": 8}', '{"bf16": {"enabled": true}}', "{}", '{"a": STAGE}'):
        assert framework_of_file(text, "ds.json") == "deepspeed"
    for other in ({"sequence_parallel_size": 2, "steps": 9}, {"model_type": "llama"}):
        with pytest.raises(InputError, match="none of DeepSpeed's"):
            framework_of_file(json.dumps(other), "report.json")
