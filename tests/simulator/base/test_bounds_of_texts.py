"""The exact lengths at which texts are cut and documents are refused."""

import pytest

from plan3d.simulator.base import documents
from plan3d.simulator.base.documents import parse_json
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import one_line, shorten


@pytest.mark.parametrize("cut", [one_line, shorten])
def test_a_text_is_cut_when_it_is_longer_than_the_most(cut) -> None:
    assert cut("a" * 10, 10) == "a" * 10
    assert cut("a" * 11, 10) == "a" * 7 + "..."


def test_what_stands_behind_four_times_the_most_is_not_looked_at() -> None:
    assert one_line("a" + " " * 38 + "b" + "c" * 99, 10) == "a b"
    assert one_line("a" + " " * 39 + "b", 10) == "a"


def test_a_document_of_as_many_values_as_may_be_is_read(monkeypatch) -> None:
    monkeypatch.setattr(documents, "MOST_VALUES", 3)
    assert parse_json("[0,0,0]", "here") == [0, 0, 0]
    with pytest.raises(InputError, match="more than 3 values"):
        parse_json("[0,0,0,0]", "here")
