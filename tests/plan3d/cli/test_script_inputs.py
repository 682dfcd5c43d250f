"""`plan3d import run.sh` with the arguments and the variables of the script."""

import json

import pytest

from plan3d.cli.main import main

FLAGS = """--num-attention-heads 32 --swiglu --normalization RMSNorm --disable-bias-linear \\
  --position-embedding-type rope --untie-embeddings-and-output-weights --ffn-hidden-size 14336 \\
  --vocab-size 128256 --seq-length 4096 --micro-batch-size 1 --global-batch-size 128 --bf16"""
RUN = "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py"
COMMAND = (
    f"{RUN} --num-layers $LAYERS --hidden-size $HIDDEN {FLAGS} --tensor-model-parallel-size $TP\n"
)
BY_SIZE = f"""SIZE=$1
TP=$2
if [ $SIZE = 8B ]; then
  LAYERS=32; HIDDEN=4096
elif [ $SIZE = 70B ]; then
  LAYERS=80; HIDDEN=8192
fi
{COMMAND}"""
FIXED = f"LAYERS=32 HIDDEN=4096\n{COMMAND}"


PARAMETERS = 2 * 128256 * 4096 + 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 14336 + 2 * 4096)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Exit code, answer and error of an import of a script with these words after it."""
    monkeypatch.chdir(tmp_path)

    def imported(script, *words, **others):
        (tmp_path / "run.sh").write_text(script)
        for name, text in others.items():
            (tmp_path / f"{name}.sh").write_text(text)
        code = main(["import", "run.sh", "--cluster", "h100-sxm", "--json", *words])
        out, err = capsys.readouterr()
        return (json.loads(out) if out else None), (code and err)

    return imported


def shape(answer):
    """Parameters and tp of an answer."""
    return answer["task"]["parameters"], answer["plans"][0]["plan"]["tp"]


@pytest.mark.parametrize(
    "words",
    [
        ("--", "8B", "2"),
        ("--set", "SIZE=8B", "--set", "TP=2"),
        ("--set", "1=8B", "--set", "2=2"),
        ("--set", "TP=2", "--", "8B"),
    ],
)
def test_values_are_arguments_or_names(run, words):
    answer, error = run(BY_SIZE, *words)
    assert not error
    assert shape(answer) == (PARAMETERS, 2)


def test_all_open_values_are_asked_for_at_once_with_their_choices(run):
    _, error = run(BY_SIZE)
    assert error == (
        "plan3d: run.sh: SIZE ($1) is one of 8B, 70B: --set SIZE=8B, or after --; "
        "TP ($2) has no value (--tensor-model-parallel-size): --set TP=VALUE, or after --\n"
    )
    _, error = run(BY_SIZE, "--", "8B")
    assert error.startswith("plan3d: run.sh: TP ($2) has no value (--tensor")


@pytest.mark.parametrize(
    ("head", "words", "tp"),
    [
        ("", ("--set", "TP=2"), 2),
        ("TP=${TP:-4}\n", ("--set", "TP=2"), 2),
        ("TP=${TP:-4}\n", (), 4),
        ("TP=${1:-4}\n", ("--", "2"), 2),
        ("TP=${1:-4}\n", ("--set", "TP=2"), 2),
        ('ALL=("$@")\nTP=${ALL[@]}\n', ("--", "2"), 2),
        ("TP=$#\n", ("--", "a", "b"), 2),
        ("shift\nTP=$1\n", ("--", "a", "2"), 2),
        ("shift 2; TP=$1\n", ("--", "a", "b", "2"), 2),
        ('if [ -z "$TP" ]; then TP=4; fi\n', ("--set", "TP=2"), 2),
        ("f() {\n  TP=$1\n}\nTP=$1\n", ("--", "2"), 2),
        ("TP=$(compute)\n", ("--set", "TP=2"), 2),
    ],
)
def test_variables_and_parameters_have_the_values_that_are_given(run, head, words, tp):
    answer, error = run(f"{head}{FIXED}", *words)
    assert not error
    assert shape(answer) == (PARAMETERS, tp)


@pytest.mark.parametrize(
    ("head", "words", "message"),
    [
        ("TP=2\n", ("--set", "TP=4"), "line 1: the script itself sets TP to 2: leave out --set TP"),
        ("TP=2\n", ("--set", "PT=4"), "nothing in it is open that --set PT would decide"),
        ("TP=$1\n", ("--", "2", "8"), "has no argument 2: leave out '8'"),
        ("TP=2\n", ("--set", "TP"), "--set 'TP' must be NAME=VALUE, such as SIZE=7B or 1=7B"),
        ("TP=$1\n", ("--set", "1=2", "--", "4"), "--set 1=2 contradicts '4' after --"),
        ("TP=2\n", ("--set", "A=1", "--set", "A=2"), "--set gives A two values: 1 and 2"),
        ("f() {\n  TP=$1\n}\nf 4\n", ("--", "2"), "has no argument 1: leave out '2'"),
    ],
)
def test_values_that_decide_nothing_are_refused(run, head, words, message):
    _, error = run(f"{head}{FIXED}", *words)
    assert message in error
    assert error.count("\n") == 1


def test_nothing_given_is_run_or_expanded(run, tmp_path):
    _, error = run(FIXED, "--set", f"TP=$(touch {tmp_path}/x)")
    assert "has 2 values; it takes one" in error
    assert not (tmp_path / "x").exists()


def test_explain_takes_them_too(run, tmp_path, capsys):
    run(BY_SIZE)
    assert main(["explain", "run.sh", "h100-sxm", "--", "8B", "4"]) == 0
    assert "tp=4" in capsys.readouterr().out
    assert main(["explain", "llama-7b", "h100-sxm", "8", "--plan", "tp=2", "--set", "A=1"]) == 2
    assert "go with a launch script" in capsys.readouterr().err


def test_a_configuration_takes_none(tmp_path, capsys):
    path = tmp_path / "ds.json"
    path.write_text("{}")
    assert main(["import", str(path), "--cluster", "h100-sxm", "--", "2"]) == 2
    assert "takes neither --set nor arguments" in capsys.readouterr().err
