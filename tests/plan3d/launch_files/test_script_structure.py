"""Structure of launch scripts: case, eval, sourced files, jobs of Slurm."""

import pytest

from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.registry import reader
from plan3d.launch_files.shell.batch_job import job_gpus, job_sizes, job_variables, with_tasks
from plan3d.launch_files.shell.blocks import assigned_names, only_way
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.launch_files.shell.launch_script import training_words
from plan3d.launch_files.shell.script import read_script
from plan3d.launch_files.shell.variables import read_tokens
from plan3d.simulator.base.errors import InputError

RUN = (
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers $N --hidden-size 64 "
    "--num-attention-heads 4 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 1 "
    "--global-batch-size 64 --bf16 "
)
CASE = """case "$SIZE" in
  small|tiny) N=2 ;;
  "8B") if [ $X = 1 ]; then N=3; else N=4; fi ;;
  (b*) case $X in 1) N=5;; *) N=6;; esac ;;
  *) echo bad; exit 1 ;;
esac
"""


def launch(text, files=None, values=None, arguments=()):
    inputs = ScriptInputs(arguments, values or {}, (files or {}).get)
    return reader(text, "run.sh", None)(text, "run.sh", ReaderOptions(inputs=inputs))


@pytest.mark.parametrize(("size", "layers"), [("tiny", 2), ("8B", 4), ("big", 6), ("small", 2)])
def test_a_known_word_of_case_decides(size, layers):
    assert launch(f"X=2\nSIZE={size}\n{CASE}{RUN}\n").model.layers == layers


def test_an_open_word_of_case_is_asked_for_with_its_patterns():
    with pytest.raises(InputError, match="SIZE is one of small, tiny, 8B: --set SIZE=small"):
        launch(f"X=2\n{CASE}{RUN}\n")
    assert launch(f"X=2\n{CASE}{RUN}\n", values={"SIZE": "8B"}).model.layers == 4


@pytest.mark.parametrize("end", [";;", ";&", ";;&"])
def test_a_clause_that_ends_a_loop_which_is_not_there_is_no_error(end):
    text = f"case $X in a) :{end} b) done{end} c) N=2{end} d) fi; done;; *) N=3;; esac\n"
    assert not read_script(text, "run.sh").training_commands()


def test_eval_takes_inner_quotes_away():
    text = (
        "MOE=\" --num-experts 4 --moe-layer-freq '([0]*1 + [1]*3)' \"\nN=4\n"
        f'cmd="{RUN}$MOE"\neval $cmd\n'
    )
    blocks = launch(text).model
    assert [blocks.kinds[kind].experts is None for kind in blocks.order] == [True] + [False] * 3


@pytest.mark.parametrize(
    "folder",
    [
        '"$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"',
        '$(dirname "$0")',
        '"$( cd "$( dirname "${BASH_SOURCE[0]}" )" >/dev/null 2>&1 && pwd )"',
        "$(dirname $SELF)",
        '"$(dirname "$(readlink -f "$0")")"',
        '$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")',
        "${0%/*}",
        "$PWD",
        "`pwd`",
    ],
)
def test_a_sourced_file_is_read_beside_the_script(folder):
    text = f'SELF="${{BASH_SOURCE[0]}}"\nHERE={folder}\nsource ${{HERE}}/model.sh\n{RUN}\n'
    assert launch(text, {"./model.sh": "N=7\n"}).model.layers == 7


def test_a_sourced_file_that_is_not_there_is_named():
    text = f". models/x.sh\n{RUN}".replace("--num-layers $N", "${MODEL[@]}")
    with pytest.raises(InputError, match=r"it may be in models/x.sh \(line 1\), sourced and not"):
        launch(text)


def test_files_that_source_each_other_end():
    with pytest.raises(InputError, match="nested too deeply"):
        launch(f"source a.sh\n{RUN}\n", {"a.sh": "source a.sh\n"})


@pytest.mark.parametrize("end", ["", " \\", "\\"])
def test_a_script_may_end_in_a_line_that_would_go_on(end):
    script = read_script(f"torchrun a.py --num-layers 2{end}", "run.sh")
    assert [word.text for word in training_words(script)] == ["--num-layers", "2"]


def test_a_counter_of_itself_ends():
    assert launch(f"N=2\nfor f in $X; do\nC=$((C + 1))\ndone\n[ $C = 1 ] && echo\n{RUN}\n")


def test_sizes_of_a_slurm_job_are_variables():
    text = "#SBATCH --nodes=4\n#SBATCH --gres=gpu:a100:8\n#SBATCH -n 32\n#SBATCH --job-name x\n"
    sizes = job_sizes(text)
    assert sizes == {"nodes": 4, "gpus-per-node": 8, "ntasks": 32}
    assert job_gpus(sizes) == 32
    assert job_variables(sizes)["SLURM_NNODES"] == "4"
    assert with_tasks({"nodes": 4, "ntasks-per-node": 8})["ntasks"] == 32
    run = RUN.replace("torchrun --nnodes 2 --nproc-per-node 8", "srun python").replace("$N", "2")
    assert launch(f"{text}{run}--tensor-model-parallel-size $SLURM_GPUS_PER_NODE\n").plan["tp"] == 8
    assert launch(f"{text}{run}\n").launcher_gpus == 32


def test_launchers_state_their_processes():
    for launcher, gpus in (
        ("deepspeed --num_nodes 2 --num_gpus 4", 8),
        ("accelerate launch --num_processes 16", 16),
    ):
        run = RUN.replace("torchrun --nnodes 2 --nproc-per-node 8", launcher).replace("$N", "2")
        assert launch(run).launcher_gpus == gpus


def test_a_variable_that_nobody_sets_takes_its_default():
    text = f"if [ -z ${{N}} ]; then\n  N=3\nfi\n{RUN}\n"
    assert launch(text).model.layers == 3
    assert launch(text, values={"N": "5"}).model.layers == 5


def test_quotes_inside_an_alternative_are_those_of_its_words():
    text = f"N=4\nV=2\n{RUN} --pipeline-model-parallel-size 2 "
    text += '${V:+--num-layers-per-virtual-pipeline-stage "1"}\n'
    assert launch(text).plan["virtual_stages"] == 2


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("--$TYPE", r"TYPE has no value \(--\$TYPE\): --set TYPE=VALUE"),
        ("${VP:+--num-layers-per-virtual-pipeline-stage 2}", "VP has no value"),
        ("--lr 1 ${SP:+--sequence-parallel}", r"SP has no value \(--sequence-parallel\)"),
    ],
)
def test_open_names_of_flags_are_asked_for(words, asked):
    with pytest.raises(InputError, match=asked):
        launch(f"N=4\n{RUN} {words}\n")


@pytest.mark.parametrize(
    ("test", "asked"),
    [("$1 = te", r"WITH \(\$1\) has no value"), ("-d /opt/te", "--bf16 depends on a condition")],
)
def test_a_format_that_an_open_condition_decides_is_no_guess(test, asked):
    text = f"N=4\nWITH=$1\nTYPE=fp16\nif [ {test} ]; then TYPE=bf16; fi\n"
    with pytest.raises(InputError, match=asked):
        launch(text + RUN.replace("--bf16", "--$TYPE") + "\n")


def test_open_words_behind_a_flag_without_effect_are_shown_as_unknown():
    words = '--lr 1e-4 $MORE --no-load-optim "$@" --data-path $ONE $TWO --exit-interval ${OPTS[@]}'
    unread = {one.text: one for one in launch(f"N=4\n{RUN} {words}\n").unread}
    assert {"$MORE", '"$@"', "${OPTS[@]}", "--lr 1e-4", "--data-path $ONE $TWO"} <= {*unread}
    assert not any(unread[word].why_neutral for word in ("$MORE", '"$@"', "${OPTS[@]}"))


@pytest.mark.parametrize(
    ("before", "layers"),
    [
        ("if [ -f $DATA ]; then N=2; else echo no; exit 1; fi", 2),
        ("if [ ! -d /opt/x ]; then N=9; exit 1; fi; N=3", 3),
        ("N=4; if ! command -v nvcc; then echo no >&2; N=5; exit 1; fi", 4),
        ("if [ -f a ]; then if [ -f b ]; then X=1; fi; N=2; else exit 1; fi", 2),
    ],
)
def test_a_branch_that_ends_the_script_is_not_taken(before, layers):
    assert launch(f"{before}\n{RUN}\n").model.layers == layers


@pytest.mark.parametrize(
    "before",
    [
        "N=2; if [ -f a ]; then N=3; fi",
        "N=2; if [ -f a ]; then N=3; else test -f b || exit 1; fi",
        "N=2; if [ -f a ]; then N=3; exit 0; else N=4; exit 1; fi; if [ -f b ]; then N=3; fi",
    ],
)
def test_a_branch_that_may_be_taken_is_no_guess(before):
    with pytest.raises(InputError, match=r"is [23] only under a condition"):
        launch(f"{before}\n{RUN}\n")


def test_a_branch_that_trains_and_ends_is_asked_for():
    text = f"N=2\nif [ $MODE = one ]; then\n{RUN} --swiglu\nexit 0\nfi\n{RUN}\n"
    with pytest.raises(InputError, match="MODE has no value"):
        launch(text)


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("train.py --num-layers 2 --hidden_width 64", "train.py, a program that is not known"),
        ("tune.py --deepspeed_config=ds.json", "give its JSON to plan3d import"),
        ("hf_to_megatron.py --size 7 --tokenizer-type x", "does not train a language model"),
        ("finetune.py --use-checkpoint-args --micro-batch-size 1", "model in a checkpoint"),
        ("pretrain_gpt.py --lr 1 ${MORE[@]}", "--num-layers is missing"),
        ("gpt_own.py --num_layers 2 --hidden_width 8", "gpt_own.py, a program that is not known"),
        ("own/run.py model.size=7b", "starts own/run.py, a program that is not known"),
        ("-m own.train", "starts own.train, a program that is not known"),
        ("get_data.py out", "holds no flags of Megatron-LM"),
    ],
)
def test_what_lacks_sizes_is_refused_by_its_reason(command, asked):
    with pytest.raises(InputError, match=asked):
        launch(f"torchrun --nproc-per-node 8 {command}\n")


def test_a_text_in_quotes_at_the_top_starts_no_script():
    """It is a command that does not exist, as long as it is."""
    text = f"'\n# Usage:\n  N=2 \\\n  bash run.sh'\nN=4\n{RUN}"
    assert launch(text).model.layers == 4


def test_flags_that_are_all_in_a_sourced_file_are_looked_for_there():
    text = "source conf/$SIZE.sh\nmpirun -np 8 python pretrain_gpt.py ${ALL[@]}\n"
    with pytest.raises(InputError, match=r"may be in conf/\$SIZE.sh \(line 1; --set SIZE=VALUE\)"):
        launch(text)


def test_a_sourced_file_that_an_argument_names_is_asked_for():
    text = f"source conf/$1.sh\nsource ~/.bashrc\n. /env/bin/activate\n{RUN} ${{MORE[@]}}\n"
    text = text.replace("--num-layers $N", "")
    with pytest.raises(InputError, match=r"conf/\$1.sh \(line 1; --set 1=VALUE\), sourced") as no:
        launch(text)
    assert "bashrc" not in str(no.value)
    assert "activate" not in str(no.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A=1; B+=2", ["A", "B"]),
        ("local A=1; export B=2; declare C=3; A=4", ["A", "B", "C"]),
        ("export", []),
        ("local A", []),
        ("run A=1; 2=3; A-B=4", []),
        ("if x; then A=1; else B=2; fi", ["A", "B"]),
    ],
)
def test_names_that_a_block_assigns(text, names):
    assert assigned_names(read_tokens(text, "run.sh")) == names


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("exit; fi", False),  # only where the condition does not hold
        ("N=1; else exit; fi", True),
        ("N=1; else python -V; exit; fi", None),  # may train before it ends
        ("python -V; exit; fi", None),
        ("python -V; else exit; fi", True),
        ("exit; else exit; fi", None),
        ("x && exit; fi", None),
        ("x; elif y; then exit; fi", None),
        ("if x; then exit; fi; fi", None),
        ("if x; then y; fi; exit; fi", False),
        ("exit", None),
    ],
)
def test_the_only_way_past_a_branch_that_ends_a_script(text, way):
    assert only_way(read_tokens(text, "run.sh"), 0) is way


@pytest.mark.parametrize("how", ["N=", "N+=", "export N="])
def test_what_options_assign_can_be_given_from_outside(how):
    """Of a script whose own arguments are not known."""
    text = (
        f'N=3\nwhile getopts "n:" o; do case $o in n) {how}$OPTARG;; esac; done\nrun a.py --x $N\n'
    )
    for values, known in (({}, "3"), ({"N": "7"}, "7")):
        script = read_script(text, "run.sh", ScriptInputs(None, values))
        assert [word.text for word in training_words(script)] == ["--x", known]
