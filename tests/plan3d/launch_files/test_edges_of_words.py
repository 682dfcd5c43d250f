"""Numbers, words and expressions of launch files on either side of where their meaning changes."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import numpy as np
import pytest
from rule_questions import task

from plan3d.launch_files.documents import Document
from plan3d.launch_files.logs import printed_settings
from plan3d.launch_files.megatron import spelling as megatron
from plan3d.launch_files.model_settings import settings_from_numbers
from plan3d.launch_files.recipes import library
from plan3d.launch_files.recipes.evaluation import Session
from plan3d.launch_files.recipes.expressions import Scope
from plan3d.launch_files.recipes.values import LONGEST_LIST, Open, computed, method_value
from plan3d.launch_files.registry import EXPORTERS
from plan3d.launch_files.shell import commands, inner_commands, variables
from plan3d.launch_files.shell.conditions import _combined, _number
from plan3d.launch_files.shell.examples import examples_in
from plan3d.launch_files.shell.expansions import _basename, _cat, _dirname, _seq
from plan3d.launch_files.shell.flags import Flags
from plan3d.launch_files.shell.launch_script import other_commands, training_words
from plan3d.launch_files.shell.lexer import _Lexer, _unescaped
from plan3d.launch_files.shell.script import read_script
from plan3d.launch_files.shell.words import Part, Word
from plan3d.launch_files.tables import Numbers
from plan3d.launch_files.torchtitan import spelling as torchtitan
from plan3d.launch_files.trainer.commands import _split, typed
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.plan import Plan, resolve

# Rules of the Trainer

TRAINER = [
    ("fsdp2", "fsdp2-sharding", "zero=1", ("zero=0", "zero=2", "zero=3")),
    ("fsdp2", "fsdp2-master-weights", "precision=bf16 zero=0",
     ("precision=bf16 zero=2", "precision=amp zero=0", "precision=pure-bf16 zero=0")),
    ("fsdp2", "fsdp2-mixed", "precision=amp zero=2",
     ("precision=amp zero=0", "precision=bf16 zero=2")),
    ("fsdp2", "fsdp2-offload", "zero=3 offload_optimizer=100 offload_parameters=0",
     ("zero=3 offload_optimizer=100 offload_parameters=100", "zero=2", "zero=3")),
    ("fsdp2", "fsdp2-offload", "zero=3 offload_optimizer=50 offload_parameters=50", ("zero=3",)),
    ("fsdp2", "fsdp2-offload", "zero=2 offload_optimizer=100 offload_parameters=100", ("zero=2",)),
    ("fsdp2", "fsdp2-overlap", "zero=3 overlap_grad_reduce=0 overlap_param_gather=1",
     ("zero=3 overlap_grad_reduce=1 overlap_param_gather=1",)),
    ("fsdp2", "fsdp2-overlap", "zero=3 overlap_grad_reduce=1 overlap_param_gather=0",
     ("zero=0 overlap_grad_reduce=1 overlap_param_gather=0",)),
    ("fsdp2", "fsdp2-overlap", "zero=0 overlap_grad_reduce=1 overlap_param_gather=1",
     ("tp=8 pp=8 dp=1 overlap_grad_reduce=0 overlap_param_gather=0",
      "tp=8 pp=8 dp=1 overlap_grad_reduce=1 overlap_param_gather=1")),
    ("fsdp2", "fsdp2-overlap", "tp=8 pp=4 dp=2 zero=0 overlap_grad_reduce=0 overlap_param_gather=0",
     ("tp=8 pp=4 dp=2 zero=0 overlap_grad_reduce=1 overlap_param_gather=0",)),
    ("fsdp2", "fsdp2-overlap", "zero=1 overlap_grad_reduce=1 overlap_param_gather=0",
     ("zero=1 overlap_grad_reduce=1 overlap_param_gather=1",)),
    ("fsdp2", "fsdp2-overlap", "tp=8 pp=4 dp=2 zero=2 overlap_grad_reduce=1 overlap_param_gather=0",
     ("tp=8 pp=4 dp=2 zero=2 overlap_grad_reduce=1 overlap_param_gather=1",)),
    ("fsdp2", "trainer-tp", "tp=2", ("tp=1",)),
    ("fsdp2", "trainer-activations", "offload_activations=10", ("offload_activations=0",)),
    ("deepspeed", "trainer-recompute", "recompute=selective", ("recompute=full", "recompute=none")),
    ("deepspeed", "trainer-hybrid", "zero=3 shard=2", ("zero=3",)),
]  # fmt: skip


@pytest.mark.parametrize(("form", "name", "refused", "accepted"), TRAINER)
def test_rules_of_the_trainer_part_their_neighbours(form, name, refused, accepted):
    question = task()
    (rule,) = [r for r in EXPORTERS["accelerate"].form(form).all_rules if r.name == name]

    def keeps(text: str) -> bool:
        return bool(np.all(rule.ok(resolve(Plan.parse(text), question.gpus).take(0), question)))

    assert not keeps(refused)
    assert [keeps(text) for text in accepted] == [True] * len(accepted)


# Stages


@pytest.mark.parametrize(
    ("total", "stages", "less", "layers"),
    [
        (12, 4, (0, 0), (3, 3, 3, 3)),
        (12, 4, (1, 1), (2, 3, 3, 2)),
        (14, 4, (1, 1), (3, 4, 3, 2)),
        (3, 3, (1, 0), (0, 1, 1)),
    ],
)
def test_layers_of_chunks(total, stages, less, layers):
    assert torchtitan.layers_of_chunks(total, stages, less) == layers


@pytest.mark.parametrize(
    ("points", "pp", "layers", "chunks"),
    [
        (("layers.1",), 2, 2, (1, 1)),
        (("layers.3", "layers.4", "layers.9"), 2, 10, (3, 1, 5, 1)),
        (("layers.3", "layers.3"), 3, 10, None),
        (("layers.0",), 2, 10, None),
        (("layers.10",), 2, 10, None),
        (("layers.3", "layers.4"), 2, 10, None),
        (("norm",), 2, 10, None),
    ],
)
def test_points_between_stages_rise(points, pp, layers, chunks):
    """Every part has a layer, and there are as many parts on each stage."""
    job = Document({}, "job.toml")
    n = Numbers(split_points=list(points), stage_modules=None, pp=pp)
    if chunks:
        assert torchtitan._chunks_between(job, n, layers) == chunks
    else:
        with pytest.raises(InputError, match="must be rising layers"):
            torchtitan._chunks_between(job, n, layers)


@pytest.mark.parametrize(
    ("pp", "virtual", "layers", "first", "last", "are_flags"),
    [
        (4, 1, 10, 2, 2, True),  # 6 layers of two ranks between
        (4, 1, 10, 1, 0, True),  # 9 of three
        (4, 1, 10, 0, 1, True),
        (4, 1, 11, 1, 0, False),  # 10 of three
        (4, 1, 12, 0, 0, False),
        (4, 2, 16, 2, 2, True),  # 12 of two ranks of two chunks
        (4, 2, 16, 1, 3, False),  # half a chunk
        (4, 2, 14, 2, 2, False),  # 10 of four chunks
        (2, 1, 10, 4, 6, True),  # nothing between
    ],
)
def test_ends_are_flags_where_all_between_them_is_even(pp, virtual, layers, first, last, are_flags):
    n = Numbers(pp=pp, virtual_stages=virtual, layers=layers, first_stage_layers=first,
                last_stage_layers=last)  # fmt: skip
    assert megatron.ends_are_flags(n) is are_flags


@pytest.mark.parametrize(
    ("fsdp", "strategy", "overlap", "buckets"),
    [(True, 3, 1, False), (True, 2, 1, True), (False, 3, 1, True), (False, 0, 0, False)],
)
def test_gradients_are_in_buckets_below_whole_sharding(fsdp, strategy, overlap, buckets):
    n = Numbers(fsdp=fsdp, sharding_strategy=strategy, overlap_grad_reduce=overlap)
    assert megatron.has_buckets(n) is buckets


# Shell


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("3", "1 2 3"),
        ("2 4", "2 3 4"),
        ("1 2 6", "1 3 5"),
        ("5 -2 1", "5 3 1"),
        ("3 1", ""),
        ("1 0 3", ""),
        ("12345678 12345679", "12345678 12345679"),
        ("123456789 123456790", None),
        ("1 1 1 1", None),
        ("", None),
        ("x", None),
        ("10001", None),
    ],
)
def test_sequences_of_numbers(words, numbers):
    """Up to eight digits."""
    found = _seq(words.split(), None)
    assert (None if found is None else " ".join(found.split())) == numbers


def test_the_longest_sequence_has_ten_thousand_numbers():
    assert len(_seq(["10000"], None).split()) == 10_000


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("7", 7), ("010", 8), ("08", ValueError), ("0x1f", 31), ("16#ff", 255),
     ("10#$RANK", 12), ("2#", None)],
)  # fmt: skip
def test_whole_numbers_of_arithmetic(text, value):
    if value is ValueError:
        with pytest.raises(ValueError, match="invalid literal"):
            _number(text, lambda name: None)
    else:
        assert _number(text, {"RANK": 12}.get) == value


@pytest.mark.parametrize(
    ("symbol", "left", "right", "value"),
    [
        ("<<", 1, 62, 2**62),
        ("<<", 1, 63, None),
        ("<<", 1, -1, None),
        ("<<", 1, 0, 1),
        ("**", 2, 10, 1024),
        ("&&", 0, None, 0),
        ("&&", 2, 3, 1),
        ("||", 5, None, 1),
        ("||", 0, None, None),
        ("+", None, 1, None),
        ("<", 2, 2, 0),
        ("<=", 2, 2, 1),
    ],
)
def test_operators_of_arithmetic(symbol, left, right, value):
    assert _combined(symbol, left, right) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9" * 18, int("9" * 18)),
        ("9" * 19, 1e19),
        ("1.5", 1.5),
        ("-3", -3.0),
        ("[1, 2]", [1, 2]),
        ("[1, 2", "[1, 2"),
        ("nan", "nan"),
        ("1" * 40, "1" * 40),
        ("a4", "a4"),
    ],
)
def test_words_of_an_override_have_the_types_of_their_values(text, value):
    """Whole up to 18 digits, numbers up to 39 characters."""
    found = typed(text)
    assert found == value
    assert type(found) is type(value)


def flags(text: str) -> Flags:
    return Flags.of(training_words(read_script(text, "run.sh")), "run.sh")


def test_whole_numbers_of_nine_digits_are_literal():
    found = flags(
        "torchrun pretrain_gpt.py --a 999999999 --b 1000000000 --c x --d 1 2 --num-layers 2"
    )
    sizes = [found.literal_size(f"--{name}") for name in "abcde"]
    assert sizes == [999_999_999, 0, 0, 0, 0]


def test_a_flag_takes_one_value_and_words_behind_it_only_where_they_are_open():
    found = flags("torchrun pretrain_gpt.py --num-layers 2 $MORE --hidden-size 8 9 --seq-length 4")
    assert found.text("--num-layers") == "2"
    assert found.text("--seq-length") == "4"
    with pytest.raises(InputError, match="has 2 values; it takes one"):
        found.text("--hidden-size")
    missing = flags("torchrun pretrain_gpt.py --num-layers $MORE --x 1")
    with pytest.raises(InputError, match="has no value in this file"):
        missing.text("--num-layers")


@pytest.mark.parametrize(
    ("words", "name", "folder"),
    [("a/b.yaml", "b.yaml", "a"), ("/b.yaml", "b.yaml", "/"), ("b", "b", "."),
     ("/a/b/", "b", "/a")],
)  # fmt: skip
def test_names_and_folders_of_paths(words, name, folder):
    assert (_basename([words], None), _dirname([words], None)) == (name, folder)
    assert _basename(["a/b.yaml", ".yaml"], None) == "b"
    assert _basename(["a", "b", "c"], None) is None


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("./run.sh 8B \\\n  4", [("8B", "4")]),
        ("# ./run.sh 8B \\\n#   4\n# ./run.sh 70B", [("8B", "4"), ("70B",)]),
        ("./run.sh 8B \\", []),
        ("./run.sh 8B \\\n  4 \\", []),
    ],
)
def test_a_call_of_several_lines_ends_in_the_text(text, calls):
    assert [found.arguments for found in examples_in(text, "README.md", "run.sh")] == calls


@pytest.mark.parametrize(("length", "found"), [(4000, 1), (4001, 0)])
def test_calls_of_four_thousand_characters_are_examples(length, found):
    call = "./run.sh 8B "
    text = call + "x" * (length - len(call))
    assert len(examples_in(text, "README.md", "run.sh")) == found


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("if [ $X = 8b ]; then N=1; elif [ $X = 70b ]; then N=2; fi", {"X": ["8b", "70b"]}),
        ("[ 8b = $X ] && N=1", {"X": ["8b"]}),
        ("[[ $X == a && b == $Y ]] && N=1", {"X": ["a"], "Y": ["b"]}),
        ("[ $X -eq 4 ] && N=1", {"X": ["4"]}),
        ("[ $X != a ] && N=1", {"X": ["a"]}),
        ("[ $X -gt 4 ] && N=1", {}),
        ("[ $X = ] && N=1", {}),
        ("[ = $X ] && N=1", {}),
        ("if test 8b = $X; then N=1; fi", {"X": ["8b"]}),
        ("if test $X =; then N=1; fi", {}),
        ("if = $X; then N=1; fi", {}),
        ("[ $X = $Y ] && N=1", {}),
        ("case $X in a|b) N=1;; c*) N=2;; esac", {"X": ["a", "b"]}),
        ("for X in a b; do torchrun a.py --x $X; done", {"X": ["a", "b"]}),
    ],
)
def test_words_that_a_variable_is_compared_with_are_its_choices(text, choices):
    assert read_script(f"{text}\n", "run.sh").variables.choices == choices


@pytest.mark.parametrize(("depth", "is_read"), [(20, True), (21, False)])
def test_commands_are_nested_twenty_deep(depth, is_read):
    text = "case 1 in 1) " * depth + "N=2" + ";; esac" * depth
    text += "\ntorchrun a.py --x=$N\n"
    if is_read:
        assert [word.text for word in training_words(read_script(text, "run.sh"))] == ["--x=2"]
    else:
        with pytest.raises(InputError, match="nested too deeply"):
            read_script(text, "run.sh")


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("for i in 1 2 3; do :; done", 9),  # two words a turn, and one for the turn itself
        ("case 1 in 1) : a;; esac", 3),
        ("( : )", 2),
    ],
)
def test_steps_of_a_script_are_counted(text, steps, monkeypatch):
    monkeypatch.setattr(commands, "MOST_TOKENS", steps)
    read_script(text, "run.sh")
    monkeypatch.setattr(commands, "MOST_TOKENS", steps - 1)
    with pytest.raises(InputError, match="nested too deeply"):
        read_script(text, "run.sh")


def stated(**numbers: object) -> Numbers:
    usual = {"multi_latent": True, "rope_type": "yarn", "yarn_factor": 40.0, "mscale": 0.7,
             "mscale_all_dim": 0.5, "llama3_scaling": False, "rope_factor": 8.0, "experts": 0,
             "rotary_percent": 1.0, "norm_epsilon": 1e-5, "squared_relu": False}  # fmt: skip
    return Numbers(**{**usual, **numbers})


@pytest.mark.parametrize(
    ("numbers", "scaling", "factor"),
    [
        ({}, "yarn", 40.0),
        ({"yarn_factor": 1.0}, "", None),
        ({"yarn_factor": 1.5}, "yarn", 1.5),
        ({"multi_latent": False}, "", None),
        ({"rope_type": "rope", "llama3_scaling": True}, "llama3", 8.0),
        ({"yarn_factor": 1.0, "llama3_scaling": True}, "llama3", 8.0),
    ],
)
def test_positions_are_scaled_by_a_factor_above_one(numbers, scaling, factor):
    found = settings_from_numbers(stated(**numbers))
    assert found.rope_scaling == scaling
    assert dict(found.rope_numbers).get("factor") == factor


@pytest.mark.parametrize(("number", "counted"), [(0, 0), (1, 1), (20, 20), (21, 21), (22, 21)])
def test_functions_without_an_end_are_counted_up_to_twenty_one(number, counted):
    text = "".join(f"f{i}() {{\n" for i in range(number))
    assert read_script(f"{text}torchrun a.py\n", "run.sh").unclosed == counted


@pytest.mark.parametrize(("number", "counted"), [(0, 0), (1, 1), (21, 21), (22, 21)])
def test_arithmetic_without_an_end_is_counted_up_to_twenty_one(number, counted):
    text = "(( " * number
    lexer = _Lexer(text, 1)
    lexer.tokens()
    assert lexer.unclosed == counted


@pytest.mark.parametrize(("number", "is_followed"), [(20, True), (21, False)])
def test_loops_are_followed_behind_twenty_functions_without_an_end(number, is_followed):
    text = "".join(f"f{i}() {{\n" for i in range(number))
    text += "for i in 1 2; do N=$i; done\ntorchrun a.py --x=$N\n"
    (word,) = training_words(read_script(text, "run.sh"))
    assert (word.text == "--x=2") is is_followed


@pytest.mark.parametrize("body", ["{ false; return; }", "{ false\nreturn\n}"])
@pytest.mark.parametrize(("word", "value"), [("", "2"), (" 0", "1"), (" 3", "2"), (" $1", None)])
def test_a_function_returns_a_number_or_the_status_of_its_last_command(body, word, value):
    """Also where the word is the last of the function."""
    body = body.replace("return", f"return{word}")
    text = f"f() {body}\nif f $Y; then N=1; else N=2; fi\ntorchrun a.py --x=$N\n"
    (found,) = training_words(read_script(text, "run.sh"))
    if value is None:
        assert found.condition
    else:
        assert (found.text, found.condition) == (f"--x={value}", "")


@pytest.mark.parametrize("end", ["return", "M=", "echo a > b", "export M="])
def test_a_shell_of_its_own_may_end_with_any_word(end):
    script = read_script(f"N=4\n( N=5; {end} )\ntorchrun b.py --x=$N\n", "run.sh")
    assert [word.text for word in training_words(script)] == ["--x=4"]


@pytest.mark.parametrize(
    ("word", "number", "first", "last"),
    [
        ("{1..10000}", 10_000, "1", "10000"),
        ("{1..10001}", 1, "{1..10001}", "{1..10001}"),
        ("{1..100}{1..100}", 10_000, "11", "100100"),
        ("{1..100}{1..101}", 1, "{1..100}{1..101}", "{1..100}{1..101}"),
        ("{01..100}", 100, "001", "100"),
        ("{1..010}", 10, "001", "010"),
        ("{-05..5}", 11, "-05", "005"),
        ("{0..10}", 11, "0", "10"),
    ],
)
def test_words_with_braces(word, number, first, last):
    """At most 10,000; numbers are as wide as the widest end where one begins with a zero."""
    script = read_script(f"torchrun a.py --x {word}\n", "run.sh")
    found = [one.text for one in training_words(script)][1:]
    assert (len(found), found[0], found[-1]) == (number, first, last)


@pytest.mark.parametrize(
    ("text", "value"),
    [(r"\x41", "A"), (r"\u00e9", "\u00e9"), (r"\U0010ffff", "\U0010ffff"), (r"\U00110000", "?"),
     (r"\101", "A"), (r"\n", "\n"), (r"\q", r"\q")],
)  # fmt: skip
def test_characters_by_number(text, value):
    """Up to the last one of Unicode."""
    assert _unescaped(text) == value


def test_other_commands_are_what_is_behind_their_programs():
    text = "torchrun a.py --x 1\ntorchrun --nnodes 2 b.py --y 2\necho 3\npython -m c --z 4\n"
    found = [[word.text for word in words] for words in other_commands(read_script(text, "run.sh"))]
    assert found[0] == ["--y", "2"]


@pytest.mark.parametrize(("most", "started"), [(3, 2), (2, 2), (1, 1)])
def test_scripts_that_are_started_are_counted(most, started, monkeypatch):
    monkeypatch.setattr(inner_commands, "MOST_STARTED", most)
    assert len(read_script("bash a.sh\nbash b.sh\n", "run.sh").started) == started


@pytest.mark.parametrize(("most", "is_read"), [(6, True), (5, False)])
def test_characters_of_expansions_are_counted_with_a_space_each(most, is_read, monkeypatch):
    monkeypatch.setattr(variables, "MOST_EXPANDED", most)
    text = "A=(aa bb)\ntorchrun a.py --x ${A[@]}\n"
    if is_read:
        assert [w.text for w in training_words(read_script(text, "run.sh"))] == ["--x", "aa", "bb"]
    else:
        with pytest.raises(InputError, match="variables hold over 5 characters"):
            training_words(read_script(text, "run.sh"))


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("-v N 4", "4"),
        ("-v N %d 4", "4"),
        ("-v N", "3"),
        ("-v", "3"),
        ("4", "3"),
    ],
)
def test_text_is_printed_into_a_variable_where_there_is_any(words, value):
    script = read_script(f"N=3\nprintf {words}\ntorchrun a.py --x=$N\n", "run.sh")
    assert [word.text for word in training_words(script)] == [f"--x={value}"]


@pytest.mark.parametrize(("depth", "known"), [(10, True), (11, False)])
def test_outputs_of_functions_are_followed_ten_deep(depth, known):
    text = "f0() { echo 4; }\n"
    text += "".join(f"f{i}() {{ echo $(f{i - 1}); }}\n" for i in range(1, depth))
    text += f"A=$(f{depth - 1})\ntorchrun a.py --x=$A\n"
    (word,) = training_words(read_script(text, "run.sh"))
    assert (word.text == "--x=4") is known
    assert bool(word.unresolved) is not known


@pytest.mark.parametrize(("most", "known"), [(7, True), (6, False)])
def test_steps_of_an_output_are_counted(most, known, monkeypatch):
    """Seven, those of the call and of the function that it runs."""
    monkeypatch.setattr(commands, "MOST_TOKENS", most)
    text = "f() { echo 4; }; A=$(f); torchrun a.py --x=$A\n"
    (word,) = training_words(read_script(text, "run.sh"))
    assert (word.text == "--x=4") is known


# Recipes in Python


def value(text: str, given: dict[str, str] | None = None, **names: object) -> object:
    session = Session(given or {}, None, library)
    return session.value("r.py", ast.parse(text, mode="eval").body, Scope(dict(names)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("os.environ.get('N')", None),
        ("os.environ.get('N', 5)", 5),
        ("os.getenv('M', 5)", 7),
        ("max(1, 3, 2)", 3),
        ("min([4, 2])", 2),
        ("len('abc')", 3),
        ("abs(-2)", 2),
        ("int('8') * 2", 16),
        ("isinstance(3, int)", True),
        ("copy.deepcopy([1, 2])", [1, 2]),
    ],
)
def test_functions_of_python_itself(text, expected):
    assert value(text, {"M": "7"}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-x", -3),
        ("-1.5", -1.5),
        ("not x", False),
        ("not 0", True),
        ("{**d, 'b': 2}", {"a": 1, "b": 2}),
        ("{'a': 5, **d}", {"a": 1}),
        ("[i * 2 for i in l]", [2, 4]),
        ("l[1]", 2),
        ("d['a'] + x", 4),
        ("x if x > 3 else 7", 7),
        ("x if x >= 3 else 7", 3),
        ("1 < x < 5", True),
        ("1 < x < 3", False),
        ("x and 0 or 'y'", "y"),
        ("f'{x}-{1.5}'", "3-1.5"),
        ("2 ** 12", 4096),
        ("1000 ** 2", 10**6),
        ("'ab' * 1000", "ab" * 1000),
        ("(1, 2)", (1, 2)),
    ],
)
def test_expressions_of_literals(text, expected):
    assert value(text, x=3, d={"a": 1}, l=[1, 2]) == expected


@pytest.mark.parametrize(
    "text",
    ["-y", "[i for i in l for j in l]", "[i for i in l if i]", "[i for i in x]", "l[9]", "2 ** 13",
     "1001 ** 2", "2 ** -1", "'ab' * 1001", "f'{y}'", "f'{x:3}'", "x + y", "1 / 0",
     "10 ** 12 * 1001"],
)  # fmt: skip
def test_expressions_that_are_left_open(text):
    assert isinstance(value(text, x=3, l=[1, 2]), Open)


@pytest.mark.parametrize(
    ("left", "right", "is_computed"),
    [(10**15 - 1, 1, True), (10**15, 1, False), ("x" * 1999, "y", True), ("x" * 2000, "y", False)],
)
def test_values_have_a_largest_size(left, right, is_computed):
    if is_computed:
        assert computed(ast.Add, left, right) == left + right
    else:
        with pytest.raises(ValueError, match="too l"):
            computed(ast.Add, left, right)


@pytest.mark.parametrize(
    ("value", "method", "arguments", "expected"),
    [
        ("a b", "split", [], ["a", "b"]),
        ("a{}-{}", "format", [1, "x"], "a1-x"),
        ("a{}", "format", [1.5], ValueError),
        ("a{0:3}", "format", [1], ValueError),
        ("a{0[0]}", "format", ["x"], ValueError),
        ("x" * 2000, "upper", [], "X" * 2000),
        ("x" * 2001, "upper", [], ValueError),
        ("x", "zfill", [3], ValueError),
        ("x", "startswith", [Open("y")], ValueError),
        ({"a": 1}, "get", ["a"], 1),
        ({"a": 1}, "get", ["b", 2], 2),
        ({"a": 1}, "get", [], ValueError),
        ({"a": 1}, "get", ["a", 1, 2], ValueError),
        ([1], "append", [2], None),
        ([1], "append", [2, 3], ValueError),
        ([0] * LONGEST_LIST, "extend", [[1]], None),
        ([0] * (LONGEST_LIST + 1), "extend", [[1]], ValueError),
        (3, "bit_length", [], ValueError),
    ],
)
def test_methods_of_literals(value, method, arguments, expected):
    if expected is ValueError:
        with pytest.raises(ValueError, match=r"not worked out|not stated|too long"):
            method_value(value, method, arguments, {})
    else:
        assert method_value(value, method, arguments, {}) == expected


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("axolotl train", ("axolotl", 1)),
        ("x/swift sft --model a", ("ms-swift", 1)),
        ("axolotl", None),
        ("axolotl preprocess", None),
        ("python -m axolotl.cli.train", ("axolotl", 2)),
        ("python src/train.py a.yaml", ("llama-factory", 1)),
        ("python src/train.py", None),
        ("python sft.py --per_device_train_batch_size 1", ("sft", 1)),
        ("python a.py --per_device_train_batch_size 1 --stage sft", ("llama-factory", 1)),
        ("python a.py", None),
    ],
)
def test_the_tool_of_a_command_and_the_word_before_its_arguments(words, found):
    assert _split([Word((Part(word, 1),)) for word in words.split()]) == found


@pytest.mark.parametrize(("length", "is_read"), [(2000, True), (2001, False)])
def test_files_of_two_thousand_characters_are_read_into_words(length, is_read):
    read = SimpleNamespace(file_text={"a": "x" * (length - 1) + "\n"}.get)
    assert _cat(["a"], read) == ("x" * (length - 1) if is_read else None)
    assert _cat(["b"], read) is None
    assert _cat(["a", "b"], read) is None


# Logs


def test_settings_that_are_cut_off_are_read_to_their_end():
    """No line follows that would end them."""
    text = "[NeMo I 2026] \ntrainer:\n  devices: 8\nmodel:\n  seq_length: 512\n"
    printed = printed_settings.nemo(text, 0)
    assert (printed[0], "seq_length: 512" in printed[2]) == ("nemo", True)
    ended = printed_settings.nemo(f"{text}\n[NeMo I 2026] more\n  other: 1\n", 0)
    assert "seq_length: 512" in ended[2]
    assert "other" not in ended[2]
    arguments = "  num_layers ...... 2\n  hidden_size ..... 64\n"
    for ending in ("", "----- end of arguments ----\n  seq_length ...... 9\n"):
        found = printed_settings.megatron(arguments + ending, 0)
        assert "--num-layers '2'" in found[2]
        assert ("seq-length" in found[2]) is False
