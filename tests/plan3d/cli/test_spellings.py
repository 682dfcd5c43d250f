"""Plans, lengths, rates, frameworks and models as people spell them."""

import json

import pytest

from plan3d.cli.main import main
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.units import doublings, parse_bandwidth, parse_length
from plan3d.simulator.hardware.profile_file import profile_names, profile_of
from plan3d.simulator.plan.plan import Plan, field_changes
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import preset_of_id


@pytest.mark.parametrize(
    "text",
    [
        "tp=2 pp=4 micro_batch=3",
        "TP=2 PP=4 micro-batch=3",
        "tp=2,pp=4,micro_batch=3",
        "tp=2, pp=4, micro_batch=3",
        "tensor_model_parallel_size=2 pipeline_model_parallel_size=4 micro_batch_size=3",
        "tensor_parallel=2 pipeline_parallel=4 microbatch=3",
    ],
)
def test_fields_of_a_plan(text):
    assert str(Plan.parse(text)) == "tp=2 pp=4 micro_batch=3"


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("layers_per_stage=3,5 pp=2", "pp=2 layers_per_stage=3,5"),
        ("pp=2,layers_per_stage=3,5", "pp=2 layers_per_stage=3,5"),
        ("precision=bfloat16", "tp=1"),
        ("precision=torch.float16", "precision=fp16"),
        ("optimizer=AdamW", "tp=1"),
        ("pp=2 schedule=ZB_H1", "pp=2 schedule=zb-h1"),
        ("cp=2 cp_comm=Ulysses", "cp=2 cp_comm=a2a"),
        ("cp=2 cp_comm=ring", "cp=2"),
        ("sync=ring", "sync=ring"),
    ],
)
def test_values_of_a_plan(text, plan):
    assert str(Plan.parse(text)) == plan


@pytest.mark.parametrize("text", ["TP=2,zero=3", "tensor_parallel=2, zero_stage=3"])
def test_changes_of_a_plan_are_read_as_a_plan_is(text):
    assert field_changes(text) == {"tp": 2, "zero": 3}
    assert str(Plan(**field_changes(text))) == str(Plan.parse(text))


def test_runs_of_layers_keep_their_commas():
    text = "pp=2 segments=2:tp=2,dp=1|2:tp=1,dp=2"
    assert Plan.parse(text).segments_text == "2:tp=2,dp=1|2:dp=2"


def test_a_field_under_two_names_is_given_twice():
    with pytest.raises(InputError, match="plan gives tp twice"):
        Plan.parse("tp=2 tensor_parallel=4")


@pytest.mark.parametrize(
    ("text", "tokens"), [("4096", 4096), ("4k", 4096), ("128K", 131_072), ("1M", 1_048_576)]
)
def test_lengths_in_1024s(text, tokens):
    assert parse_length(text) == tokens


@pytest.mark.parametrize("text", ["4.5k", "k", "-4k", "4kb", ""])
def test_other_lengths_are_refused(text):
    with pytest.raises(InputError, match="must be a whole number, or one of 1,024s as in 128k"):
        parse_length(text, "--sequence")


@pytest.mark.parametrize(
    "text", ["400Gbps", "400Gb/s", "400 Gbit/s", "400Gbit", "50GB/s", "50GBps"]
)
def test_rates_of_a_network(text):
    assert parse_bandwidth(text) == pytest.approx(50e9)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("32..128", ["32", "64", "128"]),
        ("3..12", ["3", "6", "12"]),
        ("8..8", ["8"]),
        ("1,4..8,100", ["1", "4", "8", "100"]),
        ("full", ["full"]),
    ],
)
def test_ranges_double(text, values):
    assert doublings(text, "--over gpus") == values


@pytest.mark.parametrize(
    ("text", "near"),
    [("32..100", "; nearest: 32..64"), ("8..4", ""), ("0..3", "; nearest: 0,1,2,3")],
)
def test_other_ranges_are_refused(text, near):
    with pytest.raises(InputError) as error:
        doublings(text, "--over gpus")
    assert str(error.value).endswith(f"must double from its first value to its last{near}")


@pytest.mark.parametrize(
    ("hub_id", "preset"),
    [
        ("NousResearch/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("unsloth/SmolLM2-135M", "smollm2-135m"),
        ("unsloth/Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("unsloth/Meta-Llama-3.1-8B-bnb-4bit", "llama-3.1-8b"),
        ("TheBloke/Llama-2-7B-GPTQ", "llama-2-7b"),
        ("huggyllama/llama-7b", "llama-7b"),
        ("unsloth/mistral-7b", "mistral-7b"),
    ],
)
def test_models_that_others_have_copied(hub_id, preset):
    assert preset_of_id(hub_id) == preset


def answer(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("spelled", "framework"), [("fsdp", "accelerate"), ("Megatron-LM", "megatron")]
)
def test_other_names_of_frameworks(capsys, spelled, framework):
    words = "search gpt3-1.3b a100-80gb-sxm 8 --choose tp=1 --choose pp=1 --top 1 --framework"
    answers = [answer(capsys, *words.split(), name) for name in (spelled, framework)]
    assert answers[0]["plans"] == answers[1]["plans"]


def test_spellings_reach_the_question(capsys):
    words = ["estimate", "llama-7b", "a100-80gb-sxm", "8", "--plan"]
    usual = answer(capsys, *words, "tp=2 dp=4", "--sequence", "4096")
    assert answer(capsys, *words, "TP=2,DP=4", "--sequence", "4k") == usual


@pytest.mark.parametrize(
    ("plan", "option", "said"),
    [
        ("TP=2", "--system ddp", "tp=2 contradicts the system ddp, which has tp=1"),
        ("tp=1,zero=3", "--system ddp", "zero=3 contradicts the system ddp, which has zero=0"),
        ("tp=2,precision=fp8", "--precision bf16", "--precision bf16 contradicts the plan"),
    ],
)
def test_no_field_of_a_plan_is_lost_for_its_spelling(capsys, plan, option, said):
    assert main([*ESTIMATE, "--plan", plan, *option.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("change", "usual"), [("TP=4", "tp=4"), ("tp=4,zero=3", "tp=4 zero=3")])
def test_the_other_plan_is_read_as_a_plan_is(capsys, change, usual):
    words = ["explain", *ESTIMATE[1:], "--plan", "tp=2", "--against"]
    said = [answer(capsys, *words, text)["against"] for text in (change, usual)]
    assert said[0] | {"asked": usual} == said[1]


@pytest.mark.parametrize(
    ("usual", "typed"),
    [
        (["--power-limit", "500"], ["--power-limit", "500W"]),
        (["--risk", "0.9"], ["--risk", "90%"]),
        (["--tokens", "2T", "--price", "2.5"], ["--tokens", "2t", "--price", "$2.5"]),
        (["--network", "efa"], ["--network", "EFA"]),
        (["--adapter", "lora"], ["--adapter", "LoRA"]),
        (["--system", "fsdp"], ["--system", "FSDP"]),
    ],
)
def test_values_are_read_with_their_units_and_in_any_case(capsys, usual, typed):
    words = [*SEARCH, "--fix", "pp=1", "--top", "1"]
    assert answers(capsys, *words, *typed) == answers(capsys, *words, *usual)


@pytest.mark.parametrize("over", ["TP=1,2", "tensor_model_parallel_size=1,2", "TP=1..2"])
def test_fields_are_varied_under_their_other_names(capsys, over):
    words = ["sweep", *ESTIMATE[1:], "--plan", "pp=2", "--over"]
    usual = answer(capsys, *words, "tp=1,2")
    assert answer(capsys, *words, over)["points"] == usual["points"]


@pytest.mark.parametrize(
    ("plan", "near"),
    [("tp=4 pp=3", "nearest: pp=2"), ("tp=8 pp=3", "nearest: pp=1"), ("cp=16", "nearest: cp=8")],
)
def test_the_nearest_size_is_a_value(capsys, plan, near):
    assert main(["estimate", "gpt3-1.3b", "a100-80gb-sxm", "8", "--plan", plan]) == 2
    assert capsys.readouterr().err.rstrip().endswith(near)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("LLaMA-7B", "llama-7b"),
        ("llama3-70b", "llama-3-70b"),
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("qwen3 30b a3b", "qwen3-30b-a3b"),
        ("gpt_3_175b", "gpt3-175b"),
        ("DeepSeek-R1", "deepseek-v3"),
    ],
)
def test_names_of_models_without_an_owner(name, preset):
    assert Model.preset(name) == Model.preset(preset)


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("H100 SXM5 80GB", "h100-sxm"),
        ("h100-80gb-sxm5", "h100-sxm"),
        ("A100 80G", "a100-80gb-sxm"),
        ("PCIe A100 40GB", "a100-pcie-40gb"),
        ("HGX H200", "h200-sxm"),
        ("dgx-h100", "h100-sxm"),
    ],
)
def test_names_of_gpus_in_any_order(name, profile):
    assert profile_of(name, profile_names()) == profile


ESTIMATE = ["estimate", "llama-7b", "h100-sxm", "16", "--sequence", "2k"]
SEARCH = ["search", "llama-7b", "h100-sxm", "16", "--sequence", "2k", "--json"]


def answers(capsys, *words):
    assert main([*words]) == 0
    return json.loads(capsys.readouterr().out)["plans"]


@pytest.mark.parametrize("gpus", [["16xH100"], ["16 x h100-sxm"], ["h100:16"], ["H100x16"]])
def test_gpus_are_counted_with_their_name(capsys, gpus):
    rest = [*ESTIMATE[4:], "--plan", "tp=2", "--json"]
    assert answers(capsys, *ESTIMATE[:2], *gpus, *rest) == answers(capsys, *ESTIMATE[:4], *rest)


def test_a_thousand_gpus_are_1024(capsys):
    (plan,) = answers(capsys, *ESTIMATE[:3], "1k", *ESTIMATE[4:], "--plan", "tp=8", "--json")
    assert plan["plan"]["dp"] == 128


def test_fields_of_a_plan_stand_behind_the_gpus(capsys):
    stated = answers(capsys, *ESTIMATE, "--json", "--plan", "tp=2 pp=2")
    assert answers(capsys, *ESTIMATE[:4], "tp=2", "pp=2", *ESTIMATE[4:], "--json") == stated


@pytest.mark.parametrize("text", ["TP=2,pp=2", "tp=2 pp=2", "tensor_parallel=2, pp=2"])
def test_several_fields_are_fixed_at_once(capsys, text):
    fixed = [plan["plan"] for plan in answers(capsys, *SEARCH, "--fix", text)]
    assert {(plan["tp"], plan["pp"]) for plan in fixed} == {(2, 2)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*SEARCH, "--tp", "2"], "unknown option '--tp': a field of a plan, --fix tp=2"),
        ([*SEARCH, "--mbs=4"], "unknown option '--mbs': a field of a plan, --fix micro_batch=4"),
        ([*ESTIMATE, "--pp", "4"], "unknown option '--pp': a field of a plan, --plan pp=4"),
        ([*SEARCH[:4], "tp=2"], "comes MODEL CLUSTER GPUS; a field of a plan: --fix tp=2"),
        ([*SEARCH, "--gbs", "64"], "unknown option '--gbs'; did you mean --global-batch?"),
        ([*SEARCH, "--dtype", "bf16"], "unknown option '--dtype'; did you mean --precision?"),
        ([*SEARCH, "--gpu-memory", "40GB"], "option '--gpu-memory'; did you mean --memory?"),
        ([*SEARCH, "--load-in-4bit"], "unknown option '--load-in-4bit'; did you mean --adapter?"),
        ([*SEARCH, "--epochs", "3"], "unknown option '--epochs'; did you mean --tokens?"),
        ([*SEARCH, "--sp"], "'--sp': a field of a plan, --fix sequence_parallel=V"),
        ([*SEARCH, "--gradient-checkpointing"], "a field of a plan, --fix recompute=V"),
        (["export", "last", "--framework", "fsdp"], "option '--framework'; did you mean --to?"),
        ([*ESTIMATE, "--plan", "tp2 PP4"], "nor a file; did you mean 'tp=2 pp=4'?"),
        ([*ESTIMATE, "--plan", "tp=2 mbs=1"], "plan field 'mbs'; did you mean micro_batch?"),
        ([*ESTIMATE, "--plan", "tp=2 gbs=64"], "no field of a plan: the batch belongs to the task"),
        (["search", "llama-7b", "8xh100", "64"], "'8xh100' and '64' both say the gpus: give one"),
        (
            ["search", "llama-7b", "8xh100+4xh200"],
            "'8xh100+4xh200' names GPUs of 2 kinds; of two, as search and export have it: 8xh100 "
            "--second-pool h200:4",
        ),
        (["search", "llama-7b", "8xA100"], "means several profiles; name one: a100-40gb-sxm"),
        ([*ESTIMATE, "--plan", "TP2PP4"], "nor a file; did you mean 'tp=2 pp=4'?"),
        ([*ESTIMATE, "--plan", "tp 2"], "nor a file; did you mean 'tp=2'?"),
        ([*SEARCH, "--fix", "tp2"], "--fix 'tp2' must be FIELD=VALUE; did you mean 'tp=2'?"),
        ([*ESTIMATE, "--plan", "grad_accum=4"], "field of a plan: the batch belongs to the task"),
        ([*SEARCH, "--gradient-accumulation-steps", "4"], "did you mean --global-batch?"),
        ([*ESTIMATE, "--plan", "fsdp=1"], "plan field 'fsdp'; did you mean zero?"),
        ([*ESTIMATE, "--plan", "bf16=1"], "plan field 'bf16'; did you mean precision?"),
        ([*ESTIMATE, "--plan", "no.json#2"], "--plan no.json: cannot be read (No such file"),
        (["calibrate", "fit", "no.csv"], "no.csv: cannot be read (No such file"),
        ([*SEARCH, "--global-batch-size", "8"], "'--global-batch-size'; did you mean --global-b"),
        ([*SEARCH, "--global-batch-tokens", "4M"], "4000000 is not a multiple of the sequence"),
        (["fits", "llama-7b", "t4", "--plot", "a.png"], "option '--plot': an option of compare, "),
        ([*SEARCH, "--report", "a.pdf"], "--report a.pdf: must end in .html"),
        (["sweep", *SEARCH[1:4], "--over", "batch=8,16"], "field; did you mean global_batch?"),
        (["search", "h100", "64"], "'h100' is a cluster: after search comes MODEL CLUSTER GPUS"),
        (["search", "", "h100", "64"], "the model has no name; 'plan3d models' lists all"),
        (["search", "vit", "h100", "64"], "no model is called 'vit'; 'plan3d models' lists all"),
        (["search", "./llama", "h100", "64"], "'./llama': cannot be read (No such file"),
        (["search", "70b", "h100", "64"], "did you mean llama-2-70b, llama-3.1-70b"),
    ],
)
def test_what_is_meant_is_named(capsys, words, said):
    assert main(words) == 2
    assert said in capsys.readouterr().err
