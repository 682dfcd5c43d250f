"""Numbers of a ranking on either side of what it takes."""

import pytest

from plan3d.search.rank_plans import Ranking, _check_numbers
from plan3d.simulator.base.errors import InputError


@pytest.mark.parametrize(
    ("name", "refused", "accepted"),
    [
        ("top", 0, 1),
        ("headroom", 1.0, 0.999),
        ("headroom", 1.5, 0.5),
        ("headroom", -0.001, 0.0),
        ("fits_probability", 0.0, 0.001),
        ("fits_probability", 1.0, 0.999),
        ("fits_probability", 1.5, 0.5),
        ("budget", 0, 1),
        ("budget", -1, None),
    ],
)
def test_numbers_of_a_ranking_have_their_range(name, refused, accepted):
    assert _check_numbers(Ranking(**{name: accepted})) is None
    with pytest.raises(InputError, match=f"{name} must be"):
        _check_numbers(Ranking(**{name: refused}))
