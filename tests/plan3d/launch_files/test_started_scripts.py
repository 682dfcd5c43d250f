"""Scripts that start others: what they are given, and which of them is read."""

import pytest

from plan3d.launch_files import chains
from plan3d.launch_files.chains import read_launch
from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.shell.inner_commands import place_of_script
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.simulator.base.errors import InputError

RUN = (
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers ${N:-9} --hidden-size 64 "
    "--num-attention-heads 4 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 1 "
    "--global-batch-size ${GBS:-64} --bf16 \n"
)


def launch(text, files, values=None, arguments=()):
    inputs = ScriptInputs(arguments, values or {}, files.get)
    return read_launch(text, "run.sh", None, ReaderOptions(inputs=inputs))


@pytest.mark.parametrize(
    "call",
    [
        "N=4 bash train.sh",
        "export N=4\n./train.sh",
        "export N; N=4; sh ./train.sh",
        "declare -x N=4; bash -x train.sh",
        "set -a; N=4; set +a; nohup bash train.sh > log 2>&1 &",
        "N=4 sbatch --nodes=4 --job-name x train.sh",
        "env N=4 bash train.sh | tee log",
        "N=9; bash train.sh 4",
        'N=9; f() { bash train.sh "$@"; }; f 4',
        "srun --container-image=x bash train.sh 4",
        "X=train.sh; eval bash $X 4",
        'bash -c "bash train.sh 4"',
        'srun bash -c "cd /x; N=4 ./train.sh"',
        'sbatch --wrap="bash train.sh 4"',
        "ssh host 'cd x; bash train.sh 4'",
        "python prepare.py --x 1\nbash $(dirname $0)/train.sh 4\necho done",
        "bash other.sh; bash train.sh 4",
        "(N=2; export N); N=2; export -n N; export N=4; exec bash train.sh",
        "bash middle.sh 4 x",
        "source exports.sh; bash train.sh",
        "for S in 4; do bash train.sh $S; done",
        "if [ -d /data ]; then bash train.sh 4; fi",
    ],
)
def test_a_script_beside_it_is_read_with_what_it_is_given(call):
    files = {
        "train.sh": f"N=${{1:-$N}}\n{RUN}",
        "other.sh": "echo hello",
        "middle.sh": "bash inner/last.sh $2 $1",
        "inner/last.sh": 'source "$(dirname "$0")/set.sh" $2\n' + RUN,
        "inner/./set.sh": "N=$2",
        "exports.sh": "export N=4",
    }
    files["./train.sh"] = files["train.sh"]
    assert launch(f"{call}\n", files).model.layers == 4


def test_what_is_not_exported_stays_in_the_script():
    files = {"train.sh": RUN}
    assert launch("N=4\nbash train.sh\n", files).model.layers == 9
    assert launch("N=4 true\nbash train.sh\n", files).model.layers == 9
    assert launch("(export N=4)\nbash train.sh\n", files).model.layers == 9
    assert launch("export N=4\nunset N\nbash train.sh\n", files).model.layers == 9


def test_open_values_are_asked_for_by_their_names_in_the_first_script():
    files = {"train.sh": "GBS=$1\n" + RUN}
    with pytest.raises(InputError, match=r"^train.sh: GBS has no value .*--set GBS=VALUE"):
        launch("bash train.sh $BATCH\n", files)
    assert launch("bash train.sh $BATCH\n", files, {"GBS": "32"}).global_batch == 32
    assert launch("bash train.sh $BATCH\n", files, {"BATCH": "32"}).global_batch == 32
    assert launch('bash train.sh "$1"\n', files, arguments=("32",)).global_batch == 32
    with pytest.raises(InputError, match=r"GBS \(\$1\) has no value"):
        launch('bash train.sh "$1"\n', files)


def test_arguments_that_are_not_given_are_empty():
    assert launch("bash train.sh\n", {"train.sh": f"N=${{1:-3}}; GBS=$2\n{RUN}"}).model.layers == 3


def test_a_script_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"^a.sh: line 2: starts b/c.sh, which is not there"):
        launch("bash a.sh\n", {"a.sh": "cd b\nbash b/c.sh\n"})
    with pytest.raises(InputError, match=r"line 1: starts \$X.*--set X=VALUE"):
        launch("bash $X\n", {})
    files = {"a.sh": RUN}
    assert launch("bash $X\n", files, {"X": "a.sh"}).model.layers == 9


def test_scripts_that_train_nothing_are_said():
    with pytest.raises(InputError, match=r"starts a.sh, which trains nothing that plan3d knows"):
        launch("bash a.sh\n", {"a.sh": "echo x\n"})


def test_more_scripts_than_are_read_are_said():
    """Forty with the first: the last of fifty, which trains, is not reached."""
    files = {f"s{i}.sh": "echo" for i in range(49)} | {"train.sh": RUN}
    calls = "".join(f"bash {name}\n" for name in files)
    with pytest.raises(InputError, match=r"starts more than 40 scripts: give the one that trains"):
        launch(calls, files)


def test_scripts_that_start_each_other_end():
    with pytest.raises(InputError, match=r"a\.sh"):
        launch("bash a.sh\n", {"a.sh": "bash a.sh\nbash a.sh\n"})


def test_which_of_several_scripts_is_asked_for_or_said():
    files = {"a.sh": f"N=1\n{RUN}", "b.sh": f"N=2\n{RUN}"}
    text = "if [ $MODEL = a ]; then bash a.sh; else bash b.sh; fi\n"
    with pytest.raises(InputError, match="MODEL has no value, which the script compares with a"):
        launch(text, files)
    assert launch(text, files, {"MODEL": "b"}).model.layers == 2
    assert "; not read: line 2 of" in launch("bash a.sh\nbash b.sh\n", files).left_out[-1]
    text = "for N in 1 2; do export N; bash c.sh; done\n"
    with pytest.raises(InputError, match="N is one of 1, 2: --set N=1"):
        launch(text, {"c.sh": RUN})
    assert launch(text, {"c.sh": RUN}, {"N": "2"}).model.layers == 2


def test_the_dialect_is_that_of_the_started_script():
    files = {"sft.sh": "N=2\nNPROC_PER_NODE=$GPUS megatron sft --model Qwen/Qwen2.5-7B $@\n"}
    text = "export GPUS=4\nbash sft.sh --tensor_model_parallel_size 2 --global_batch_size 8\n"
    found = launch(text, files)
    assert (found.gpus or found.launcher_gpus, found.plan["tp"], found.global_batch) == (4, 2, 8)


def test_the_job_is_that_of_sbatch_or_of_the_starter():
    run = RUN.replace("torchrun --nnodes 2 --nproc-per-node 8", "srun python")
    files = {"train.sh": f"#SBATCH --nodes=2 --gpus-per-node=8\n{run}"}
    assert launch("sbatch train.sh\n", files).launcher_gpus == 16
    assert launch("sbatch --nodes=4 train.sh\n", files).launcher_gpus == 32
    run_by_tasks = {"train.sh": f"#SBATCH --ntasks-per-node=8\n{run}"}
    assert launch("sbatch --nodes=4 train.sh\n", run_by_tasks).launcher_gpus == 32
    text = "#SBATCH --nodes=3 --gpus-per-node=4\nbash train.sh\n"
    assert launch(text, files).launcher_gpus == 12
    files = {"train.sh": run.replace("srun ", "")}
    assert launch("mpirun -np 16 bash train.sh\n", files).launcher_gpus == 16


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("./a.sh x", 0),
        ("bash -e -x a.sh b.sh", 3),
        ("bash train 3", 1),
        ("bash -c a.sh", None),
        ("cp a.sh b.sh", None),
        ("sudo chmod +x a.sh", None),
        ("srun python a.py a.sh", None),
        ("numactl --all bash a.sh", 3),
        ("sbatch -N 4 a.slurm", 3),
        ("torchrun a.sh", None),
        ("bash", None),
    ],
)
def test_which_word_is_a_script(command, place):
    assert place_of_script(command.split()) == place


@pytest.mark.parametrize(
    ("call", "layers"),
    [
        ("cd deep; bash train.sh", 4),
        ("cd deep/er; bash train.sh", 5),
        ("cd deep; cd er; bash train.sh", 5),
        ("cd deep; cd /; bash deep/train.sh", 4),
        ("cd $X; bash deep/train.sh", 4),
        ("cd deep; cd $X; bash deep/train.sh", 4),
        ("cd; bash deep/train.sh", 4),
        ("cd deep; bash er/train.sh", 5),
    ],
)
def test_the_folder_of_a_script_that_is_started(call, layers):
    files = {"deep/train.sh": f"N=4\n{RUN}", "deep/er/train.sh": f"N=5\n{RUN}"}
    assert launch(f"{call}\n", files).model.layers == layers


NANOTRON = """
parallelism: {dp: 2, pp: 1, tp: 4}
model: {model_config: {is_llama_config: true, hidden_size: 64, intermediate_size: 128,
  num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 4, vocab_size: 100}}
tokens: {sequence_length: 128, micro_batch_size: 2, batch_accumulation_per_replica: 4}
"""


def test_the_run_of_nanotron_is_read_from_the_file_that_its_command_names():
    text = (
        "C=${1:-conf/a.yaml}\nsrun torchrun --nproc_per_node 8 \\\n run_train.py --config-file $C\n"
    )
    found = launch(text, {"conf/a.yaml": NANOTRON})
    assert (found.framework, found.gpus, found.plan["tp"]) == ("nanotron", 8, 4)
    assert launch("bash a.sh conf/a.yaml\n", {"a.sh": text, "conf/a.yaml": NANOTRON}).gpus == 8
    with pytest.raises(InputError, match=r"the run is in conf/a\.yaml: give that file"):
        launch(text, {})
    with pytest.raises(InputError, match=r"C has no value .*--set C=VALUE"):
        launch(text.replace("C=", "D="), {})


@pytest.mark.parametrize(("most", "is_read"), [(3, True), (2, False)])
def test_scripts_that_are_read_are_counted_with_the_first(most, is_read, monkeypatch):
    monkeypatch.setattr(chains, "MOST", most)
    files = {"prepare.sh": "echo hello", "train.sh": f"N=4\n{RUN}"}
    text = "bash prepare.sh\nbash train.sh\n"
    if is_read:
        assert launch(text, files).model.layers == 4
    else:
        with pytest.raises(InputError, match="starts more than 2 scripts"):
            launch(text, files)
