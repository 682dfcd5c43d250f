"""Names and flags from files never run: exported scripts are run in bash, with stubs."""

import os
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from plan3d.cli.main import main
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
TASK = ["--model", "gpt3-1.3b", "--gpus", "16", "--sequence", "2048", "--global-batch", "64"]
PLAN = "tp=2 overlap_param_gather=0"
SHELL = ("megatron", "megatron-bridge", "deepspeed")
STUB = '#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done > "$DUMP"\n'
CANARY = "#!/bin/sh\n: > PWNED\n"


def arguments(script, folder):
    """What a script's launcher is started with; nothing else may have been started."""
    stubs, inside = folder / "stubs", folder / "inside"
    for place in (stubs, inside):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
    for name, text in (("torchrun", STUB), ("deepspeed", STUB), ("touch", CANARY)):
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    (stubs / "cat").symlink_to(shutil.which("cat"))
    line = next(x for x in script.splitlines() if x.startswith(("# torchrun ", "# deepspeed ")))
    command = line.removeprefix("# ").removesuffix(" ...")
    dump = folder / "dump"
    dump.unlink(missing_ok=True)
    subprocess.run(
        [shutil.which("bash"), "-c", f"{script}\n{command}\n"],
        env={"PATH": str(stubs), "DUMP": str(dump)},
        cwd=inside,
        check=True,
        capture_output=True,
    )
    assert set(os.listdir(inside)) <= {"ds_config.json"}
    return dump.read_bytes().decode().split("\0")[:-1]


def profile(folder, name):
    """A hardware profile whose accelerator has this name."""
    text = files("plan3d.hardware_profiles").joinpath("h100-sxm.toml").read_text(encoding="utf-8")
    old = Cluster.profile("h100-sxm", gpus=8).accelerator.name
    assert f'"{old}"' in text
    path = folder / "mine.toml"
    path.write_text(text.replace(f'"{old}"', f'"{name}"'), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("framework", SHELL)
def test_the_name_of_a_profile_is_no_command(framework, tmp_path, capsys):
    def exported(name):
        cluster = profile(tmp_path, name)
        code = main(["export", PLAN, *TASK, "--cluster", cluster, "--to", framework])
        return code, *capsys.readouterr()

    code, plain, _ = exported("H100")
    assert code == 0
    code, out, err = exported("H100\\ntouch PWNED #")
    if code:
        assert (code, out, err.count("\n")) == (2, "", 1)
    else:
        assert arguments(out, tmp_path) == arguments(plain, tmp_path)


SCRIPT = """torchrun pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \\
  --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --bf16 \\
  --global-batch-size 64 --use-distributed-optimizer --overlap-grad-reduce {flags}
"""
KEPT = (
    (r"--save \$\(touch\ PWNED\)", ["--save", "$(touch PWNED)"]),
    ("--save '$(touch PWNED)' --lr 1", ["--save", "$(touch PWNED)", "--lr", "1"]),
    ("--save '&' touch PWNED", ["--save", "&", "touch", "PWNED"]),
    ("--save ';' touch PWNED", ["--save", ";", "touch", "PWNED"]),
    ("--save '`touch PWNED`'", ["--save", "`touch PWNED`"]),
    ("--save 'a b'  \"c  d\"", ["--save", "a b", "c  d"]),
    ("--save ''", ["--save", ""]),
    (r"--save a\'b \"c\\", ["--save", "a'b", '"c\\']),
    ("--save '$HOME' '#' '*' ')' '<('", ["--save", "$HOME", "#", "*", ")", "<("]),
    ("--save='a b' --lr_x 3", ["--save=a b", "--lr_x", "3"]),
)


@pytest.mark.parametrize(("flags", "words"), KEPT, ids=[flags for flags, _ in KEPT])
def test_kept_flags_keep_their_meaning(flags, words, tmp_path, capsys):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT.format(flags=flags))
    asked = ["--cluster", "h100-sxm", "--gpus", "16", "--to", "megatron"]
    code = main(["import", str(path), *asked])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    given = arguments(out, tmp_path)
    at = given.index(words[0])
    assert given[at:] == words
    assert arguments(out, tmp_path)[:at] == given[:at]
    once = path.read_text()
    path.write_text(out)
    assert main(["import", str(path), *asked]) == 0
    assert capsys.readouterr().out == out
    assert once != out


def test_the_name_of_a_file_is_no_command(tmp_path, capsys):
    folder = tmp_path / "x\ntouch PWNED #"
    folder.mkdir()
    cluster = profile(folder, "H100")
    code = main(["export", PLAN, *TASK, "--cluster", cluster, "--to", "megatron"])
    out, err = capsys.readouterr()
    assert code == 2 or arguments(out, tmp_path)
    assert err.count("\n") <= 1
    path = Path(tmp_path) / "a\ntouch PWNED #.sh"
    path.write_text(SCRIPT.format(flags=""))
    asked = ["--cluster", "h100-sxm", "--gpus", "16", "--to", "megatron"]
    code = main(["import", str(path), *asked])
    out, err = capsys.readouterr()
    assert code == 2 or arguments(out, tmp_path)


def test_a_profile_in_python_is_refused_as_well(tmp_path):
    with pytest.raises(InputError, match=r"accelerator\.name"):
        Cluster.profile(profile(tmp_path, "H100\\u202e"), gpus=8)
