"""Recipes of torchtitan 0.3 in Python, commands that name them, and keys of older jobs."""

import textwrap

import pytest

from plan3d.launch_files.exporter import launch_text
from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.registry import EXPORTERS, reader
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.launch_files.torchtitan.job import read_job
from plan3d.launch_files.torchtitan.launch import _recipe_numbers
from plan3d.launch_files.torchtitan.model_flavors import READ
from plan3d.launch_files.torchtitan.recipe import _as_job
from plan3d.launch_files.torchtitan.registered import ROWS
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.plan.field_values import Loss, Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TOP = """
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw, OptimizersContainer, ParamGroupConfig
from torchtitan.components.quantization import Float8LinearConverter, MXFP8LinearConverter
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import llama3_70b
from torchtitan.trainer import Trainer
"""


def launch(text, file="recipe.py", beside=None, **values):
    inputs = ScriptInputs((), values, (beside or {}).get)
    return reader(text, file, None)(text, file, ReaderOptions(inputs=inputs))


def recipe(body, **values):
    lines = textwrap.indent(textwrap.dedent(body), "    ")
    return launch(f"{TOP}\ndef mine():\n{lines}\n    return config\n", **values)


def fields(found, *names):
    return tuple(found.plan[name] for name in names)


def test_a_recipe_that_is_written_out():
    found = recipe(
        """
        config = Trainer.Config(
            loss=CrossEntropyLoss.Config(),
            model_spec=model_registry("8B", converters=[
                Float8LinearConverter.Config(recipe_name="rowwise", filter_fqns=["lm_head"]),
            ]),
            optimizer=default_adamw(lr=3e-4),
            training=TrainingConfig(local_batch_size=2, seq_len=4096, global_batch_size=64),
            parallelism=ParallelismConfig(
                tensor_parallel_degree=4, data_parallel_shard_degree=4,
                data_parallel_replicate_degree=2, enable_sequence_parallel=False,
            ),
            activation_checkpoint=FullAC.Config(),
        )
        """
    )
    assert (found.model.name, found.sequence, found.global_batch) == ("llama-3.1-8b", 4096, 64)
    assert fields(found, "tp", "zero", "micro_batch", "sequence_parallel") == (4, 3, 2, 0)
    assert fields(found, "recompute", "precision") == (Recompute.FULL, Precision.FP8_ROWWISE)
    assert (found.gpus, found.replicas) == (32, 2)
    assert "loss" not in found.plan


def test_tokens_of_later_versions_are_sequences():
    found = recipe(
        """
        config = llama3_70b()
        config.training = TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * 8192, max_context_length=8192)
        config.parallelism.pipeline_parallel_degree = 4
        config.parallelism.num_pp_microbatches = 8
        """
    )
    assert fields(found, "tp", "pp", "micro_batch", "loss") == (8, 4, 2, Loss.CHUNKED)
    assert (found.sequence, found.accumulation) == (8192, 8)


def test_one_micro_batch_of_one_token_is_the_least():
    """And what is left out: 16384 tokens, as TrainingConfig has them."""
    body = """
        config = llama3_70b()
        config.training = TrainingConfig(max_context_length={})
        config.parallelism.pipeline_parallel_degree = 4
        config.parallelism.num_pp_microbatches = {}
        """
    found = recipe(body.format(4096, 1))
    assert (found.sequence, found.accumulation, found.plan["micro_batch"]) == (4096, 1, 4)
    assert recipe(body.format(1, 1)).plan["micro_batch"] == 16384
    for sizes in ((4096, 0), (0, 1)):
        with pytest.raises(InputError, match="must be whole sequences"):
            recipe(body.format(*sizes))


@pytest.mark.parametrize(
    ("length", "step", "pieces", "stages", "sizes"),
    [
        # 16384 tokens of a micro-batch are four sequences; without stages there are no pieces.
        (4096, -1, 8, 1, (4, -1)),
        (4096, 0, 8, 1, (4, -1)),
        (4096, 65536, 8, 1, (4, 16)),
        (4096, 65536, 8, 2, (32, 16)),
        (1, 1, 1, 1, (16384, 1)),
        (4096, 1, 1, 1, None),
        (4096, 65537, 1, 1, None),
        (4095, 65536, 1, 1, None),
    ],
)
def test_tokens_of_a_batch_are_whole_sequences(length, step, pieces, stages, sizes):
    training = {"max_context_length": length, "num_tokens_per_train_step": step}
    parallelism = {"num_pp_microbatches": pieces, "pipeline_parallel_degree": stages}
    job = {"training": training, "parallelism": parallelism, "compile": {}}
    if sizes is None:
        with pytest.raises(InputError, match="must be whole sequences"):
            _as_job(job, "r.py")
        return
    _as_job(job, "r.py")
    assert (training["local_batch_size"], training["global_batch_size"]) == sizes
    assert training["seq_len"] == length
    assert parallelism.get("pipeline_parallel_microbatch_size") == (4 if stages == 2 else None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("config.training.max_context_length = 3000", "must be whole sequences of max_context_"),
        ("config.training.seq_len = LENGTH", r"training.seq_len is LENGTH: --set seq_len=VALUE"),
        ("config.model_spec = make()", r"model_spec is no model_registry\(...\) of a flavor"),
        ('config.model_spec = model_registry("8B", num_mtp_layers=1)', "multi-token prediction"),
        ('config.model_spec = model_registry("9B")', "names llama3 9B, which is no flavor"),
    ],
)
def test_what_a_recipe_leaves_open_is_refused(body, message):
    with pytest.raises(InputError, match=message):
        recipe(f"config = llama3_70b()\n{body}")


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        ("config.activation_checkpoint = SelectiveAC.Config()", "recompute", "every product"),
        (
            'config.model_spec = model_registry("70B", converters=[MXFP8LinearConverter.Config()])',
            "precision",
            "MXFP8LinearConverter",
        ),
        (
            'config.model_spec = model_registry("70B", converters=[convert()])',
            "precision",
            "convert",
        ),
        (
            "config.model_spec = torchtitan.models.deepseek_v3.model_registry("
            '"671B", converters=[Float8LinearConverter.Config()])',
            "precision",
            "only its linear layers",
        ),
        (
            "config.optimizer = OptimizersContainer.Config(param_groups=["
            'ParamGroupConfig(pattern=".*", optimizer_name="Muon")])',
            "optimizer",
            "Muon",
        ),
    ],
)
def test_what_no_plan_has_must_be_replaced(body, field, reason):
    assert reason in recipe(f"config = llama3_70b()\n{body}").unmodelled[field]


def test_float8_is_scaled_by_rows_unless_a_recipe_says_otherwise():
    found = recipe(
        "config = llama3_70b()\n"
        'config.model_spec = model_registry("70B", converters=[Float8LinearConverter.Config()])'
    )
    assert fields(found, "precision") == (Precision.FP8_ROWWISE,)


def test_a_recipe_of_several_is_chosen():
    text = f"{TOP}\ndef one():\n    return llama3_70b()\n\ndef two():\n    return llama3_70b()\n"
    with pytest.raises(InputError, match="makes the recipes one, two: --set recipe=one"):
        launch(text)
    assert launch(text, recipe="two").model.name == "llama-3.1-70b"


COMMAND = """torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --module {} --config {} \\
  --training.local_batch_size 4 --parallelism.tensor-parallel-degree 2 activation-checkpoint:none
"""


def test_a_command_names_a_recipe_and_replaces_its_keys():
    found = launch(COMMAND.format("llama3", "llama3_8b"), "run.sh")
    assert (found.model.name, found.sequence, found.launcher_gpus) == ("llama-3.1-8b", 8192, 16)
    assert fields(found, "tp", "micro_batch", "recompute") == (2, 4, Recompute.NONE)
    assert not found.unmodelled


def test_a_command_names_a_recipe_that_is_beside_it():
    beside = {"my/recipes.py": f"{TOP}\ndef mine():\n    return llama3_70b()\n"}
    found = launch(COMMAND.format("my.recipes", "mine"), "run.sh", beside)
    assert (found.model.name, found.plan["micro_batch"]) == ("llama-3.1-70b", 4)
    with pytest.raises(InputError, match=r"my/recipes.py has no recipe other"):
        launch(COMMAND.format("my.recipes", "other"), "run.sh", beside)


@pytest.mark.parametrize("name", [name for name in ROWS if "debug" not in name])
def test_recipes_that_torchtitan_ships_are_of_known_flavors(name):
    row = ROWS[name]
    assert (row["family"], row["flavor"]) in READ
    found = launch(COMMAND.format(row["family"], name), "run.sh")
    assert found.plan["ep"] == int(row["expert_parallel_degree"])
    assert found.sequence == int(row["seq_len"])


@pytest.mark.parametrize("plan", ["tp=4 zero=3 micro_batch=2", "tp=2 pp=2 zero=2 recompute=full"])
def test_a_recipe_that_plan3d_writes_is_read_as_the_same_plan(plan):
    cluster = Cluster.profile("h100-sxm", gpus=16)
    task = Task(Model.preset("llama-3.1-8b"), cluster, sequence=8192, global_batch=64)
    text = launch_text(task, Plan.parse(plan), EXPORTERS["torchtitan"].form("0.3"))
    found = launch(text)
    assert found.model == task.model
    for field in ("tp", "pp", "zero", "micro_batch", "recompute"):
        assert found.plan[field] == getattr(Plan.parse(plan), field)
    assert (found.sequence, found.global_batch) == (8192, 64)


def job(**sections):
    """The launch of a job of the flavor 8B on two stages."""
    content = {"model": {"flavor": "8B"}, "parallelism": {"pipeline_parallel_degree": 2}}
    for name, own in sections.items():
        content[name] = content.get(name, {}) | own
    return read_job(content, "job.toml", "job.toml", ReaderOptions())


def test_keys_of_torchtitan_0_1_are_read():
    assert "logit_bytes" in job().software
    assert "logit_bytes" not in job(training={"compile": True}).software
    cut = job(parallelism={"pipeline_parallel_split_points": ["layers.12"]})
    assert cut.plan["layers_per_stage"] == (12, 20)
    with pytest.raises(InputError, match="split_points must be rising layers below 32"):
        job(parallelism={"pipeline_parallel_split_points": ["layers.40"]})
    rows = job(model={"converters": ["float8"]}, float8={"recipe_name": "rowwise"})
    assert rows.plan["precision"] == Precision.FP8_ROWWISE


@pytest.mark.parametrize(("tp", "is_parallel"), [(1, 0), (2, 1)])
def test_sequences_are_parallel_over_several_tensor_ranks(tp, is_parallel):
    found = job(parallelism={"tensor_parallel_degree": tp})
    assert found.plan["sequence_parallel"] == is_parallel


def test_a_job_that_estimates_memory_trains_nothing():
    assert job(memory_estimation={"enable": False}).model
    with pytest.raises(InputError, match="it estimates memory, and trains nothing"):
        job(memory_estimation={"enable": True})


@pytest.mark.parametrize(
    ("section", "key"), [("encoder", "t5_encoder"), ("data", "max_patches_per_image")]
)
def test_a_job_on_images_is_refused_whatever_model_is_given(section, key):
    content = {"model": {"name": "flux"}, "training": {}, section: {key: 4}}
    with pytest.raises(InputError, match="it trains on images"):
        read_job(content, "a.toml", "a.toml", ReaderOptions(Model.preset("qwen2.5-7b")))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("optimizer", "implementation", "for-loop"),
        ("parallelism", "context_parallel_load_balancer", "none"),
        ("compile", "backend", "eager"),
        ("fault_tolerance", "semi_sync_method", "diloco"),
        ("debug", "deterministic", True),
    ],
)
def test_keys_of_a_job_that_change_time_or_memory_are_said_to(section, key, value):
    found = job(**{section: {key: value}})
    assert f"$.{section}.{key}" in [one.place for one in found.unread if one.affects_cost]


@pytest.mark.parametrize(
    ("compiled", "early_stop", "spares"),
    [(False, None, False), (False, True, None), (True, False, None), (True, True, None)],
)
def test_a_checkpoint_that_stops_early_spares_the_last_product_of_a_layer(
    compiled, early_stop, spares
):
    stated = {} if early_stop is None else {"early_stop": early_stop}
    sections = {"activation_checkpoint": {"mode": "full"} | stated, "compile": {"enable": compiled}}
    found = job(**sections)
    assert found.software.get("spares_last_product") is spares
    assert not [one for one in found.unread if "early_stop" in one.place]


@pytest.mark.parametrize(
    ("plan", "disabled"), [("tp=2 zero=2", False), ("pp=2 zero=2", True), ("ep=2 zero=2", True)]
)
def test_graphs_of_kernels_are_off_beside_stages_and_experts(plan, disabled):
    cluster = Cluster.profile("h100-sxm", gpus=16)
    name = "mixtral-8x7b" if "ep" in plan else "llama-3.1-8b"
    task = Task(Model.preset(name), cluster, sequence=8192, global_batch=64)
    assert _recipe_numbers(task, Plan.parse(plan)).disable_cuda_graphs is disabled
