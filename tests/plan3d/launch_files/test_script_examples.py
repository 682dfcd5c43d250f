"""Calls of a script in its comments and in the README beside it, as its arguments."""

import pytest

from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.megatron.launch import read
from plan3d.launch_files.shell.examples import examples_in, with_example
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.simulator.base.errors import InputError

SCRIPT = """# sh run.sh 8B 4 2
SIZE=$1
TP=${2}
if [ $SIZE = 8B ]; then LAYERS=32; elif [ $SIZE = 70B ]; then LAYERS=80; fi
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size 64 --bf16 \\
  --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --vocab-size 1000 \\
  --micro-batch-size $3 --global-batch-size ${BATCH:-32} --tensor-model-parallel-size $TP
"""
README = """# Runs

`bash run.sh` needs three arguments.

```bash
cd examples
export BATCH=64
sh run.sh \\
70B   \\
  8 \\
1
```

    $ BATCH=128 bash ./run.sh 8B 1 1 2>&1 | tee log
"""
FILES = {"run.sh": SCRIPT, "README.md": README}
BESIDE = ScriptInputs(read_source=FILES.get)


def launch(example, inputs=BESIDE):
    options = ReaderOptions(inputs=with_example(inputs, example, "run.sh", SCRIPT))
    return read(SCRIPT, "run.sh", options)


def numbers(found):
    return found.model.layers, found.plan["tp"], found.plan["micro_batch"], found.global_batch


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("run.sh", (32, 4, 2, 32)),
        ("README.md", (80, 8, 1, 64)),
        ("README.md:8", (80, 8, 1, 64)),
        ("README.md:14", (32, 1, 1, 128)),
    ],
)
def test_the_arguments_of_an_example(example, expected):
    found = launch(example)
    assert numbers(found) == expected
    assert any(line.startswith(f"arguments as in {example}") for line in found.left_out)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"SIZE": "8B"}, (32, 8, 1, 64)),
        ({"2": "2", "BATCH": "16"}, (80, 2, 1, 16)),
        ({"TP": "4"}, (80, 4, 1, 64)),
    ],
)
def test_given_values_replace_those_of_the_example(values, expected):
    assert numbers(launch("README.md", ScriptInputs((), values, FILES.get))) == expected


def test_examples_are_offered_where_arguments_are_open():
    with pytest.raises(InputError, match=r"example --example run.sh:1 \(also README.md:8, READ"):
        read(SCRIPT, "run.sh", ReaderOptions(inputs=BESIDE))


@pytest.mark.parametrize(
    ("example", "inputs", "message"),
    [
        ("README.md:3", BESIDE, "no call of run.sh with arguments; nearest: README.md:8, README"),
        ("other.md", BESIDE, "there is no file other.md"),
        ("run.sh", ScriptInputs(("8B",), {}, FILES.get), "does not go with arguments after --"),
        ("run.sh", ScriptInputs((), {"ZZ": "1"}, FILES.get), "nothing in it is open that --set ZZ"),
    ],
)
def test_wrong_examples_are_refused(example, inputs, message):
    with pytest.raises(InputError, match=message):
        launch(example, inputs)


def test_every_open_value_is_asked_for():
    """Twenty questions of about a hundred letters."""
    names = [f"A_PARAMETER_THAT_HAS_A_LONG_NAME_{i}" for i in range(20)]
    keys = ("num-layers", "hidden-size", "seq-length", "vocab-size")
    words = " ".join(f"--{keys[i % 4]} ${name}" for i, name in enumerate(names))
    with pytest.raises(InputError) as error:
        read(f"torchrun pretrain_gpt.py {words}\n", "run.sh", ReaderOptions())
    assert all(f"--set {name}=VALUE" in str(error.value) for name in names)


def test_an_example_of_another_version_is_refused():
    files = {"README.md": "sh run.sh 8B 1 1 7 9\n"}
    with pytest.raises(InputError, match="has 5 arguments, and the script takes 3"):
        launch("README.md", ScriptInputs(read_source=files.get))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see run.sh for more\n", []),
        ("cat run.sh\n", []),
        ("bash run.sh 'open\n", []),
        ("nohup bash a/run.sh x > log\n", [("x",)]),
        ("cd y && ./run.sh a b; ls\n", [("a", "b")]),
        ("A=1 run.sh\n", [()]),
        ("run.sh \\\n" * 3000, []),
    ],
)
def test_calls_in_a_text(text, found):
    calls = [one.arguments for one in examples_in(text, "f", "run.sh")]
    assert calls == found
