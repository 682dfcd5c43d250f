"""Numbers, files and scripts that nobody means are refused in one short printable line."""

import json

import pytest

from plan3d.cli.main import main

TASK = ["--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--gpus", "8"]
TASK += ["--sequence", "2048", "--global-batch", "8"]
DIGITS = "9" * 5000
RUN = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 "
RUN += "--num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
RUN += "--micro-batch-size 1 --global-batch-size 8 --bf16"
LAYER = {"parameters": 1, "forward_flops": 1, "activation_bytes": 1, "boundary_bytes": 1}
HEADER = "accelerator,gpus,tp,pp,dtype,sequence,global_batch,micro_batch,layers,hidden,heads,vocab"
FILES = {
    "m.sh": RUN.replace("24", "2147483648"),
    "mtp.sh": f"{RUN} --mtp-num-layers 2147483648",
    "minus.sh": f"X=$(({'-' * 100_000}1))\n{RUN.replace('24', '$X')}",
    "when.sh": f"if [ {DIGITS} -eq 1 ]; then X=1; fi\n{RUN} --lr $X",
    "nodes.sh": RUN.replace("torchrun", f"torchrun --nnodes {DIGITS}"),
    "alias.yaml": "a: &a [1]\nb: &b [*b, *a]\n",
    "graph.txt": f"0 {DIGITS}",
    "plan.json": json.dumps({"plan": {"pp": 10**41}}),
    "layers.json": json.dumps({"layers": [{**LAYER, "efficiency": 1e-320}]}),
    "layers.csv": f"name,{','.join(LAYER)}\n{'x' * 200_000},1,1,1,1\n",
    "more.csv": f"name,{','.join(LAYER)}\na,1,1,1,1,9\n",
    "layers.runs": f"{HEADER},ffn_hidden\nh100-sxm,8,1,1,bf16,2048,8,1,1e12,1024,16,1000,4096\n",
    "heads.runs": f"{HEADER},ffn_hidden\nh100-sxm,8,1,1,bf16,2048,8,1,4,1024,0,1000,4096\n",
    "pp.runs": f"{HEADER},ffn_hidden\nh100-sxm,8,1,0,bf16,2048,8,1,4,1024,16,1000,4096\n",
    "batch.runs": f"{HEADER}\nh100-sxm,8,1,1,bf16,2048,8,x,4,1024,16,1000\n",
    "x\x1b[2J\u202e.sh": "",
}
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
seq_len = 2048
local_batch_size = 2
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_first_stage_less_layers = 2147483648
pipeline_parallel_layers_per_stage = 16
"""
FILES["titan.toml"] = TITAN
FILES["idle.json"] = json.dumps({"layers": [{**LAYER, "forward_flops": 0, "activation_bytes": 0}]})
CASES = (
    (["import", "titan.toml", "--gpus", "8"], "makes 134217731 chunks of 32 layers for 2 stages"),
    (["import", "m.sh"], "must be a whole number from 1 to 10000"),
    (["import", "mtp.sh"], "must be a whole number from 0 to 10000"),
    (["import", "minus.sh"], "--num-layers"),
    (["import", "nodes.sh"], "--gpus N"),
    (["import", "alias.yaml"], "the alias *b stands for too much to be read"),
    (["import", "x\x1b[2J\u202e.sh"], r"\x1b"),
    (["estimate", *TASK, "--plan", f"pp={DIGITS}"], "whole number"),
    (["estimate", *TASK, "--plan", f"pp=2 layers_per_stage={DIGITS},1"], "whole numbers"),
    (["estimate", *TASK, "--plan", f"pp=2 layers_per_stage=Et*{DIGITS}|L"], "layout Et*9"),
    (["estimate", *TASK, "--plan", f"pp=2 segments={DIGITS}|12"], "LAYERS"),
    (["estimate", *TASK, "--plan", f"pp=2 segments=12*{DIGITS}"], "must repeat a stage"),
    (["estimate", *TASK, "--plan", "plan.json"], "more than 40 digits"),
    (["estimate", *TASK, "--plan", "tp=1", "--graph", "graph.txt"], "two node numbers"),
    (["estimate", *TASK, "--plan", f"offload_optimizer={DIGITS}"], "whole number"),
    (["search", *TASK, "--gpus", DIGITS], "whole number"),
    (["search", *TASK, "--risk", "1e-20"], "risk must be above 0 and below 1"),
    (["search", *TASK, "--accuracy", "1e-300", "--gradient-noise", "1"], "from 1e-30 to 1e+30"),
    (["estimate", *TASK, "--plan", "tp=2", "--price", "1e308", "--tokens", "1e9"], "1e-30 to"),
    (["estimate", *TASK, "--plan", "tp=2", "--tokens", "1e300"], "1e-30 to"),
    (["timeline", *TASK[:-1], "9999999", "--plan", "pp=8 micro_batch=1"], "at most 125,000 of 8"),
    (["models", "layers.json"], "efficiency is 9"),
    (["models", "idle.json"], "has no layer with FLOPs or bytes"),
    (["models", "layers.csv"], "is not CSV"),
    (["models", "more.csv"], "line 2 has 6 cells, not 5"),
    (["validate", "--runs", "batch.runs"], "micro_batch 'x' must be a whole number"),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("words", "problem"), CASES, ids=range(len(CASES)))
def test_hostile_input_is_one_short_line(folder, capsys, words, problem):
    words = [*words, "--cluster", "h100-sxm"] if words[0] == "import" else words
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert problem in err
    assert err[:-1].isprintable()
    assert len(err) < 600


def test_a_condition_of_many_digits_is_open(folder, capsys):
    assert main(["import", "when.sh", "--cluster", "h100-sxm", "--gpus", "8"]) == 0
    assert "$X" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("layers.runs", "layers is 1000000000000; it must be 1 to 10000"),
        ("heads.runs", "heads is 0; it must be 1 to 2147483648"),
        ("pp.runs", "pp is 0; it must be 1 to 2147483648"),
    ],
)
def test_a_run_that_cannot_be_is_not_predicted(folder, capsys, file, reason):
    assert main(["validate", "--runs", file, "--json"]) == 0
    (why,) = json.loads(capsys.readouterr().out)["unsupported"]
    assert why["reason"] == reason
