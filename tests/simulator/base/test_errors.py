"""Which names are taken for slips of others."""

import pytest

from plan3d.simulator.base.errors import is_one_slip


@pytest.mark.parametrize(
    "word",
    [
        *("hidden_siz", "hiden_size", "hidden__size", "hidden_sizes"),
        *("hidden_sise", "hidden_szie", "ihdden_size"),
    ],
)
def test_one_letter_is_a_slip(word: str) -> None:
    assert is_one_slip(word, "hidden_size")


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
