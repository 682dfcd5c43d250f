"""Loops, functions, arguments and expansions of launch scripts lead to the words of a shell."""

import contextlib
import shutil
import subprocess
import time

import pytest

from plan3d.launch_files.launch_file import ReaderOptions
from plan3d.launch_files.registry import reader
from plan3d.launch_files.shell.inputs import ScriptInputs
from plan3d.launch_files.shell.launch_script import launcher_gpus, training_words
from plan3d.launch_files.shell.script import read_script
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import Precision

RUN = (
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers $N --hidden-size 64 "
    "--num-attention-heads 4 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 1 "
    "--global-batch-size 64 --bf16 "
)
OPTIONS = """MODEL=""; NODES=1; MORE=""
while [[ $# -gt 0 ]]; do
  case $1 in
    --model) MODEL="$2"; shift 2 ;;
    --nodes=*) NODES="${1#*=}"; shift ;;
    *) echo "unknown $1"; exit 1 ;;
  esac
done
if [ -z "$MODEL" ]; then echo "usage"; exit 1; fi
case "$MODEL" in small) N=2 ;; large) N=4 ;; *) exit 1 ;; esac
"""


def launch(text, files=None, values=None, arguments=()):
    inputs = ScriptInputs(arguments, values or {}, (files or {}).get)
    return reader(text, "run.sh", None)(text, "run.sh", ReaderOptions(inputs=inputs))


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    "script",
    [
        'X=a/b.tar.gz; run a.py --x ${X%.*} ${X%%.*} ${X#*/} ${X##*.} ${X/a/Q} "${X//a/-}"',
        "X=bF16; run a.py --x ${X^^} ${X,,} ${X^} ${X:1:2} ${X:2} ${X: -2} ${#X} ${X:+--set}",
        'A=(x "y z" w); run a.py --x ${A[1]} "${A[1]}" ${#A[@]} ${A[-1]} "${A[@]}"',
        'declare -A M=([7B]="32 4096" [13B]=40); S=7B; run a.py --x ${M[$S]} ${M[13B]}',
        "declare -A M; M[a]=1; M[b]=2; K=b; run a.py --x ${M[$K]}",
        'for i in 1 2 3; do L+=" --n $i"; done; run a.py --x $L',
        "i=0; while [ $i -lt 3 ]; do i=$((i + 1)); L+=($i); done; run a.py --x ${L[@]}",
        'for i in 1 2 3; do [ $i -eq 2 ] && continue; L+=" $i"; done; run a.py --x $L',
        'for i in 1 2 3; do if [ $i = 2 ]; then break; fi; L+=" $i"; done; run a.py --x $L',
        'L=; until [ "${#L}" -ge 4 ]; do L+=ab; done; run a.py --x $L',
        'f() { local k=$1; shift; run a.py --x "$k" $@ $#; }\nf 1 "2  3" 4',
        "function g {\n  V=$1\n  return 0\n  V=no\n}\ng 7\nrun a.py --x $V",
        'f() { if [ "$1" = a ]; then return; fi; V=$1; }; V=; f a; f b; run a.py --x $V',
        'C="run a.py --x 1"; echo "$C"; echo run a.py --x 9; eval "$C --y \'2 3\'"',
        "P=a.py; export P; bash -c 'run $P --x 1'",
        "bash -ec 'run a.py --x 1' --y 2",
        "bash --login -c 'run a.py --x 1' --y 2",
        '/bin/bash -c \'X="1  2"; run a.py --x "$X"\'',
        "E=--x; eval 'run a.py $E \"a b\"'",
        "V=1; W=0; f() { local V=5; }; f; (V=2); V=3 true; run a.py --x $V $W",
        "V=1; V=2 run a.py --x $V",
        ': "${X:=2}" ${Y:=3}; run a.py --x $X $Y $(expr 16 / 4)',
        'M=l-8b; [[ $M == l* ]] && A=1; [[ $M == "l*" ]] || B=2; run a.py --x $A $B',
        "M=l-8b; if [[ $M =~ [0-9]b$ ]]; then A=1; fi; run a.py --x $A",
        "X=$(basename /a/b.c .c); Y=$(dirname /a/b/c); run a.py --x $X $Y $(echo p  q) $(seq 3)",
        "run a.py --help; run a.py --x 1; exit 0; run a.py --x 2",
        "N=x; V=N; run a.py --x ${!V}",
        # Parts of texts from either end, up to all of them.
        "X=abcdef; run a.py --x ${X:0} ${X:0:1} ${X:5} ${X:6} ${X:1:0} ${X: -6} .",
        "X=abcdef; run a.py --x ${X: -1} ${X: -3:2} ${X:2:9}",
        'X=aXbXc; run a.py --x ${X%X*} ${X%%X*} ${X#*X} ${X##*X} ${X%y} ${X#y} ${X%"$X"} .',
        "X=a.b.c; run a.py --x ${X/./-} ${X//./-} ${X//z/-} ${X/.*/} ${X//[ac]/_}",
        "X=; Y=1; run a.py --x ${X:+a} ${Y:+b} ${Y:-d} ${X-e} ${#X} ${#Y} .",
        "X=aB; run a.py --x ${X^} ${X^^} ${X,} ${X,,}",
        'A=(1 2 3); A+=(4); run a.py --x ${A[0]} ${A[3]} ${A[-4]} ${#A[@]} "${A[*]}"',
        "A=(x y); i=1; run a.py --x ${A[$i]} ${A[i]} ${A[$((i - 1))]}",
        # Arithmetic as C has it.
        "run a.py --x $((7 / 2)) $((-7 / 2)) $((7 % 3)) $((-7 % 3)) $((2 + 3 * 4))",
        "run a.py --x $(((2 + 3) * 4)) $((8 - 3 - 2)) $((64 / 4 / 2)) $((1 < 2)) $((2 <= 1))",
        "A=4; run a.py --x $((A > 3 ? A * 2 : 0)) $((!A)) $((!0)) $((-A)) $((+A))",
        "A=4; run a.py --x $((A && 0)) $((0 || A)) $((3 == 3)) $((1 != 1))",
        "A=6; run a.py --x $((A >= 6 && A < 7 ? 1 : 2)) $((A % 4 * 2)) $(( ${A} + $A ))",
        "run a.py --x $((1 - -1)) $((2 * (3 - 1) % 3)) $((1 + 1 == 2)) $((5 > 3 > 1))",
        # Commands whose output is a word.
        "run a.py --x $(seq 3) $(seq 2 4) $(seq 1 2 5) $(seq 3 -1 1) $(seq 5 1) .",
        "run a.py --x $(expr 3 + 4) $(expr 7 / 2) $(basename a/b/) $(dirname a) $(dirname /a/b/)",
        "run a.py --x $(basename model.yaml .yaml) $(basename x .y) `seq 2` $(realpath -s /a/b)",
        # Conditions.
        "A=2; [ $A = 2 -a $A -lt 3 ] && X=1; [ $A = 3 -o $A -gt 1 ] && Y=1; run a.py --x $X $Y",
        "A=2; [[ $A == 2 && $A < 3 || $A == 9 ]] && X=1; run a.py --x ${X:-0}",
        'A=; [ -z "$A" ] && X=1; [ -n "$A" ] || Y=1; [ ! -z "$A" ] || Z=1; run a.py --x $X $Y $Z',
        "A=10; B=9; [ $A -gt $B ] && X=1; [ $A -ge 10 ] && Y=1; [ $B -le 8 ] || Z=1; "
        "run a.py --x $X $Y $Z",
        "if [ 1 = 2 ]; then X=1; elif [ 2 = 2 ]; then X=2; elif [ 2 = 2 ]; then X=3; else X=4; fi; "
        "run a.py --x $X",
        "if [ 1 = 1 ]; then if [ 1 = 2 ]; then X=1; else X=2; fi; else X=3; fi; run a.py --x $X",
        "A=b; case $A in a) X=1 ;; b | c) X=2 ;; *) X=3 ;; esac; run a.py --x $X",
        "A=xyz; case $A in x) X=1 ;; x*) X=2 ;; esac; run a.py --x $X",
        "A=xyz; case $A in ?) X=1 ;; ???) X=3 ;; esac; run a.py --x $X",
        # Loops in loops, which end where they say.
        'for i in 1 2; do for j in a b; do L+=" $i$j"; done; done; run a.py --x $L',
        "i=0; while (( i < 3 )); do i=$((i + 1)); done; run a.py --x $i",
        # Functions in functions; arguments that are shifted.
        'f() { X="$2 $#"; shift 2; Y="$1 $#"; }; f a b c d; run a.py --x $X $Y',
        "f() { g $1 x; }; g() { X=$2$1; }; f a; run a.py --x $X",
        'f() { for a in "$@"; do L+=("$a"); done; }; f 1 "2  3"; run a.py --x "${L[@]}"',
        # Quotes and escapes.
        "run a.py --x 'a\\b' \"a\\\\b\" a\\\\b $'a\\tb' \"\\$A\" \\'",
        "A='1 2'; run a.py --x $A \"$A\" '$A' \"'$A'\" a\"$A\"b",
        "A=1 # a comment\n# B=2\nrun a.py --x $A # more\n",
        "run a.py \\\n  --x 1 \\\n  --y 2\n",
        "cat > f <<EOF\nrun a.py --no\nEOF\nrun a.py --x 1",
        "true && run a.py --x 1 || run a.py --x 2",
        # Loops that are left or gone on with from inside others.
        'for i in 1 2; do for j in 1 2 3; do [ $j = 2 ] && continue 2; L+=" $i$j"; done; '
        'L+=" end"; done; run a.py --x $L',
        'for i in 1 2; do for j in 1 2 3; do [ $j = 2 ] && break 2; L+=" $i$j"; done; done; '
        "run a.py --x $L",
        'for i in 1 2; do for j in 1 2; do for k in 1 2; do [ $k = 2 ] && break 2; L+=" $i$j$k"; '
        'done; L+=" in"; done; L+=" out"; done; run a.py --x $L',
        "for i in 1 2; do for j in 1 2; do for k in 1 2; do [ $k = 2 ] && continue 3; "
        'L+=" $i$j$k"; done; L+=" in"; done; L+=" out"; done; run a.py --x $L',
        'for ((i = 1; i < 8; i += 3)); do L+=" $i"; done; run a.py --x $L $i',
        'for ((i = 3; i > 0; i--)); do L+=" $i"; done; run a.py --x $L $i',
        'for ((i = 0; i < 0; i++)); do L+=" $i"; done; run a.py --x $i .',
        "for i in; do X=1; done; run a.py --x ${X:-none}",
        'f() { for a; do L+=" <$a>"; done; }; f 1 2; run a.py --x $L',
        'i=5; until (( i <= 2 )); do (( i-- )); L+=" $i"; done; run a.py --x $L',
        # Functions: on lines of their own, in each other, with blocks inside.
        "f()\n{\n  X=1\n  { Y=2; }\n  if [ 1 = 1 ]; then Z=3; fi\n}\nf; run a.py --x $X $Y $Z",
        "function f()\n\n{ X=$#; }\nf a b\nrun a.py --x $X",
        "f() { g() { X=$1; }; g in; }; f; run a.py --x $X",
        "f() { local a=1 b=2; a=3; c=$a$b; }; a=0; f; run a.py --x $a ${b:-none} $c",
        'N=2; f() { local N; [ -z "$N" ] && N=5; M=$N; }; f; run a.py --x $N $M',
        "f() { local a b=2; a=1; c=$a; }; f; run a.py --x ${a:-none} ${b:-none} $c",
        # Cases in cases, with patterns in brackets and parts that go on.
        "A=b; B=2; case $A in (a) X=1 ;; (b) case $B in 1) X=2 ;; 2) X=3 ;; esac ;; *) X=4 ;; "
        "esac; "
        "run a.py --x $X",
        "A=in; case $A in in) X=1 ;; *) X=2 ;; esac; run a.py --x $X",
        "A=x; case $A in y) X=1 ;; esac; run a.py --x ${X:-none}",
        "A=b7; case $A in [a-c][0-9]) X=1 ;; *) X=2 ;; esac; run a.py --x $X",
        'case "a b" in "a b") X=1\n;;\n*) X=2\nesac\nrun a.py --x $X',
        # Arithmetic: precedences, bits, powers, signs and assignments.
        "run a.py --x $((2 ** 3 ** 2)) $((-2 ** 2)) $((1 << 2 + 1)) $((16 >> 1 >> 1)) $((1 << 62))",
        "run a.py --x $((6 & 3)) $((6 | 3)) $((6 ^ 3)) $((~6)) $((1 | 2 ^ 3 & 4)) $((5 & 3 == 3))",
        "run a.py --x $((-7 / 2)) $((7 / -2)) $((-7 / -2)) $((-7 % 2)) $((7 % -2)) $((0 / 3))",
        "run a.py --x $((1 ? 2 : 3 ? 4 : 5)) $((0 ? 2 : 0 ? 4 : 5)) $((1 || 0 && 0)) $((2 && 3))",
        "run a.py --x $((1 + 2 - 3 * 4 / 6 % 5)) $((10 - 2 - 3)) $((2 * 3 + 4 * 5)) $((- 3 - -3))",
        "run a.py --x $((3 >= 3)) $((3 > 3)) $((3 <= 3)) $((3 < 3)) $((3 != 3)) $((!3 + 1))",
        "A=2; ((A += 3)); ((A *= 2)); ((B = A - 1)); ((A -= 4)); run a.py --x $A $B",
        "A=2; ((A++)); ((++A)); ((A--)); let A=A*3; let 'B = A + 1'; run a.py --x $A $B",
        "A=8; ((A <<= 1)); ((A >>= 2)); ((A /= 2)); ((A %= 2)); run a.py --x $A",
        # Parts, changes and lengths of texts.
        "X=abcdef; run a.py --x ${X:1:3} ${X: -4:2} ${X:0:6} ${X:3:9} ${X:6:1} ${X: -2:5} .",
        "X=a/b/c.d.e; run a.py --x ${X%/*} ${X%%/*} ${X##*/} ${X#*/} ${X%.?} ${X#a} ${X%e}",
        "X=aab; run a.py --x ${X/a/} ${X//a/x} ${X/%b/y} ${X/#a/z} ${X/ab/} ${X//b} .",
        "X=word; Y=; run a.py --x ${#X} ${#Y} ${X^} ${X,,} ${Y:-${X}s} ${Y-${X}} ${Z-z} .",
        "A=(a b c d); run a.py --x ${#A[1]} ${A[-2]} ${#A[*]} ${A[3]}",
        "A=(1 2); B=(0 ${A[@]} 3); A[0]=9; A[5]=7; run a.py --x ${A[0]} ${B[@]} ${#B[@]}",
        "A=(\n  1 # one\n  2\n)\nA+=(3 4)\nrun a.py --x ${A[@]}",
        "declare -a A=(x y); unset X; X+=1; X+=2; run a.py --x ${A[1]} $X",
        # Words of commands: numbers, cuts and counts.
        "run a.py --x $(seq 12345678 12345679)",
        "A=(x y); A[0]=z; A[1]+=w; A[-2]+=v; A[2]=u; run a.py --x ${A[@]} ${#A[@]}",
        "A=(x); A+=(y); A[1]=z; A[-1]+=q; run a.py --x ${A[@]} ${A[0]}",
        "run a.py --x $'\\501\\101\\x41\\u41' $'a\\tb' $'\\\\n'",
        "run a.py --x $(seq 0 5 10) $(seq 4 -2 0) $(seq 2 2) $(expr 2 \\* 3) $(expr 9 - 4 - 3)",
        "run a.py --x $(echo a,b,c | cut -d, -f2) $(echo x | tr x y)",
        "run a.py --x $(echo AbC | tr A-Z a-z) $(echo abc | tr '[:lower:]' '[:upper:]')",
        "run a.py --x $(echo a b c | wc -w) $(dirname a/b/c) $(dirname /a) $(dirname /)",
        # Reading, printing and shifting.
        "IFS=, read -r A B <<< 1,2,3; read C D E <<< 'x y'; run a.py --x $A $B $C $D .$E",
        "IFS=: read -ra A <<< a:b:c; run a.py --x ${A[2]} ${#A[@]}",
        "printf -v A '%s-%s' x y; printf -v B 'n%d' 7; run a.py --x $A $B",
        'set -- a b c d; shift; shift 2; X=$1; set -- "$@" e; run a.py --x $X $# $2',
        "set -e; set -- --flag -n; run a.py $@ $#",
        # Escapes and quotes of every kind.
        "run a.py --x $'\\x41\\102\\u0043' $'a\\'b' $'\\\\' $'x\\ty' $'\\101b' $'\\e' 'a'\"b\"c",
        'run a.py --x "a\\$b" "a\\"b" "a\\\\b" "a\\xb" a\\ b "$(echo \\"c\\")" "`echo d`"',
        'X=\'a  b\'; run a.py --x $X "$X" pre$X "pre$X"post ${X}y',
        "run a.py --x a{b} {} {a {,",
        # Groups, pipes and redirections are around commands, not of them.
        "( cd a; X=1; run a.py --x $X ) 2> /dev/null",
        "if ! false; then X=1; fi; ! true || X=2; run a.py --x $X",
        "[ a = a ] && { X=1; Y=2; } || X=3; run a.py --x $X $Y",
        "[[ ( 1 == 1 || 1 == 2 ) && ! ( 2 == 3 ) ]] && X=1; run a.py --x $X",
        "[ 3 -ne 3 ] || X=1; [ 3 -eq 3 ] && Y=1; [ 2 -lt 3 ] && Z=1; [ 3 -le 2 ] || W=1; "
        "run a.py --x $X $Y $Z $W",
        "X=01; [[ $X -eq 1 ]] && A=1; [ 1.5 = 1.5 ] && B=1; [[ a < b ]] && C=1; run a.py --x $A $B",
        "Z=0; false || { X=1; }; { Y=2; }; (Z=3); run a.py --x $X $Y $Z",
    ],
)
def test_the_words_are_those_of_bash(script, tmp_path):
    shown = (
        'run() { [ "$2" = --help ] && return; shift; '
        'printf "%s\\n" "$@"; }\nexport -f run\necho() { :; }\n'
    )
    if "$(echo" in script:
        shown = shown.replace("echo() { :; }\n", "")
    done = subprocess.run(
        ["bash", "-c", shown + script],
        capture_output=True,
        text=True,
        check=True,
        env={},
        cwd=tmp_path,
    )
    found = training_words(read_script(script.replace("run a.py", "torchrun a.py"), "run.sh"))
    found = found or training_words(read_script(script, "run.sh"))
    assert [word.text for word in found] == done.stdout.splitlines()


def test_options_of_a_script_are_asked_for_with_the_models_that_it_lists():
    text = OPTIONS + RUN
    with pytest.raises(InputError, match="MODEL is one of small, large: --set MODEL=small"):
        launch(text)
    assert launch(text, values={"MODEL": "large"}).model.layers == 4
    assert launch(text, arguments=("--model", "small", "--nodes=3")).model.layers == 2
    with pytest.raises(InputError, match="line 10: the script stops here before it trains"):
        launch(text, arguments=("--model", "other"))


@pytest.mark.parametrize("loop", ["while getopts 'n:v' o; do", "while getopts :n:v o\ndo"])
def test_getopts(loop):
    text = f"N=3\n{loop} case $o in n) N=$OPTARG ;; v) V=1 ;; esac; done\n{RUN}"
    assert launch(text).model.layers == 3
    for arguments in (("-n", "5"), ("-n5",), ("-v", "-n", "5"), ("-vn", "5")):
        assert launch(text, arguments=arguments).model.layers == 5
    assert launch(text, values={"N": "6"}).model.layers == 6


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("words", ["", "a", "-v", "-v -n 3", "-n3 -v a b", "-vn 3 -- a", "-v - a"])
def test_what_getopts_leaves(words):
    """After each option and after all of them."""
    loop = "L=; while getopts 'n:v' o; do L+=\" $OPTIND\"; done; run a.py --x 9 $L $OPTIND $#"
    script = f"set -- {words}\n{loop}"
    shown = 'run() { printf "%s " "${@:2}"; }\n'
    done = subprocess.run(["bash", "-c", shown + script], capture_output=True, text=True)
    found = training_words(read_script(script.replace("run a.py", "torchrun a.py"), "run.sh"))
    assert [word.text for word in found] == done.stdout.split()


def test_a_loop_over_trainings_asks_which():
    text = f"N=2\nfor TP in 1 2 4; do\n  {RUN} --tensor-model-parallel-size $TP\ndone\n"
    with pytest.raises(InputError, match="TP is one of 1, 2, 4: --set TP=1"):
        launch(text)
    assert launch(text, values={"TP": "4"}).plan["tp"] == 4


def test_commands_of_a_condition_are_asked_for_and_others_named():
    text = f'N=2\nif [ "$BIG" = yes ]; then {RUN} --mtp-num-layers 1\nelse {RUN}\nfi\n'
    with pytest.raises(InputError, match="BIG has no value, which the script compares with yes"):
        launch(text)
    assert launch(text, values={"BIG": "yes"}).model.mtp_layers == 1
    (said,) = launch(f"N=2\n{RUN}\n{RUN} --tensor-model-parallel-size 2\n").left_out
    assert said == (
        "the training command in line 3, which differs in --tensor-model-parallel-size: the first "
        "one is read"
    )


@pytest.mark.parametrize(
    ("condition", "layers"), [("true", 2), ("false", 4), ("$F", 4), ("! $F", 2), ("$F || $T", 2)]
)
def test_commands_that_are_conditions(condition, layers):
    text = f"F=false; T=true\nif {condition}; then N=2; else N=4; fi\n{RUN}"
    assert launch(text).model.layers == layers


def test_formats_that_a_condition_decides_are_asked_for():
    text = (
        f"N=2; F=$1\nif [ $F = bf16 ]; then {RUN}\nelif [ $F = te ]; then {RUN} --fp8-hybrid\nfi\n"
    )
    with pytest.raises(InputError, match=r"F \(\$1\) is one of bf16, te: --set F=bf16"):
        launch(text)
    assert launch(text, arguments=("te",)).plan["precision"] != Precision.BF16
    with pytest.raises(InputError, match=r"F \(\$1\) is one of"):
        launch(text.replace("--fp8-hybrid", "--msamp"))


def test_a_program_that_prepares_data_is_no_training():
    text = f"N=2\npython tools/preprocess_data.py --input x --workers 4\n{RUN}\n"
    assert launch(text).model.layers == 2


def test_a_word_of_another_shell_keeps_what_it_depends_on():
    text = f'N=2\nif [ $BIG = 1 ]; then N=4; fi\nsrun bash -c "{RUN}"\n'
    with pytest.raises(InputError, match="BIG has no value"):
        launch(text)


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("mpirun -np 16 -H a:8,b:8 python", 16),
        ("torchrun --nproc_per_node=8", 8),
        ("python -m torch.distributed.run --nproc-per-node 4", 4),
        ("python -m torch.distributed.launch --nproc_per_node 8 --nnodes 2", 16),
        ("srun -n 32 python", 32),
        ("python", None),
        ("deepspeed --num_gpus 4", 4),
        ("deepspeed --include localhost:0,1", 2),
        ("deepspeed --include=a:0,1@b:0", 3),
        ("deepspeed --include a@b", None),
    ],
)
def test_processes_of_launchers(launcher, gpus):
    assert launcher_gpus(read_script(f"{launcher} a.py --x 1\n", "run.sh")) == gpus


def test_a_module_that_is_started_before_is_not_the_training():
    text = f"python -m pip install --upgrade x\npython -m a.b --seq-length 8\nN=2\n{RUN}"
    assert launch(text).model.layers == 2


def test_slots_of_a_hostfile():
    inputs = ScriptInputs((), {}, {"hosts": "a slots=8\n# c slots=8\nb slots=4\n"}.get)
    script = read_script("deepspeed --hostfile hosts a.py --x 1\n", "run.sh", inputs)
    assert launcher_gpus(script) == 12


@pytest.mark.parametrize(
    "program",
    ["python -m examples.inference.serve", "python tools/analyze_data.py", "python bench.py"],
)
def test_a_program_that_is_no_training_is_refused(program):
    with pytest.raises(InputError, match=r"does not train|no sizes of a model"):
        launch(f"{program} --seq-length 8\n")


@pytest.mark.parametrize(
    ("options", "gpus"),
    [("-N 2\n#SBATCH --gpus-per-node=h100:4", 8), ("-n 8\n#SBATCH --gpus-per-task=1", 8)],
)
def test_gpus_of_jobs(options, gpus):
    assert launcher_gpus(read_script(f"#SBATCH {options}\nsrun a.py --x 1\n", "run.sh")) == gpus


def test_what_decides_the_gpus_is_asked_for_with_the_rest():
    text = f"if [ $ENV = one ]; then NODES=1; elif [ $ENV = two ]; then NODES=2; fi\n{RUN}"
    text = text.replace("--nnodes 2", "--nnodes $NODES")
    with pytest.raises(InputError, match="ENV is one of one, two: --set ENV=one, or --gpus N"):
        launch(text)
    assert launch(text, values={"N": "2"}).launcher_gpus is None
    assert launch(text, values={"N": "2", "ENV": "two"}).launcher_gpus == 16


@pytest.mark.parametrize("text", ["f() { f; }; f", "f() { g; }; g() { f; }; g"])
def test_functions_that_call_each_other_end(text):
    with pytest.raises(InputError, match="nested too deeply"):
        launch(f"N=2\n{text}\n{RUN}")


def test_a_loop_without_end_is_left():
    assert launch(f"N=2\nwhile [ 1 = 1 ]; do X=a; done\n{RUN}").model.layers == 2


@pytest.mark.parametrize(
    "text",
    [
        "for i in $(seq 300); do for j in $(seq 300); do X=$i$j; done; done",
        "for i in a; do " * 600,
        "f() { " * 900,
        "f() { " + "for i in 1 2 3 4 5 6 7 8 9; do " * 9 + "echo; " + "done; " * 9 + "}; f; f",
        "for i in $(seq 300); do A+=(--y $i); done",
        f"X={'ab' * 900}; " + "Y=${X%%*a*b*a*b*c}; " * 30,
    ],
)
def test_long_work_is_bounded(text):
    start = time.process_time()
    with contextlib.suppress(InputError):
        read_script(f"{text}\n", "run.sh")
    assert time.process_time() - start < 2


@pytest.mark.parametrize("pattern", ["^l-[[]]b$", "[a||b]", "(?P<", "a{9}", "(a|b)*c"])
def test_patterns_that_are_not_tried_leave_a_condition_open(pattern):
    with pytest.raises(InputError, match=r"only under a condition|depends on"):
        launch(f"N=2; if [[ l-8b =~ {pattern} ]]; then N=4; fi\n{RUN}")


SIZED = "torchrun a.py --num-layers $L --hidden-size $H --micro-batch-size $M\n"


@pytest.mark.parametrize(
    "text",
    [
        "set -- 32 64 2\nL=$1; shift; H=$1; M=$2\n",
        'X="32 64 2"; set -e -- $X\nL=$1 H=$2 M=$3\n',
        'read -r L H M <<< "32 64 2"\n',
        "IFS=, read -ra A <<< '32,64,2'\nL=${A[0]} H=${A[1]} M=${A[2]}\n",
        "read L H M << EOF\n32 64 2\nEOF\n",
        'M=2; let "L = M * 16" H=$M*32\n',
        "M=2; L=`expr $M \\* 16`; H=$(echo $M*32 | bc)\n",
        "C=32:64; L=$(echo $C | cut -d: -f1); H=$(awk -F: '{print $2}' <<< $C); M=2\n",
        "printf -v L %d 32; typeset -i H=60; H+=4; M=4; unset M; M=${M:-2}\n",
        "L=31; ((L++)); H=16; M=1; (( M == 1 )) && (( H *= 4, M = 2 )); ((M == 1)) && ((L = 1))\n",
        "L=33; let L--; H=4; M=0; until ((M >= 2)); do ((M++)); ((H = H * 4)); done\n",
        "H=8; L=4; for ((i = 0; i < 3; i++)); do ((H *= 2)); ((L += L)); done; M=$((i - 1))\n",
        "L=0; H=64; M=2; for ((i=8; i>2; i/=2)); do ((i == 4)) && ((L = i * 8)); done\n",
        "read -r -d '' L H M <<X\n32\n64\n2\nX\n",
    ],
)
def test_commands_that_assign(text):
    words = [word.text for word in training_words(read_script(text + SIZED, "run.sh"))]
    assert words[1::2] == ["32", "64", "2"]


@pytest.mark.parametrize(
    "text",
    [
        *("read L < sizes.txt\n", "let L=L*N\n", "let L=N++\n", "unset L\n", "mapfile -t L < f\n"),
        *("((L = L * N))\n", "((L += N))\n", "read -d : L <<< 4:5\n", "unset L[0]\n"),
        *("printf -v L '%s%q' 3\n", "printf -v L %d 0x3\n"),
    ],
)
def test_what_such_commands_leave_open_is_no_older_value(text):
    script = read_script(f"L=7; H=1; M=1\n{text}{SIZED}", "run.sh")
    assert training_words(script)[1].unresolved
    script = read_script(f"L=7; H=1; M=1\nif [ -f x ]; then\n{text}fi\n{SIZED}", "run.sh")
    assert training_words(script)[1].parts[0].condition


def test_braces_of_printf_are_text():
    script = read_script(f"H=64; M=2\nprintf -v L '{{%s}}{{a.b}}' 32\n{SIZED}", "run.sh")
    assert training_words(script)[1].text == "{32}{a.b}"


def test_words_that_stand_for_paths_and_tasks_of_slurm():
    job = "#SBATCH <OPTIONS> --nodes=2 --exclusive --ntasks-per-node=8 --job-name=x\n"
    text = f'{job}O="--vocab-file <PATH TO a.json> --num-layers 2"\nsrun sh -c "a.py $O"\n'
    script = read_script(text, "run.sh")
    assert [word.text for word in training_words(script)][1::2] == ["PATH_TO_a.json", "2"]
    assert launcher_gpus(script) == 16
    assert launcher_gpus(read_script(f"{job}srun torchrun a.py --x 1\n", "run.sh")) is None


@pytest.mark.parametrize(
    "start",
    [
        "bash train.sh",
        "sbatch -p x --nodes=4 jobs/train.slurm a b",
        "nohup ./train.sh",
        "./train.sh",
    ],
)
@pytest.mark.parametrize("more", ["", "exit 0\n"])
def test_a_script_that_starts_another_one_names_it(start, more):
    with pytest.raises(InputError, match=r"line 2: starts \S*train\.s\w+, .* give that script"):
        launch(f"export TP=2\n{start}\n{more}")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_loops_that_are_not_closed_are_counted(count):
    """Beyond twenty their ends are not looked for any more."""
    assert read_script("for i in 1 2; do echo\n" * count, "a.sh").unclosed == count
