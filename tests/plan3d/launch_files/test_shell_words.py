"""The words of a launch script are the ones that a shell would pass, on the right lines."""

import shutil
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.launch_files.shell.flags import Flags
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.launch_files.shell.launch_script import training_words
from plan3d.launch_files.shell.lexer import tokens
from plan3d.launch_files.shell.script import read_script
from plan3d.simulator.base.errors import InputError


def flags(text):
    return Flags.of(training_words(read_script(text, "run.sh")), "run.sh")


def values(text):
    return {name: flag.texts for name, flag in flags(text).by_name.items() if name}


SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1  # it's a comment with a quote
TP=${TP:-4}; GPUS=8
NODES=${NODES:-2}
WORLD=$((GPUS * NODES))
BATCH=$(($WORLD*4))
OPTIONS=" \\
    --num-layers 24 \\
    --bf16 "
ARGS=(
    --hidden-size 2048     # another
    "--ffn-hidden-size=8192"
)
ARGS+=(--seq-length 2048)
OPTIONS+=" --micro-batch-size 2"
torchrun --nproc_per_node $GPUS pretrain_gpt.py ${OPTIONS} "${ARGS[@]}" \\
    --tensor-model-parallel-size ${TP} \\
    --global_batch_size "$BATCH" --data-path 'a b' 1 c
"""


def test_variables_arrays_arithmetic_and_continuations():
    assert values(SCRIPT) == {
        "--num-layers": ("24",),
        "--bf16": (),
        "--micro-batch-size": ("2",),
        "--hidden-size": ("2048",),
        "--ffn-hidden-size": ("8192",),
        "--seq-length": ("2048",),
        "--tensor-model-parallel-size": ("4",),
        "--global-batch-size": ("64",),
        "--data-path": ("a b", "1", "c"),
    }
    lines = {flag.name: flag.line for flag in flags(SCRIPT).in_order}
    assert lines["--num-layers"] == 8
    assert lines["--hidden-size"] == 11
    assert lines["--tensor-model-parallel-size"] == 17
    assert lines["--data-path"] == 18


CHOOSING = """
KIND="fp8"; SIZE=7; MORE=()
if [[ "$KIND" == "fp8" ]]; then
    MORE+=( "--fp8-format hybrid" )   # one element, two words when it is not quoted
elif [ "$KIND" = "bf16" ]
then
    MORE+=( --bf16 )
else
    MORE+=( --fp16 )
fi
if [ $SIZE -eq 7 ] && [ -n "$KIND" ]; then HIDDEN=4096; else HIDDEN=8192; fi
cat <<EOF > /dev/null
--not-a-flag "of anything
EOF
ARGS="--hidden-size $HIDDEN \\
      --num-layers 32"
python3 train.py $ARGS ${MORE[@]} --lr 1e-4 && echo done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("script", [SCRIPT, CHOOSING], ids=["plain", "choosing"])
def test_the_words_are_those_of_bash(script):
    shown = "show() { while [[ $1 != *.py ]]; do shift; done; shift; printf '%s\\n' \"$@\"; }\n"
    shown += 'torchrun() { show "$@"; }\npython3() { show "$@"; }\n'
    done = subprocess.run(
        ["bash", "-c", shown + script], capture_output=True, text=True, check=True, env={}
    )
    words = [word.text for word in training_words(read_script(script, "run.sh"))]
    assert words == done.stdout.removesuffix("done\n").splitlines()


PIECES = (
    *("a", "-b=", "'x  y'", "''", '""', '"q  $A r"', "${A}", '"$A"', "${B[@]}", '"${B[@]}"', "1"),
    *('"${B[*]}"', "${B}", '"${E[@]}"', "${N}", '"$N"', r"\ ", r"\$A", r"\\", r"\"", "'$A'", "é"),
    *("$'t\\n\\x41\\''", '"\\$A \\` \\" \\\\ \\q"', "${U:-d  e}", '"${U:-d  e}"', "${A:-no}", "+"),
    *(
        """${U:-'d  "e'}""",
        '"${U:-$A}"',
        "$((2 * C + 1))",
        '"\'"',
        "'\"'",
        "\\\n",
        "a#c",
        "'#'",
        "%",
    ),
    *("'&'", "';'", '"&&"', r"\&", "@", '${U:-"f  g"}'),
)
"""Pieces of words that need nothing from outside."""
ASSIGNED = """A='1  2'; B=(x "y  z" '' $A); E=(); N=; C=3
A+=" 3"; B+=('last one')
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@given(st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join), max_size=6))
def test_any_words_are_those_of_bash(tmp_path_factory, words):
    line = f"torchrun a.py --x {' '.join(words)}"
    show = 'torchrun() { shift; printf "%s\\0" "$@"; }\n'
    done = subprocess.run(
        ["bash", "-c", f"{show}{ASSIGNED}{line}\n"], capture_output=True, check=True, env={}
    )
    expected = done.stdout.decode().split("\0")[:-1]
    script = read_script(f"{ASSIGNED}{line}\n", "run.sh")
    found = training_words(script)
    assert [word.text for word in found] == expected
    again = " ".join(word.source for word in found)
    done = subprocess.run(
        ["bash", "-c", f"{show}torchrun a.py {again}\n"], capture_output=True, check=True, env={}
    )
    assert done.stdout.decode().split("\0")[:-1] == expected


def test_a_fragment_that_starts_nothing_is_read_too():
    assert values('A="--num-layers 2"\nB=(\n--bf16\n)\n') == {"--num-layers": ("2",), "--bf16": ()}


def test_commands_in_strings():
    text = 'CMD="python pretrain_gpt.py --num-layers 2"\nsrun bash -c "${CMD} --bf16"\n'
    assert values(text) == {"--num-layers": ("2",), "--bf16": ()}


@pytest.mark.parametrize("word", ["$(run a.py --b)", "x`run a.py --b`", "((a.py --b))"])
def test_a_word_that_is_itself_when_read_again_is_no_command(word):
    text = f"{word}\nsrun bash -c 'python a.py --num-layers 2'\n"
    assert values(text) == {"--num-layers": ("2",)}


def test_what_is_assigned_under_a_condition_is_not_trusted():
    text = """PP=1
if [ "$BIG" = 1 ]; then
    PP=8
    MORE="--bf16"
fi
[ -f "$X" ] && SEQ=4096
grep -q x y && LAYERS=2
python a.py --num-layers $LAYERS --pipeline-model-parallel-size $PP --seq-length $SEQ $MORE --lr 1
"""
    found = flags(text)
    for name, reason in [
        ("--pipeline-model-parallel-size", r"depends on \$BIG, which has no value"),
        ("--seq-length", r"depends on \$X, which has no value"),
        ("--num-layers", "is 2 only under a condition"),
    ]:
        with pytest.raises(InputError, match=f"run.sh: line 8: {name} {reason}"):
            found.size(name)
    script = read_script(text, "run.sh")
    assert [word.text for word in script.conditional_words()] == ["--bf16"]
    assert "--bf16" not in found.by_name


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("[ $SIZE = 70B ]", r"\$1 \(SIZE\), which has no value"),
        ("[ $1 = 70B ]", r"\$1 \(SIZE\), which has no value"),
        ("[ $SIZE = 70B ] && [ $OTHER = b ]", r"\$1 \(SIZE\) and \$OTHER, which have no values"),
        ("[ $DEEP = 1 ]", r"\$1 \(SIZE\), which has no value"),
    ],
)
def test_a_value_under_a_condition_names_the_missing_parameter(condition, reason):
    text = f"""SIZE=$1
if [ $SIZE = x ]; then DEEP=1; fi
LAYERS=1
if [ 1 = 2 ]; then LAYERS=32
elif {condition}; then LAYERS=80
fi
python pretrain_gpt.py --num-layers $LAYERS
"""
    with pytest.raises(InputError, match=f"line 7: --num-layers depends on {reason} in this file"):
        flags(text).size("--num-layers")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('CMD="pretrain_gpt.py --num-layers 2"', 'CMD="$CMD --wandb-project demo"'),
        ('CMD="pretrain_gpt.py --num-layers 2"', "CMD+=' --wandb-project demo'"),
        ("CMD=(pretrain_gpt.py --num-layers 2)", 'CMD=("${CMD[@]}" --wandb-project demo)'),
        ("CMD=(pretrain_gpt.py --num-layers 2)", "CMD+=(--wandb-project demo)"),
    ],
)
def test_flags_added_under_a_condition_leave_the_others_alone(first, second):
    text = f'{first}\nif [ -n "$KEY" ]; then\n  {second}\nfi\ntorchrun ${{CMD[@]}}\n'
    assert values(text) == {"--num-layers": ("2",)}
    words = read_script(text, "run.sh").conditional_words()
    assert [word.text for word in words] == ["--wandb-project", "demo"]


@pytest.mark.parametrize("second", ['CMD="$CMD 4 --lr 1"', 'CMD="a.py --num-layers 4"'])
def test_flags_changed_under_a_condition_depend_on_it(second):
    text = f'CMD="a.py --num-layers 2"\nif [ -n "$KEY" ]; then\n  {second}\nfi\ntorchrun $CMD\n'
    words = read_script(text, "run.sh").conditional_words()
    assert "--num-layers" in [word.text for word in words]


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ("[ $TP -gt 1 ]", True),
        ("[ $TP -lt 2 ]", False),
        ("(( TP > 1 ))", True),
        ("((TP*PP>=8))", False),
        ("[[ $TP -ge 2 && $PP -le 2 ]]", True),
        ("[ $((TP * PP)) -eq 4 ]", True),
        ("[[ TP -gt 1 ]]", True),
        ("[ $(( ($TP > 1) ? 1 : 0 )) -eq 1 ]", True),
        ("! (( TP > 1 ))", False),
    ],
)
@pytest.mark.parametrize(
    "script",
    [
        "if {}; then\n  X=--bf16\nfi",
        "if false; then X=--fp16; elif {}\nthen X=--bf16; fi",
        "{} && X=--bf16",
        "{} && {{ X=--bf16; }}",
        "true; {} || X= && {} && X=--bf16",
    ],
)
def test_comparisons_of_known_numbers_are_known(script, condition, taken):
    script = script.replace("if false", "if [ 1 = 2 ]").format(condition, condition)
    text = f"TP=2\nPP=2\nX=\n{script}\npython a.py --num-layers 2 $X\n"
    assert values(text) == {"--num-layers": ("2",), **({"--bf16": ()} if taken else {})}
    assert not read_script(text, "run.sh").conditional_words()


def test_a_test_before_a_command_decides_whether_it_runs():
    text = """N=1
[ $N -gt 1 ] && { FLAGS="--bf16"; L=4; } || FLAGS="--fp16"
[ $N -gt 1 ] && python a.py --num-layers 4 $FLAGS
(( N == 1 )) || exit
[ $M = 1 ] && S=2
python a.py --num-layers 2 $FLAGS --seq-length $S
"""
    assert values(text) == {"--num-layers": ("2",), "--fp16": (), "--seq-length": ("2",)}
    with pytest.raises(InputError, match=r"--seq-length depends on \$M, which has no value"):
        flags(text).size("--seq-length")


def test_variables_from_outside_stay_open_and_are_kept():
    found = flags('python pretrain_gpt.py --num-layers $LAYERS --bf16 $EXTRA "$@" --lr $(cat lr)\n')
    with pytest.raises(InputError, match=r"line 1: --num-layers \$LAYERS has no value"):
        found.size("--num-layers")
    assert found.switch("--bf16")
    kept = " ".join(str(flag) for flag in found.unread())
    assert "$EXTRA" in kept
    assert "--lr $" in kept


def test_here_documents_are_read_and_are_no_commands():
    script = read_script(
        'S=2\ncat <<EOT > ds.json\n{"stage": $S, "it\'s": 1}\nEOT\necho "done"\n', "run.sh"
    )
    (document,) = script.documents
    assert document.line == 3
    assert document.text == '{"stage": 2, "it\'s": 1}'
    assert [[word.text for word in command] for command in script.commands] == [
        ["cat"],
        ["echo", "done"],
    ]


def test_the_last_of_a_flag_counts():
    text = "python a.py --num-layers 2 \\\n  --num_layers=4\n"
    assert values(text) == {"--num-layers": ("4",)}
    assert [(str(a), str(b)) for a, b in flags(text).replaced()] == [
        ("--num-layers 2", "--num_layers=4")
    ]
    assert flags("python a.py --num-layers 2 --num-layers 2\n").replaced() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('A="--num-layers 2\n', "not closed"),
        ("\x00\x01", "not a shell script"),
        ("A=" + "1" * 1_000_001, "not a shell script"),
        ("A=" + "a" * 999 + "$A\n" + "A=$A$A$A$A$A$A$A$A\n" * 9, "variables hold over"),
    ],
)
def test_what_is_no_script_is_refused_in_one_line(text, message):
    with pytest.raises(InputError, match=message) as error:
        read_script(text, "run.sh")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("default", ["${KIND:-}", '${KIND:-""}', "${KIND-}", "${KIND:-''}"])
def test_a_variable_that_is_empty_by_default_is_empty(default):
    """In a test of its length; where it is given, it has its value."""
    text = (
        f'KIND={default}\nif [ -n "$KIND" ]; then N=2; else N=4; fi\n'
        '[[ -z "$KIND" ]] || M=8\npython a.py --num-layers $N --more ${M:-1}\n'
    )
    assert values(text) == {"--num-layers": ("4",), "--more": ("1",)}
    script = read_script(text, "run.sh", ScriptInputs(values={"KIND": "x"}))
    assert [word.text for word in training_words(script)][1::2] == ["2", "8"]


def test_a_list_of_many_files_grows_line_by_line():
    lines = "".join(f'D="${{D}} 5 /data/{i:0100}"\n' for i in range(150))
    found = values(f"{lines}python a.py --num-layers 2 --data-path $D\n")
    assert found["--data-path"][-1].endswith("149")


@pytest.mark.parametrize(
    "text",
    [
        "${U:-" * 3000 + "a" + "}" * 3000,
        '"' + "${U:-" * 40 + "a" + "}" * 40 + '"',
        "$((" + "-" * 50_000 + "1))",
        "$((" + "(" * 150 + "1" + ")" * 150 + "))",
        "$(" * 5000 + ")" * 5000,
        "x; " + "case x in a) b;; " * 5000,
    ],
)
def test_deep_words_are_read_or_left_open(text):
    assert flags(f"python a.py --num-layers 2 --x {text}\n").size("--num-layers") == 2


@pytest.mark.parametrize("text", ["4/0", "a*2", "2**99", "__import__('os')"])
def test_arithmetic_that_is_none_stays_open(text):
    found = flags(f"python a.py --num-layers $(({text}))\n")
    with pytest.raises(InputError, match="--num-layers"):
        found.size("--num-layers")


def test_unclosed_brackets_are_read_in_one_pass():
    """Looking for the end of each pair would take minutes."""
    assert len(tokens("((" * 20_000)) == 40_000


TESTS = "".join(f'if [ "$1" = {i} ]; then Y=1; fi\n' for i in range(300))
MANY = 800


@pytest.mark.parametrize(
    "script",
    [
        f"X=({' '.join(f'--a{i} $u' for i in range(4 * MANY))})\n{TESTS}",
        "".join(f'X{i}="--a{i}"\n' for i in range(MANY)) + TESTS,
        "X=()\n" + "".join(f"X+=(--a{i} $u)\n" for i in range(MANY)),
        "".join(f'X+=" --a{i} $u"\n' for i in range(MANY)),
        "case $1 in\n" + "".join(f"{i}) Y=1;;\n" for i in range(MANY)) + "esac\n",
    ],
    ids=["tests beside a long array", "many variables", "elements", "text", "branches"],
)
def test_long_scripts_are_read_in_one_pass(script):
    began = time.process_time()
    read_script(script + "echo done\n", "run.sh")
    assert time.process_time() - began < 1.5


def test_commands_in_place_of_files_are_one_word():
    """As is what stands between dashes that begin no flag."""
    text = "torchrun a.py --x 1 <(echo a b) --y 2 >(cat > q; f (1) ) --z - -- 3 --w\n"
    stated = {"--x": ("1", "<(echo a b)"), "--y": ("2", ">(cat > q; f (1) )")}
    assert values(text) == {**stated, "--z": ("-", "--", "3"), "--w": ()}
