"""Python recipes of NeMo 2 and Megatron-Bridge, read from the syntax tree: nothing is run."""

import textwrap

import pytest

from plan3d.launch_files.launch_file import ReaderOptions, plan_of
from plan3d.launch_files.recipes.nemo_recipes import RECIPES, nemo_recipe
from plan3d.launch_files.recipes.settings import model_of, model_of_class
from plan3d.launch_files.registry import reader
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.plan.field_values import Recompute, StateFormat

NEMO = """
import argparse
import nemo_run as run
from nemo.collections import llm
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback
"""
BRIDGE = """
import torch
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
"""


def launch(text, beside=None, **values):
    inputs = ScriptInputs((), values, (beside or {}).get)
    text = textwrap.dedent(text)
    return reader(text, "r.py", None)(text, "r.py", ReaderOptions(inputs=inputs))


def fields(found, *names):
    return tuple(found.plan[name] for name in names)


def nemo(body):
    lines = textwrap.indent(textwrap.dedent(body), "    ")
    return f"{NEMO}\ndef recipe():\n{lines}\n    return r\n"


SHIPPED = "r = llm.llama3_8b.pretrain_recipe(num_nodes=2, num_gpus_per_node=4)\n"


def test_a_shipped_recipe_with_overrides():
    found = launch(
        nemo(
            f"""
            {SHIPPED.strip()}
            r.trainer.strategy.tensor_model_parallel_size = 4
            r.trainer.strategy.sequence_parallel = True
            r.data.global_batch_size = 2 * 64
            r.model.config.recompute_granularity = "full"
            """
        )
    )
    assert (found.model.name, found.sequence, found.global_batch) == ("llama-3-8b", 8192, 128)
    assert fields(found, "tp", "cp", "pp", "zero", "micro_batch") == (4, 2, 1, 1, 1)
    assert (found.gpus, found.plan["recompute"]) == (8, Recompute.FULL)


def test_a_recipe_that_is_run_with_arguments_of_the_command_line():
    text = f"""{NEMO}
def configured(args):
    r = llm.llama3_8b.pretrain_recipe(num_nodes=args.nodes, num_gpus_per_node=8)
    if args.fast:
        r.trainer.callbacks.append(run.Config(MegatronCommOverlapCallback, tp_comm_overlap=True))
    for name, size in [("tensor_model_parallel_size", 2), ("context_parallel_size", 1)]:
        setattr(r.trainer.strategy, name, size)
    return r

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--fast", action="store_true")
    run.run(configured(parser.parse_args()), executor=run.LocalExecutor())
"""
    assert launch(text).gpus == 16
    assert fields(launch(text), "tp", "cp", "overlap_tp") == (2, 1, False)
    fast = launch(text, nodes="4", fast="True")
    assert (fast.gpus, fast.plan["overlap_tp"]) == (32, True)


BASE = """
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-30B-A3B").get_model_config()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.expert_model_parallel_size = 4
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = 4096
    cfg.train.global_batch_size = 256
"""


def test_a_recipe_of_bridge():
    found = launch(f"{BRIDGE}\ndef first_config():\n{BASE}    return cfg\n")
    assert (found.model.name, found.global_batch, found.sequence) == ("qwen3-30b-a3b", 256, 4096)
    assert fields(found, "tp", "ep", "micro_batch", "zero") == (2, 4, 2, 1)
    assert fields(found, "overlap_grad_reduce", "precision") == (True, Precision.BF16)


def test_one_of_several_recipes_is_chosen():
    text = f"""{BRIDGE}
def first_config():
{BASE}    return cfg

def second_config():
    cfg = first_config()
    cfg.mixed_precision = get_mixed_precision_config("bf16_with_fp8_current_scaling_mixed")
    return cfg
"""
    with pytest.raises(
        InputError, match="recipes first_config, second_config: --set recipe=first_config"
    ):
        launch(text)
    assert launch(text, recipe="second_config").plan["precision"] == Precision.FP8


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("r.trainer.strategy.tensor_model_parallel_size = tp", "tensor_model_parallel_size is tp"),
        ("r.data.global_batch_size = sizes(3)", "global_batch_size"),
        ("r.model.config.num_layers = 2", "changes llama-3-8b by num_layers = 2"),
        ("r.model.config.is_hybrid_model = True", "state-space"),
        ("r = llm.my_own.pretrain_recipe()", "llm.my_own.pretrain_recipe, which is not known"),
        ("r.model = run.Config(llm.Own, config=run.Config(llm.NemotronHConfig8B))", "no preset"),
        ("r.trainer.plugins = bf16_with_new_mixed()", "fp8 by bf16_with_new_mixed"),
        ("if unknown:\n  r.trainer.strategy.context_parallel_size = 8", "what stands under unk"),
    ],
)
def test_what_is_no_literal_is_asked_for_or_refused(body, message):
    with pytest.raises(InputError, match=message):
        plan_of(launch(nemo(f"{SHIPPED}{body}\n")), {})


def test_what_is_asked_for_can_be_given():
    text = f"""{NEMO}
def recipe(tp, *, fsdp=False):
    r = llm.llama3_8b.pretrain_recipe()
    r.trainer.strategy.tensor_model_parallel_size = tp
    return r
"""
    with pytest.raises(InputError, match="--set tp=VALUE"):
        launch(text)
    assert launch(text, tp="4").plan["tp"] == 4
    assert launch(text, tensor_model_parallel_size="8").plan["tp"] == 8
    with pytest.raises(InputError, match="--set zz"):
        launch(text, tp="4", zz="1")


def test_a_function_of_a_module_beside_the_file_is_followed():
    text = f"{NEMO}from mine.base import base\ndef recipe():\n    return base(4)\n"
    beside = f"""{NEMO}
def base(tp):
    r = llm.llama3_8b.pretrain_recipe()
    r.trainer.strategy.tensor_model_parallel_size = tp
    return r
"""
    assert launch(text, {"mine/base.py": beside}).plan["tp"] == 4


def test_sizes_that_a_recipe_states():
    """Attention 4 64 64 with its 4 64 biases, MLP 2 64 256 with 64 + 256, two norms of 2 64."""
    text = nemo(
        """
        config = run.Config(
            llm.GPTConfig, num_layers=2, hidden_size=64, ffn_hidden_size=256, vocab_size=1000,
            num_attention_heads=4, seq_length=128,
        )
        r = run.Partial(
            llm.pretrain,
            model=run.Config(llm.GPTModel, config=config),
            trainer=run.Config(nl.Trainer, num_nodes=1, devices=2),
            data=run.Config(llm.MockDataModule, global_batch_size=8, micro_batch_size=1),
        )
        """
    )
    found = launch(text)
    layer = 4 * 64 * 64 + 4 * 64 + 2 * 64 * 256 + 64 + 256 + 2 * 2 * 64
    assert found.model.parameters == (1000 + 128) * 64 + 2 * layer + 2 * 64
    assert (found.gpus, found.global_batch) == (2, 8)


@pytest.mark.parametrize(
    ("dtype", "code"), [("float32", StateFormat.FP32), ("bfloat16", StateFormat.BF16)]
)
def test_formats_of_states_in_a_recipe_that_states_sizes(dtype, code):
    text = f"""{BRIDGE}
import torch
from megatron.bridge.models.gpt_provider import GPTModelProvider
def mine_config():
    cfg = _pretrain_common()
    cfg.model = GPTModelProvider(num_layers=2, hidden_size=64, num_attention_heads=4,
        seq_length=128, ffn_hidden_size=256, vocab_size=1000)
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 8
    cfg.optimizer.use_precision_aware_optimizer = True
    cfg.optimizer.main_grads_dtype = torch.{dtype}
    return cfg
"""
    assert launch(text).plan["main_grads_dtype"] == code


def test_adapters():
    text = nemo(
        """
        r = default_finetune_recipe(model(), "meta-llama/Meta-Llama-3-8B", "d", "n", 1, 8, True)
        r.model = run.Config(llm.LlamaModel, config=run.Config(llm.Llama3Config8B))
        r.peft = run.Config(LoRA, dim=8, target_modules=["linear_qkv"])
        """
    )
    found = launch(text)
    assert (found.adapters.rank, found.adapters.targets) == (8, ("q", "k", "v"))
    assert (found.global_batch, found.gpus) == (8, 8)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Llama31Config405B", "llama-3.1-405b"),
        ("Qwen25Config500M", "qwen2.5-0.5b"),
        ("Qwen2Config7B", "qwen2.5-7b"),
        ("Qwen3Config30B_A3B", "qwen3-30b-a3b"),
        ("Llama3ModelProvider8B", "llama-3-8b"),
        ("GPTConfig175B", "gpt3-175b"),
    ],
)
def test_classes_of_models(name, preset):
    assert model_of_class(name).name == preset


@pytest.mark.parametrize(
    "text",
    [
        "from nemo import llm\ndef f(:\n",
        "import nemo_run as run\n" + "(" * 500,
        "import nemo_run\nx = " + "-" * 3000 + "1\n",
        "import nemo_run\nwhile True:\n    x = 1\n",
        "import nemo_run\ndef f():\n    return f()\nx = f()\n",
        "import nemo_run\nx = 10 ** 10 ** 10\ny = 'a' * 10 ** 9\n",
        "import nemo_run\nfor i in [1, 2, 3] * 30:\n" + "    x = [i]\n" * 3000,
        "import nemo_run\nraise SystemExit(1)\n",
        "import nemo_run\nreturn 1\n",
        "import nemo_run\nopen('/tmp/never', 'w').write('x')\n",
    ],
)
def test_hostile_python_is_refused_in_one_line(text):
    with pytest.raises(InputError, match=r"\Ar\.py: [^\n]+\Z"):
        launch(text)


def places(found):
    known = [one.place for one in found.unread if not one.affects_cost and not one.why_neutral]
    return known, [one.message for one in found.unread if one.suggestion]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("r.trainer.foo_bar = False", (["foo_bar"], [])),
        ("r.trainer.max_steps = 10", ([], [])),
        ("r.trainer.callbacks.append(Clock(1))", (["callbacks"], [])),
        ("r.trainer.callbacks.append(MegatronCommOverlapCallback())", ([], [])),
        ("r.data.seq_lenght = 8", ([], ["8 (did you mean seq_length?)"])),
        ("r.modle.config = 8", ([], ["(...) (did you mean model?)"])),
    ],
)
def test_no_setting_is_left_out_without_a_word(line, expected):
    assert places(launch(nemo(f"{SHIPPED}{line}\n"))) == expected


@pytest.mark.parametrize(
    ("body", "tp"),
    [
        ("for n in [2, 4, 8]:\n  if n == 4:\n    continue\n  axes.tp = n\n  break", 2),
        ("for n in [2, 4]:\n  if n == 4:\n    continue\n  axes.tp = n", 2),
    ],
)
def test_loops_end_where_they_say(body, tp):
    axes = "axes.tp = 1\n"
    last = "\nr.trainer.strategy.tensor_model_parallel_size = axes.tp"
    assert launch(nemo(f"{SHIPPED}axes = Axes()\n{axes}{body}{last}\n")).plan["tp"] == tp


def test_what_a_match_decides_is_asked_for():
    body = 'match size:\n  case "8b":\n    r.trainer.strategy.context_parallel_size = 8\n'
    with pytest.raises(InputError, match="context_parallel_size is what stands under match size"):
        launch(nemo(f"{SHIPPED}{body}"))


def test_all_recipes_of_a_file_are_listed():
    names = [f"a_recipe_of_llama_3_on_many_machines_{i}" for i in range(40)]
    made = "    return llm.llama3_8b.pretrain_recipe()\n"
    text = NEMO + "".join(f"def {name}():\n{made}" for name in names)
    with pytest.raises(InputError, match=", ".join(names)):
        launch(text)


def test_arguments_of_a_command_are_refused():
    text = nemo(SHIPPED)
    options = ReaderOptions(inputs=ScriptInputs(("--nodes", "4")))
    with pytest.raises(InputError, match="takes no arguments after --"):
        reader(text, "r.py", None)(text, "r.py", options)


def test_a_recipe_that_is_tuned_by_the_helper_of_performance():
    found = launch(
        nemo(
            """
            from nemo.collections.llm.recipes import llama31_405b
            from scripts.performance.helpers import set_primary_perf_configs
            r = llama31_405b.pretrain_recipe(performance_mode=True)
            r = set_primary_perf_configs(r, "pre_train", num_nodes=32, num_gpus_per_node=4,
                mbs=1, gbs=2048, max_steps=30, tp_size=4, pp_size=8, cp_size=2, vp_size=8,
                ep_size=1, compute_dtype="fp8", fp8_recipe="cs", enable_cuda_graphs=False)
            """
        )
    )
    assert (found.model.name, found.gpus, found.global_batch) == ("llama-3.1-405b", 128, 2048)
    assert fields(found, "tp", "pp", "cp", "virtual_stages", "micro_batch") == (4, 8, 2, 8, 1)
    assert fields(found, "precision", "bf16_first_layers") == (Precision.FP8, 0)


def test_every_shipped_recipe_names_its_model():
    rows = [line.split() for line in RECIPES.splitlines() if line]
    assert len(rows) > 40
    shipped = [nemo_recipe(row[0], {}) for row in rows]
    assert [model_of(one, "nemo")[0].name for one in shipped] == [row[1] for row in rows]


def test_gradients_that_are_reduced_in_bf16_and_the_model_of_a_recipe_for_finetuning():
    tuned = nemo(f"{SHIPPED}r.trainer.plugins.grad_reduce_in_fp32 = False\n")
    assert launch(tuned).plan["grad_reduce_dtype"] == StateFormat.BF16
    assert not launch(nemo(SHIPPED)).plan.get("grad_reduce_dtype")
    body = "r = llm.recipes.llama31_70b.finetune_recipe(seq_length=4096)\n"
    axes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    sizes = dict.fromkeys((*axes, "micro_batch_size", "global_batch_size"), "8")
    found = launch(nemo(body), max_length="4096", **sizes)
    assert (found.model.name, found.plan["tp"]) == ("llama-3.1-70b", 8)


TUNED = """
{shipped}
r = set_primary_perf_configs(r, "pre_train", num_nodes=2, num_gpus_per_node=8, mbs=1, gbs=64,
    tp_size=tp, pp_size=1, cp_size=1, vp_size=None, ep_size=1, compute_dtype=args.compute_dtype)
r = set_exp_logging_configs(r, "pre_train", args.wandb)
r.data.tokenizer = tokenizer(args)
r.model.tokenizer = r.data.tokenizer
r.trainer.strategy.context_parallel_size = 2
"""


def tuned():
    body = textwrap.indent(TUNED.format(shipped=SHIPPED.strip()), "    ")
    return f"{NEMO}\nfrom helpers import *\ndef recipe(args, tp):\n{body}\n    return r\n"


def test_what_is_set_on_what_an_unknown_function_returns_is_set_on_its_recipe():
    found = launch(tuned(), tp="4", compute_dtype="bf16")
    assert found.model.name == "llama-3-8b"
    assert fields(found, "tp", "cp", "sequence_parallel") == (4, 2, 1)
    assert [one.text for one in found.unread if "set_exp_logging_configs" in one.text]
    assert launch(tuned(), tp="4", compute_dtype="fp8").plan["precision"] == Precision.FP8_DELAYED


def test_open_arguments_of_a_function_that_tunes_are_asked_for():
    with pytest.raises(InputError) as error:
        launch(tuned())
    for name in ("tp", "compute_dtype"):
        assert f"--set {name}=VALUE" in str(error.value)


@pytest.mark.parametrize(
    "plugins", ["my_precision()", "args.precision", "get_mixed_precision_config(args.precision)"]
)
def test_a_number_format_that_the_file_does_not_state_is_asked_for(plugins):
    text = nemo(f"{SHIPPED}r.trainer.plugins = {plugins}\n").replace("recipe()", "recipe(args)")
    with pytest.raises(InputError, match=r"fp8_format is .*: --set \w+=VALUE"):
        launch(text)
    assert launch(text, fp8_format="none").plan["precision"] == Precision.BF16


@pytest.mark.parametrize(
    ("line", "vocabulary"),
    [
        ("r.model.config.vocab_size = 50_000", 50_000),
        ("r.data.tokenizer = run.Config(get_nmt_tokenizer, vocab_size=256_000)", 256_000),
        ('r.data.tokenizer = run.Config(AutoTokenizer, "Qwen/Qwen2.5-7B")', 152_064),
        ("r.data.tokenizer = run.Config(own_tokenizer)", 128_256),
    ],
)
def test_what_decides_the_vocabulary_of_a_recipe(line, vocabulary):
    assert launch(nemo(f"{SHIPPED}{line}\n")).model.vocabulary == vocabulary


@pytest.mark.parametrize("strategy", ["no_shard", "optim_grads_params"])
def test_the_fsdp_of_a_recipe_is_that_of_megatron(strategy):
    body = f'{SHIPPED}r.trainer.strategy.fsdp = "megatron"\n'
    assert "no_shard (zero=0) before core 0.18" in launch(nemo(body)).unmodelled["zero"]
    stated = f'r.trainer.strategy.ddp.data_parallel_sharding_strategy = "{strategy}"\n'
    assert launch(nemo(body + stated)).plan["zero"] == (3 if strategy != "no_shard" else 0)
    with pytest.raises(InputError, match="fsdp = pytorch is not modelled"):
        launch(nemo(body.replace("megatron", "pytorch")))
