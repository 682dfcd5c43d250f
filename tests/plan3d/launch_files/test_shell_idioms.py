"""Idioms of launch scripts: their words are those of bash, and none of them is open."""

import os
import shutil
import subprocess

import pytest

from plan3d.launch_files.shell.launch_script import training_words
from plan3d.launch_files.shell.script import read_script

IDIOMS = r"""
N=4
(( N += 3 ))
torchrun a.py --q 0 --num-layers $N
====
N=4
((N++))
((++N))
torchrun a.py --q 0 --num-layers $N
====
for ((i=0;i<3;i++)); do A+=" --x $i"; done
torchrun a.py --q 0 $A
====
for i in $(seq 0 2 6); do A+=" --x $i"; done
torchrun a.py --q 0 $A
====
i=0
until (( i >= 3 )); do A+=" --x $i"; (( i++ )); done
torchrun a.py --q 0 $A
====
A=$(cat <<EOF
--x 1 --y 2
EOF
)
torchrun a.py --q 0 $A
====
read -r -d '' A <<EOF
--x 1
--y 2
EOF
torchrun a.py --q 0 $A
====
X=7; ((X=X>5?1:2))
torchrun a.py --q 0 --a $X
====
A=(x y z)
A[1]=w
A[5]=q
torchrun a.py --q 0 ${A[@]} --n ${#A[@]}
====
for ((i=0;i<3;i++)); do A+=" --x $i"; done
torchrun a.py --q 0 $A --i $i
====
for ((i=8;i>1;i/=2)); do A+=" --x $i"; done
torchrun a.py --q 0 $A
====
N=3
for (( i = 0; i < N; i = i + 1 ))
do
  [ $i -eq 1 ] && continue
  A+=" --x $i"
done
torchrun a.py --q 0 $A
====
N=2
while ((N > 0)); do A+=" --x"; ((N--)); done
torchrun a.py --q 0 $A --n $N
====
N=2; [[ $N -eq 2 ]] && ((N*=4)); [[ $N -eq 3 ]] && ((N*=4))
torchrun a.py --q 0 --n $N
====
((A=3, B=A*2))
torchrun a.py --q 0 --a $A --b $B
====
A=4; B=$((A==4?8:1)); C=$((A<=4)); D=$((1<<A)); E=$((A**2)); F=$((2**3**2))
G=$((7&3|8^1)); H=$((A>>1))
torchrun a.py --q 0 $B $C $D $E $F $G $H $((-2**2)) $((~A+1)) $((1+2<<1)) $((3>2==1))
====
IFS= read -r -d '' A <<'EOF' || true
--x 1
--y 2
EOF
torchrun a.py --q 0 $A
====
B=3
read -r -d '' A <<EOF
  --x 1
  --y $B
EOF
torchrun a.py --q 0 $A
====
read -rd '' A <<< "--x 1
--y 2"
torchrun a.py --q 0 $A
====
n=1
f() { ((n+=1)); }
f; f
torchrun a.py --q 0 --n $n
====
n=5
(( n > 3 )) && (( n = 3 ))
torchrun a.py --q 0 --n $n
====
n=5
(( n < 3 )) || (( n -= 1 ))
torchrun a.py --q 0 --n $n
====
A[0]=--x
A[1]=4
torchrun a.py --q 0 "${A[@]}"
====
A=(--x 4)
A[1]=5
A[2]=--y
torchrun a.py --q 0 "${A[@]}" ${#A[@]} ${A[1]}
====
A=(--x 4 --z)
i=1
A[$i]=5
A[i+1]=--y
torchrun a.py --q 0 "${A[@]}"
====
A=(--x 4)
A[${#A[@]}]=--y
A[${#A[@]}]=7
torchrun a.py --q 0 "${A[@]}"
====
declare -A M=([a]=1 [b]=2)
M[a]=4
torchrun a.py --q 0 --a ${M[a]} --n ${#M[@]}
====
A=(1 2 3)
A[1]+=5
torchrun a.py --q 0 ${A[@]}
====
A=(--x 4); A[-1]=9
torchrun a.py --q 0 ${A[@]}
====
A=([0]=--x [1]=4)
torchrun a.py --q 0 ${A[@]}
====
A=$(cat <<EOF
--x 1
--y 2
EOF
)
torchrun a.py --q 0 $A
====
V=3
A=$(cat <<-EOF
	--x $V
	--y ${W:-5}
	EOF
)
torchrun a.py --q 0 $A --z
====
A=`cat <<EOF
--x 1
EOF
`
torchrun a.py --q 0 $A
====
A=(4 8); B=(x y)
for i in ${!A[@]}; do E+=" --${B[$i]} ${A[$i]}"; done
torchrun a.py --q 0 $E
====
A=(4 8)
for i in "${!A[@]}"; do E+=" --x$i ${A[i]}"; done
torchrun a.py --q 0 $E
====
X=1
if [[ $X ]]; then N=8; else N=2; fi
torchrun a.py --q 0 --tp $N
====
X=""
if [[ $X ]]; then N=8; else N=2; fi
torchrun a.py --q 0 --tp $N
====
X=1
if [ $X ]; then N=8; else N=2; fi
torchrun a.py --q 0 --tp $N
====
IFS=','; for y in 1,2,4; do E+=" $y"; done; unset IFS
torchrun a.py --q 0 --s $E
====
X="1,2,4"; IFS=','; for y in $X; do E+=" -$y"; done; unset IFS
torchrun a.py --q 0 --s $E
====
A="1 2 3"; B=$(echo $A | wc -w)
torchrun a.py --q 0 $B
====
N=$(echo 0,1,2,3 | awk -F, '{print NF}')
torchrun a.py --q 0 $N
====
export CUDA_VISIBLE_DEVICES=0,1,2,3
N=$(echo $CUDA_VISIBLE_DEVICES | tr "," "\n" | wc -l)
torchrun a.py --q 0 $N
====
A="0,1,2,3"; N=$(( $(echo $A | grep -o "," | wc -l) + 1 ))
torchrun a.py --q 0 $N
====
A=$(echo 'x' | tr a-z A-Z); B=$(echo X | tr '[:upper:]' '[:lower:]')
torchrun a.py --q 0 $A $B
====
A="${B:-"5 6"}"
torchrun a.py --q 0 $A
====
X=$(( ${A:-4} * 2 ))
torchrun a.py --q 0 $X
====
A="0,1,2,3"; C=${A//[^,]/}; N=$(( ${#C} + 1 ))
torchrun a.py --q 0 $N
====
B=(1 2 3); N=$(( ${#B[@]} * ${B[1]} ))
torchrun a.py --q 0 $N
====
X=8b; N=$(( ${X%b} * 2 ))
torchrun a.py --q 0 $N
====
A=3; N=$(( A * $(( A + 1 )) ))
torchrun a.py --q 0 $N
====
A=3; N=$(( $(expr $A + 1) * 2 ))
torchrun a.py --q 0 $N
====
A=x7; case $A in x[^0-9]) B=1;; x[!a-z]) B=2;; esac; [[ $A == [^y]* ]] && C=3
torchrun a.py --q 0 $B $C ${A%[^a-z]}
====
A=$(echo -n abc)
torchrun a.py --q 0 $A ${A/X/.} ${A//b} ${A/#a/b} ${A/%c/y}
====
A=; B=${A:-x}; C=${A-y}
torchrun a.py --q 0 $B "$C" ${A:-2}
====
A=1; (A=2; B=3); torchrun a.py --q 0 $A ${B:-4}
====
for m in 1 2 3; do for n in 1 2; do [ $n = 2 ] && break 2; done; done
torchrun a.py --q 0 $m $n
====
for m in 1 2 3; do for n in 1 2; do [ $n = 2 ] && continue 2; O+=" $m$n"; done; done
torchrun a.py --q 0 $O
====
f() { declare A=2; declare -g C=4; B=$A; }; A=1; f
torchrun a.py --q 0 $A $B $C
====
if ! torchrun a.py --q 0 1; then echo failed >&2; exit 1; fi
====
A=; if [[ $A ]]; then B=1; else B=2; fi; [ $B ] && C=3
torchrun a.py --q 0 $B $C
====
f() { echo 4; }
torchrun a.py --q 0 --x $(f)
====
f() { case $1 in a) echo 4;; b) echo 8;; esac; }
torchrun a.py --q 0 --x $(f b)
====
f() { local n=$1; echo $((n*2)); }
torchrun a.py --q 0 --x $(f 4)
====
f() { if [ "$1" = a ]; then echo "--x 1"; else echo "--y 2"; fi; }
A="$(f a) --z"
torchrun a.py --q 0 $A
====
f() { printf "%s" "$1-x"; }
torchrun a.py --q 0 --x $(f 4)
====
f() { echo a; return; echo b; }
torchrun a.py --q 0 --x $(f 4)
====
X=1
f() { X=2; echo $X; }
Y=$(f)
torchrun a.py --q 0 --x $X --y $Y
====
f() { if [ $1 -gt 3 ]; then echo bad >&2; exit 1; fi; echo $1; }
Y=$(f 2)
torchrun a.py --q 0 --y $Y
====
f() { echo "log $1" >&2; echo $1; }
Y=$(f 2)
torchrun a.py --q 0 --y $Y
====
f() { echo 1 2; }
read A B <<< "$(f)"
torchrun a.py --q 0 --y $A $B
====
f() { g $1; }; g() { echo $(( $1 * 2 )); }
Y=$(( $(f 3) + 1 ))
torchrun a.py --q 0 --y $Y `f 4`
====
M=4
TP=$([ "$M" -gt 2 ] && echo 2 || echo 1)
torchrun a.py --q 0 $TP
====
TP=$(if [ 1 = 1 ]; then echo yes; else echo no; fi)
torchrun a.py --q 0 $TP
====
OPTS=$(echo "--a 1"; echo "--b 2")
torchrun a.py --q 0 $OPTS
====
A=$(B=2; echo $B); torchrun a.py --q 0 $A ${B:-4}
====
f() { local r=""; for x in "$@"; do r+="--$x "; done; echo $r; }
torchrun a.py --q 0 $(f a b)
====
A=$(exit 1; echo x)
torchrun a.py --q 0 ${A:-2}
====
A=$(true); B=$(false || echo 3)
torchrun a.py --q 0 ${A:-2} $B
====
D=1
torchrun a.py --q 0 $([ "$D" = 1 ] && echo "--x") $([ "$D" = 2 ] && echo "--z") --y
====
M=8b
L=$(case $M in 8b) echo 32;; *) echo 1;; esac)
torchrun a.py --q 0 --l $L
====
M=8b
L=$(case $M in
  (7b) echo 3 ;;
  (8b|9b) echo $(echo 4) ;;
esac)
torchrun a.py --q 0 --l $L
====
L=$(echo case 1)
torchrun a.py --q 0 --l $L
====
L=$(echo "case x)")
torchrun a.py --q 0 --l $L
====
X=4; true && A=1; false && A=2; false || B=3; echo x >&2 && C=4
torchrun a.py --q 0 $A $B $C
====
N=1; { N=2; M=3; } | cat
{ N=4; } &
N=5 &
f() { N=6; }
f | cat
f &
for i in 7 8; do N=$i; done | cat
echo 9 | while read N; do M=9; done
if true; then N=10; fi |& cat
wait
torchrun a.py --q 0 --n $N ${M:-2}
====
N=1; A=(1); set -- v
(
  N=2; A+=(2); set -- x y
  exit 0
  torchrun b.py --q 0 $N
)
torchrun a.py --q 0 --n $N ${A[@]} $#
====
f() { ( N=4; g ) && N=5; }
g() { N=7; }
N=1
f | cat
torchrun a.py --q 0 $N
====
foo() ( N=3 )
N=1; foo
torchrun a.py --q 0 $N 2>&1 | cat
====
A=1 &&
B=2 ||
C=3
torchrun a.py --q 0 $A $B ${C:-4}
====
A=x; A=y B=$A true; A=z f=2 : ; IFS=, read -ra P <<< 1,2
torchrun a.py --q 0 $A "${B:-none}" ${f:-3} ${P[1]}
====
declare -i x=3 y; x=x+4; x+=2; y="2*3"; declare -u U=abc; declare -l L; L=XyZ
torchrun a.py --q 0 $x $y $U $L
====
x=$[ 3 * 4 ]
torchrun a.py --q 0 $x $[x+1]
====
shopt -s nocasematch
M=LLama; [ $M = llama ] && P=1
case $M in llama) K=1;; *) K=2;; esac
[[ $M == llama && $M =~ ^ll && ! $M != LLAMA ]] && N=2
shopt -u nocasematch; [[ $M == llama ]] || O=3
torchrun a.py --q 0 $N $K ${P:-4} $O
====
x=3; y=$((++x)); ((x+=5, z=x*2)); let a=x a++ b=a*2
torchrun a.py --q 0 $x $z $a $b
====
x=5; : $((x--)); w=$((x+=2))
torchrun a.py --q 0 --x=$x
====
printf -v p '%s/%03d-%s' dir 7 end; printf -v q '%s,' 1 2 3; printf -v r '%5s|%-5s|' a b
printf -v s '%d%%\t%.1f' 50 2.25
torchrun a.py --q 0 "$p" "$q" "$r" "$s" "$(printf '%s;' a b)"
====
mapfile -t L <<< $'a\nb c\nd'; readarray -t M <<X
1
2
X
torchrun a.py --q 0 "${L[@]}" ${#L[@]} ${L[-1]} ${M[1]}
====
read -ra P <<< "1 2 3"
torchrun a.py --q 0 ${P[1]} ${#P[@]}
====
set -- -n 3 -b x rest
while getopts "n:b:" o; do
case $o in n) N=$OPTARG;; b) B=$OPTARG;; esac
done
shift $((OPTIND-1))
torchrun a.py --q 0 $N $B $1
====
A={1,2}; for i in {a,b}{1..2} x{,y}; do :; done
torchrun a.py --q 0 $A "{1,2}" {x} {1..} '{a,b}' {5..1..2} a{1,{2,3}}b {08..10} {a..c} {1..2}{$A,$i}
====
case 7B in [0-9]B) N=1;; esac
case abc in a*|b*) M=2;& c) M=3;& d) P=6;; *) M=4; esac
case abc in a*) K=1;;& x*) K=2;; *c) L=4;;& *) O=5;; esac
torchrun a.py --q 0 $N $M $P $K $L $O
====
A=(a b c d e); set -- x "y z" w
f() { B=("${@:2}" "${@:1:1}"); }
f "$@"
torchrun a.py --q 0 "${A[@]:1}" - ${A[@]:2:2} - "${A[@]: -2}" "${B[@]}"
====
X=08
torchrun a.py --q 0 $((10#$X+1)) $((0x1F)) $((017)) $((16#ff))
====
A=; C=${A-none}
torchrun a.py --q 0 ${A+set} "$C" "${A:+set}"
====
case 1 in 1) A=2 ;& 2) for i in 3 4; do B+=$i; done ;& 3) if true; then C=5; fi ;; *) D=6;; esac
torchrun a.py --q 0 $A $B $C ${D:-7}
====
X=b; L=(4 5)
case $X in a) true || B=1 ;; b) N=2 ;; esac
case 7 in 1) true && M=3 || P=4 ;;& [0-9]) L[0]=0 ;& *) Q=5 ;;& *) R=6;; esac
case 1 in 1) A+=1 ;& [0-9]) A+=2 ;;& [1-3]) A+=3;; esac
for i in 1 2; do [ $i = 2 ] && S+=$i || T+=$i; done
torchrun a.py --q 0 $N ${L[@]} $Q $R $A $S $T ${M:-7} ${P:-8} ${B:-9}
====
set -- p q
B=$( set -- x "$1" y; echo $#$2 )
export C={1,2} D=a{b,c}
torchrun a.py --q 0 $# $1 $B $C $D
====
f() { exit 3; }
A=$(f; echo x); (f); (f) || B=2
torchrun a.py --q 0 ${A:-1}
====
declare -i n m=2; read n k <<< "2+3 4+5"; printf -v m "%d*3" 4; m+=1
declare -u U; read -r U <<< llama; declare -l L; printf -v L "%s-B" 7
torchrun a.py --q 0 $n $k $m $U $L
====
f() { A=1; false; }
g() { true; }
! f && B=2 || B=3
! true && C=1
! false && D=4
! { true; false; } && E=5
! (false) && F=6 || F=7
! g || G=8; ! ! true && H=9; ! C=2 || I=10
false && ! true && J=11
! [ 1 = 2 ] && K=12; ! ((0)) && L=13; ! [[ a == a ]] || M=14; ! echo x | false && N=15
false && echo x | A+=2; true || ! true | false || A+=3
if ! false; then O=16; fi; while ! true; do P=17; done
A="$A $B $C $D ${E:-no} $F ${G:-no} ${H:-no} ${I:-no} ${J:-no}"
torchrun a.py --q 0 $A $K $L ${M:-no} $N $O ${P:-no}
====
read -r A B <<< "1 2 3"
torchrun a.py --q 0 --a $A --b "$B"
====
IFS=, read -r -a A <<< "1,2,3"
torchrun a.py --q 0 ${A[0]} ${A[2]} ${#A[@]}
====
IFS=: read -r A B C <<< "1:2"
torchrun a.py --q 0 "$A" "$B" "${C:-none}"
====
let N=3+4; let N-=2; let M=N*N
torchrun a.py --q 0 $N $M
====
set -- 1 2 3 4
shift 2
torchrun a.py --q 0 $1 $# "$@"
====
set -- 1 2 3; shift
torchrun a.py --q 0 $1 $#
====
declare -i N=3; N+=4; N=N*2
torchrun a.py --q 0 $N
====
declare -l A=ABC; declare -u B=abc
torchrun a.py --q 0 $A $B
====
for i in 1 2 3; do for j in a b c; do [ $j = b ] && continue 2; A+=" $i$j"; done; done
torchrun a.py --q 0 $A
====
for i in 1 2 3; do for j in a b; do [ $i = 2 ] && break 2; A+=" $i$j"; done; done
torchrun a.py --q 0 $A
====
for i in 1 2 3 4; do [ $i = 2 ] && continue; [ $i = 4 ] && break; A+=" $i"; done
torchrun a.py --q 0 $A
====
case 7 in 1|2) A=x;; 7) A=y;& 8) B=z;; *) B=w;; esac
torchrun a.py --q 0 $A $B
====
case abc in a*) A=1;;& *c) B=2;;& b*) C=3;; *) D=4;; esac
torchrun a.py --q 0 "${A:-}" "${B:-}" "${C:-n}" "${D:-n}"
====
X=abcdefgh
torchrun a.py --q 0 ${X:2} ${X:2:3} ${X: -3} ${X: -3:2} ${X:0:1} ${#X}
====
X=a/b/c.tar.gz
torchrun a.py --q 0 ${X#*/} ${X##*/} ${X%/*} ${X%%/*} ${X%.*} ${X%%.*}
====
X=a-b-c
torchrun a.py --q 0 ${X/-/+} ${X//-/+} ${X/#a/z} ${X/%c/z} ${X/#b/z}
====
printf -v A "%03d-%s" 7 x
torchrun a.py --q 0 $A
====
printf -v A "%d" 8; printf -v B "%s,%s" 1 2
torchrun a.py --q 0 $A $B
====
mapfile -t A <<< $'1\n2\n3'
torchrun a.py --q 0 ${A[1]} ${#A[@]}
====
torchrun a.py --q 0 $((7/2)) $((7%3)) $((2**5)) $((1<<4)) $((17>>2)) \
  $((5&3)) $((5|3)) $((5^3)) $((~5))
====
torchrun a.py --q 0 $((3>2)) $((3<2)) $((3>=3)) $((3<=2)) $((3==3)) $((3!=3)) \
  $((!3)) $((0||2)) $((1&&0))
====
torchrun a.py --q 0 $((010)) $((0x10)) $((2#101)) $((-7/2)) $((-7%3)) $((1?2:3)) $((0?2:1?4:5))
====
N=5; [ $N -gt 4 ] && A=1; [ $N -ge 5 ] && B=1; [ $N -lt 5 ] && C=1; [ $N -le 5 ] && D=1
torchrun a.py --q 0 ${A:-0} ${B:-0} ${C:-0} ${D:-0}
====
N=5; (( N > 4 && N < 6 )) && A=1; (( N >= 6 || N <= 4 )) && B=1
torchrun a.py --q 0 ${A:-0} ${B:-0}
====
i=0; while [ $i -lt 3 ]; do A+=" $i"; i=$((i+1)); done
torchrun a.py --q 0 $A
====
for ((i=8;i>=1;i/=2)); do A+=" $i"; done
torchrun a.py --q 0 $A
====
for i in {1..3} {a..c}; do A+=" $i"; done
torchrun a.py --q 0 $A
====
torchrun a.py --q 0 x{1,2}y {3..1} {1..7..3} {01..03}
====
torchrun a.py --q 0 $(echo 1 2 | cut -d' ' -f2) $(basename a/b.sh .sh) $(dirname a/b) \
  $(seq 2 2 6) $(expr 3 + 4)
====
A="1 2"; B='3  4'
torchrun a.py --q 0 $A "$A" $B "$B" \
  --x\ y "a\"b" 'c"d' $'e\tf'
====
A=(); A+=(x); A+=("y z")
torchrun a.py --q 0 "${A[@]}" "${#A[@]}"
====
N=$(( $(echo 3) + 1 )); M=`echo 5`
torchrun a.py --q 0 $N $M
====
true && A=1 || A=2; false && B=1 || B=2
torchrun a.py --q 0 $A $B
====
{ A=1; B=2; } ; ( A=9 ); torchrun a.py --q 0 $A $B
====
f() { A=$1; return 0; }
g() { [ "$1" = 2 ] && return 3; true; return; }
if B=k; then C=1; fi
if read D E <<< "x y" && f 4; then F=$A; fi
if g 2; then G=bad; elif g 1 && H=$A; then I=2; else J=bad; fi
if false; then K=bad; elif L=$(echo 4); [ $L = 4 ]; then M=5; fi
if { N=6; true; } && ! g 2; then O=7; fi
if true; then P=8; elif P=bad; then Q=bad; fi
g 2 || R=9; g 1 && S=10
torchrun a.py --q 0 $A $B $C $D $E $F ${G:-no} $H $I ${J:-no} ${K:-no} $L $M $N $O $P ${Q:-no} $R $S
====
A=2
if (( A++ > 1 )); then B=$A; fi
if (( C = A * 2, C > 5 )); then D=$C; fi
if ! (( E = 0 )); then F=1; fi
while (( A-- > 0 )); do G+=$A; done
if let "H = 3"; then I=2; fi
(( ++A )) || J=3
torchrun a.py --q 0 $A $B $C $D $E $F $G $H ${I:-no} ${J:-no}
====
N=1
if false; then for N in 3 4; do :; done; declare -i N; if (( N = 7 )); then :; fi; fi
N+=2
case a in b) declare -u M ;; *) M=x ;; esac
read P Q <<< " 2"; R=$Q
torchrun a.py --q 0 $N $M "$R" $R end
====
let N=1 && A=1; let N=2 && B=1; let N=0 || C=1; let N=0 && D=1
torchrun a.py --q 0 $A $B $C ${D:-no}
====
( torchrun a.py --q 0 1 ) | cat
====
( torchrun a.py --q 0 1 2>&1 )
====
(( 1 )) && A=1; (( 2 )) && B=1; (( 0 )) || C=1
torchrun a.py --q 0 $A $B $C
""".strip().split("====\n")
PATH = os.environ.get("PATH", "")
SHOW = 'torchrun() { shift; printf "%s\\n" "$@"; }\n'


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("text", IDIOMS)
def test_words_of_an_idiom_are_those_of_bash(text):
    done = subprocess.run(
        ["bash", "-c", SHOW + text], capture_output=True, text=True, check=False, env={"PATH": PATH}
    )
    script = read_script(text, "run.sh")
    words = training_words(script)
    assert [word.text for word in words] == done.stdout.splitlines()
    assert not script.conditional_words()
    assert not any(word.unresolved or word.condition for word in words)


@pytest.mark.parametrize(
    "text",
    [
        "X=5; B=$((X++ + 1))",
        "f() { f; }\nB=$(f)",
        "f() { date; echo 4; }\nB=$(f)",
        "f() { [ $N = 1 ] && echo 4; }\nB=$(f)",
        "f() { [ -f x ] && return; echo 4; }\nB=$(f)",
        "f() { echo 4 | tee log; }\nB=$(f)",
        "read B < <(echo 1 2)\nB=${B:-7}",
        "A=1; ((B = A * N))\nB=${B:-7}",
        "B=(1 2); B[$N]=3\nB=${B[0]}",
        "X=word; B=${X^^[o-r]}",
        "X=5; A=$((X++ + X)); B=$X",
        "X=5; (( X++ > N && X++ )); B=$X",
        "if B=$N; then :; fi",
        "B=7; if f() { B=$N; }; f; then :; fi",
        "B=7; select B in a b; do break; done",
        "B=7; for i in 1 2; do [ $X = 1 ] && B=4; done",
        "B=7; [ $X = 1 ] && B=4; B+=",
        "set -- 1 2; if [ $X = 1 ]; then shift; fi; B=$#",
        "set -- 1 2; if [ $X = 1 ]; then shift; fi; B=$1",
        "B=$(if [ $X = 1 ]; then A=--b; fi; echo $A)",
        "set -- 1 2; [ $X = 1 ] && set -- 3 4; B=$1",
        "[ $X = 1 ] && : ${B:=2}",
        "A=x1; B=7; case $((A+1)) in 1) B=8;; *) B=9;; esac",
        'A=x1; read B C <<< "$((A+1)) 2"',
        "set -- $X 2; B=$#",
        "set -- $X 2 3; B=$2",
        "set -- $X 2 3; shift; B=$1",
        "set -- $X 2; B=${2:-q}",
        "if [ -f x ]; then let B=N+1; fi; B=${B:-7}",
        "B=$(echo 4 | while read X; do :; done)",
    ],
)
def test_what_is_not_known_is_neither_an_older_value_nor_a_default(text):
    (word,) = training_words(read_script(f"{text}\ntorchrun a.py --x=$B\n", "run.sh"))
    assert word.unresolved or word.condition
