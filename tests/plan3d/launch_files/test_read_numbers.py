"""Numbers as readers of launch files take them from words, texts and documents."""

import ast

import pytest

from plan3d.launch_files.deepspeed import spelling as deepspeed
from plan3d.launch_files.documents import json_text, leaves
from plan3d.launch_files.launch_file import Launch
from plan3d.launch_files.logs import printed_settings as printed
from plan3d.launch_files.mcore import nemo, run
from plan3d.launch_files.megatron import meaning
from plan3d.launch_files.numbers import model_numbers
from plan3d.launch_files.recipes.values import computed
from plan3d.launch_files.shell import conditions
from plan3d.launch_files.shell.flags import Flags
from plan3d.launch_files.shell.launch_script import training_words
from plan3d.launch_files.shell.script import read_script
from plan3d.launch_files.tables import Numbers
from plan3d.launch_files.torchtitan.spelling import layers_of_chunks
from plan3d.launch_files.trainer.commands import typed
from plan3d.launch_files.yaml_frameworks import framework_of_document
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.workload.model import Model


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("[1, 2]", [1, 2]),
        ("([0]*3+[1]*2)", [0, 0, 0, 1, 1]),
        ("([0]*1+[1]*2)*2", [0, 1, 1, 0, 1, 1]),
        ("[0] + [1] + [2]", [0, 1, 2]),
        ("[1] - [0]", []),
        ("[1.0]", []),
        ("2 * [1]", []),
        ("[1", []),
        ("[0] * 99999999999", []),
    ],
)
def test_lists_of_numbers_are_worked_out(text, numbers):
    assert meaning._listed_numbers(text) == numbers


def test_layers_with_experts_of_every_spelling():
    """Every second one: with the first, or of Megatron-DeepSpeed the second; a list of all."""

    def found(layers=4, interval=0, freq="1"):
        n = Numbers(layers=layers, expert_interval=interval, layer_freq=freq)
        words = training_words(read_script(f"run a.py --moe-layer-freq {freq}\n", "run.sh"))
        flags = Flags.of(words, "run.sh")
        return "".join(str(int(kind)) for kind in meaning._sparse_layers(flags, n))

    assert found() == "1111"
    assert found(freq="2") == "1010"
    assert found(freq="3", layers=7) == "1001001"
    assert found(interval=2) == "0101"
    assert found(interval=1) == "1111"
    assert found(interval=3, layers=7) == "0010010"
    assert found(freq="'[0]*1+[1]*3'") == "0111"
    for text in ("0", "'[1]*3'", "'[2]*4'", "1.5"):
        with pytest.raises(InputError, match="a list of 4 zeros and ones"):
            found(freq=text)


@pytest.mark.parametrize(
    ("total", "stages", "less", "chunks"),
    [
        (32, 4, (0, 0), (8, 8, 8, 8)),
        (34, 4, (1, 1), (8, 9, 8, 7)),
        (33, 2, (0, 1), (17, 15)),
        (35, 3, (2, 1), (10, 12, 10)),
        (7, 1, (2, 1), (4,)),
    ],
)
def test_the_first_chunks_get_the_remainder(total, stages, less, chunks):
    """Embedding and head count as layers, which the ends give up again."""
    assert layers_of_chunks(total, stages, less) == chunks
    assert sum(chunks) == total - sum(less)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3.0),
        ("1e-5", 1e-5),
        ("1.5", 1.5),
        ("007", 7),
        ("9" * 18, int("9" * 18)),
        ("9" * 19, float("9" * 19)),
        ("9" * 39, float("9" * 39)),
        ("9" * 40, "9" * 40),
        ("nan", "nan"),
        ("inf", "inf"),
        ("a1", "a1"),
        ('{"a": 1}', {"a": 1}),
        ("[1, 2]", [1, 2]),
        ("{a", "{a"),
    ],
)
def test_words_of_flags_are_numbers_where_they_can_be(text, value):
    assert typed(text) == value
    assert type(typed(text)) is type(value)


@pytest.mark.parametrize(("length", "shown"), [(58, 60), (59, 60)])
def test_values_are_shown_up_to_sixty_characters(length, shown):
    found = json_text("x" * length)
    assert len(found) == shown
    assert found.endswith("...") is (length == 59)


@pytest.mark.parametrize(
    ("text", "end"),
    [("f(a)b", 4), ("f(a(b)c)d)", 8), ("f('(' + \")\")x", 12), ("f((", 3), ("f('\\'(')x", 8)],
)
def test_the_first_bracket_is_closed_outside_quotes(text, end):
    assert printed._closing(text) == end


def test_decimal_numbers_from_a_thousand_are_whole():
    found = printed._whole_numbers(
        {"a": 1000.0, "b": 999.0, "c": -2000.0, "d": {"e": 1e6}, "f": 1000.5}
    )
    assert found == {"a": 1000, "b": 999.0, "c": -2000, "d": {"e": 1_000_000}, "f": 1000.5}
    kinds = {name: type(value) for name, value in found.items() if name != "d"}
    assert kinds == {"a": int, "b": float, "c": int, "f": float}


def test_dataclasses_are_read_field_by_field():
    text = "Args(one=1, two='a,b', three=<Kind.X: 'x'>, four=None,\n  five=[1, 2])"
    found = printed._constructed(text, text.index("("))
    assert found == {"one": 1, "two": "a,b", "three": "x", "four": None, "five": [1, 2]}
    assert printed._constructed(text, -1) == {}


TRAINER = (
    "  Instantaneous batch size per device = {}\n"
    "  Total train batch size (w. parallel, distributed & accumulation) = {}\n"
    "  Gradient Accumulation steps = {}\n"
)


@pytest.mark.parametrize(
    ("micro", "batch", "steps", "gpus"),
    [(2, 64, 4, 8), (2, 65, 4, None), (1, 1, 1, 1), (0, 64, 4, None), (2, "1,024", 4, 128)],
)
def test_gpus_are_the_batch_over_what_one_takes(micro, batch, steps, gpus):
    assert printed._trainer_gpus(TRAINER.format(micro, batch, steps)) == gpus


@pytest.mark.parametrize(
    ("left", "kind", "right", "value"),
    [
        (7, ast.FloorDiv, 2, 3),
        (7, ast.Mod, 4, 3),
        (2, ast.Pow, 12, 4096),
        (2, ast.Pow, 0, 1),
        (-1000, ast.Pow, 2, 1_000_000),
        (1000, ast.Pow, 2, 1_000_000),
        (10**7, ast.Mult, 10**8, 10**15),
        ("ab", ast.Mult, 2, "abab"),
        ([1], ast.Add, [2], [1, 2]),
        ("a", ast.Add, "b", "ab"),
    ],
)
def test_operations_on_literals(left, kind, right, value):
    assert computed(kind, left, right) == value


@pytest.mark.parametrize(
    ("left", "kind", "right"),
    [
        (2, ast.Pow, 13),
        (2, ast.Pow, -1),
        (1001, ast.Pow, 1),
        ("a", ast.Pow, 2),
        (10**7, ast.Mult, 10**8 + 1),
        ("a", ast.Add, 1),
        ([1], ast.Add, "a"),
        ("a", ast.Sub, "a"),
        ("a" * 1000, ast.Mult, 10**9),
    ],
)
def test_operations_that_are_not_worked_out(left, kind, right):
    with pytest.raises(ValueError, match=r"not worked out|too large|too long"):
        computed(kind, left, right)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2**62", 2**62),
        ("2**63", None),
        ("1 << 62", 2**62),
        ("1 << 63", None),
        ("2**-1", None),
        ("1 << -1", None),
        ("1 >> 62", 0),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("-9223372036854775807", 1 - 2**63),
        ("A && 0", 0),
        ("A && 1", None),
        ("A || 1", 1),
        ("A || 0", None),
        ("A + 1", None),
        ("A ? 1 : 2", None),
        ("1 ? 2 : A", 2),
        ("4 / 0", None),
        ("4 % 0", None),
        ("(1", None),
        ("1 2", None),
        ("", None),
    ],
)
def test_arithmetic_of_a_shell_ends_at_63_bits(expression, value):
    """A is not known."""
    assert conditions.arithmetic(expression, lambda name: None) == value


def test_the_longest_expression_that_is_worked_out():
    """500 characters, without the spaces around them."""
    assert conditions.arithmetic(f"1{'+1' * 249} ", lambda name: None) == 250
    assert conditions.arithmetic(f"10{'+1' * 249}", lambda name: None) == 259
    assert conditions.arithmetic(f"100{'+1' * 249}", lambda name: None) is None


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("a" * 100, "a" * 100, True),
        ("a" * 101, "a" * 101, None),
        ("a", "b" * 200, False),
        ("a", "b" * 201, None),
        ("a*b+", "aab", True),
        ("a*b+c*", "aab", None),
        ("^a.c$", "abc", True),
        ("[0-9]b", "l-8b", True),
    ],
)
def test_patterns_are_tried_up_to_a_length(pattern, text, found):
    words = ["[[", text, "=~", pattern, "]]"]
    assert conditions.condition_truth(words, "?!", lambda name: None, False) is found


@pytest.mark.parametrize(("any_case", "found"), [(False, False), (True, True)])
def test_patterns_are_of_a_case_unless_a_script_says_any(any_case, found):
    words = ["[[", "Llama-8B", "=~", "8b$", "]]"]
    assert conditions.condition_truth(words, "?!", lambda name: None, any_case) is found


@pytest.mark.parametrize(
    ("stage", "pp", "overlapped", "reduces", "gathers"),
    [
        (0, 1, True, False, False),
        (1, 1, True, True, False),
        (2, 1, False, False, False),
        (3, 1, True, True, True),
        (3, 1, False, False, False),
        (1, 2, True, False, False),
    ],
)
def test_overlaps_of_zero(stage, pp, overlapped, reduces, gathers):
    n = Numbers(zero=stage, pp=pp)
    deepspeed._add_overlaps(n, overlapped)
    assert (n.overlap_grad_reduce, n.overlap_param_gather) == (reduces, gathers)


@pytest.mark.parametrize(
    ("changes", "shard"),
    [
        ({}, 100 * 400),
        ({"vocabulary": 401}, 100 * 401),
        ({"ffn": 500}, 100 * 500),
        ({"heads": 20}, 100 * 600),
        ({"dp": 3}, -(-100 * 400 // 3)),
        ({"dp": 2, "cp": 2}, 100 * 100),
    ],
)
def test_the_largest_tensor_is_the_widest_over_the_data_ranks(changes, shard):
    """100 wide, a vocabulary of 400, an MLP of 300, ten heads of 30."""
    sizes = {"hidden": 100, "vocabulary": 400, "ffn": 300, "heads": 10, "head_dim": 30}
    n = Numbers(**{**sizes, "dp": 1, "cp": 1, **changes})
    assert deepspeed._largest_shard(n) == shard


@pytest.mark.parametrize("value", [512, 511, "512", "(511, 0)"])
def test_windows_may_count_the_query_itself(value):
    """A model of 512 keys takes 511 and 512 for its own."""
    sizes = {**model_numbers(Model.preset("llama-7b")), "windows": (512, 512)}
    assert run._own_value("window_size", value, sizes) == value
    assert run._own_value("window_size", 510, sizes) == 512
    assert run._own_value("window_size", 513, sizes) == 512


@pytest.mark.parametrize(
    ("value", "own"),
    [(1, True), (2, False), ([1, 1, 1, 1], True), ([0, 1, 1, 1], False), ("text", True)],
)
def test_layers_with_experts_are_the_models_own(value, own):
    sizes = {**model_numbers(Model.preset("llama-7b")), "experts": 8, "sparse": (True,) * 4}
    found = run._own_value("moe_layer_freq", value, sizes)
    assert found == (value if own else "4 of 4 layers")


@pytest.mark.parametrize(
    ("offloads", "fraction", "percent"),
    [(False, 0.5, 0), (True, 0, 0), (True, 0.5, 50), (True, 1, 100), (True, 0.333, 33)],
)
def test_shares_of_an_optimizer_on_the_host(offloads, fraction, percent):
    n = Numbers(offloads=offloads, fraction=fraction)
    assert run._share(n, None) == percent


@pytest.mark.parametrize("fraction", [-0.1, 1.1, "half"])
def test_shares_are_from_0_to_1(fraction):
    launch = Launch("r.yaml", "nemo")
    with pytest.raises(InputError, match="a number from 0 to 1"):
        run._share(Numbers(offloads=True, fraction=fraction), launch)


@pytest.mark.parametrize(
    ("window", "keys"), [(None, 0), ([511, 0], 512), ([-1, 0], 0), ([0, 0], 1)]
)
def test_windows_of_nemo_are_left_of_a_query(window, keys):
    assert nemo._window(Numbers(window_size=window), None) == keys


def test_documents_are_read_sixteen_deep():
    """What is nested deeper is one value."""
    value = 7
    for _ in range(20):
        value = {"a": value}
    ((path, rest),) = leaves(value)
    assert path == ("a",) * 16
    assert str(rest).count("{") == 4
    assert [*leaves({"a": {"b": 1, "c": {}}, "d": [2]})] == [
        (("a", "b"), 1),
        (("a", "c"), {}),
        (("d",), [2]),
    ]


@pytest.mark.parametrize(("left", "right"), [("[", "]"), ("f(", ")"), ("A(x=", ")")])
@pytest.mark.parametrize(("depth", "read"), [(1, True), (15, True), (16, False)])
def test_printed_fields_are_read_sixteen_deep(left, right, depth, read):
    """Of lists, calls and fields inside each other."""
    text = f"{left * depth}B(y=1, z=None){right * depth}"
    found = str(printed._fields_of(ast.parse(text, mode="eval").body))
    assert ("{'y': 1}" in found) == read


@pytest.mark.parametrize(
    ("names", "reads"),
    [
        (["general", "model"], True),
        (["tokens", "general"], True),
        (["parallelism"], True),
        (["model"], False),
        (["general"], False),
        ([], False),
    ],
)
def test_two_sections_of_nanotron_make_one_of_its_files_or_its_parallelism_alone(names, reads):
    text = "".join(f"{name}:\n  some_key_of_nobody: 1\n" for name in [*names, "other"])
    if reads:
        assert framework_of_document(text, "a.yaml") == "nanotron"
    else:
        with pytest.raises(InputError, match="not two of nanotron's sections"):
            framework_of_document(text, "a.yaml")
