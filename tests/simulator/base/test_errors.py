"""Which names are taken for slips of others, or for words of other tools."""

import pytest

from plan3d.simulator.base.errors import did_you_mean, is_one_slip


@pytest.mark.parametrize(
    "word",
    [
        *("hidden_siz", "hiden_size", "hidden__size", "hidden_sizes"),
        *("hidden_sise", "hidden_szie", "ihdden_size"),
    ],
)
def test_one_letter_is_a_slip(word: str) -> None:
    assert is_one_slip(word, "hidden_size")


def test_names_of_four_letters_are_too_short_for_a_slip() -> None:
    assert is_one_slip("heasd", "heads")
    assert not is_one_slip("haed", "head")


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("hidden_size", "hidden_size"),
        ("hiddensizes", "hidden_size"),
        ("hidden_act", "hidden_size"),
        ("d_fg", "d_ff"),
        ("", "hidden_size"),
    ],
)
def test_other_names_are_other_names(word: str, other: str) -> None:
    assert not is_one_slip(word, other)


SYNONYMS = {"tensor_parallel": "tp", "tensor_model_parallel_size": "tp", "micro_batch_size": "mb"}


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("tensor_parallel", "tp"),
        ("tensor_parallel_size", "tp"),
        ("tensor_paralel", "tp"),
        ("Tensor_Model_Parallel", "tp"),
        ("micro_batch", "mb"),
        ("sequence_par", "sequence_parallel"),
        ("t", "tp"),
        ("sequence", "sequence_parallel"),
    ],
)
def test_words_of_other_tools_are_understood(word: str, name: str) -> None:
    known = ("tp", "sequence_parallel", "mb")
    assert did_you_mean(word, known, SYNONYMS) == f"; did you mean {name}?"
