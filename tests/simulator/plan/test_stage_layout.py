"""Both ways to write a layout are read, and what cannot be read is refused in one line."""

import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.plan.stage_layout import mtp_stage, read_layout


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("11,12,12,11", (11, 12, 12, 11)),
        ("0,2", (0, 2)),
        ("Ett|tt|ttL", (2, 2, 2)),
        ("Et*3|(tt|)*29,mL", (3, *[2] * 29, 0)),
        ("E|(t|)*4,L", (0, 1, 1, 1, 1, 0)),
        ("Et|(tt|(t|)*2)*2tmL", (1, 2, 1, 1, 2, 1, 1, 1)),
        ("EtL", (1,)),
        ("Et*3|(tt|)*29,m|L", (3, *[2] * 29, 0, 0)),
    ],
)
def test_layouts(text, layers):
    assert read_layout(text) == layers
    assert Plan.parse(f"pp={len(layers)} layers_per_stage={text}").layers_per_stage == layers
    assert Plan(layers_per_stage=text).layers_per_stage == layers
    words = f"--pipeline-model-parallel-layout={text}".removeprefix("--")
    assert Plan.parse(words).layers_per_stage == layers


def test_where_multi_token_prediction_is():
    assert [mtp_stage(text) for text in ("Et|tmL", "Et|tm|L", "Et|t|m|L", "Et|tL", "3,4")] == [
        *(0, 2, 3, 0, 0)
    ]
    assert Plan(layers_per_stage="Et|t|m|L").mtp_stage == 3
    assert Plan.parse("pp=4 layers_per_stage=Et|t|m|L mtp_stage=3").mtp_stage == 3
    written = str(Plan.parse("pp=4 layers_per_stage=Et|t|m|L"))
    assert "mtp_stage=3" in written
    assert Plan.parse(written).to_dict() == Plan.parse("pp=4 layers_per_stage=Et|t|m|L").to_dict()
    with pytest.raises(InputError, match="mtp_stage contradicts the layout, which has m in stage"):
        Plan.parse("pp=4 layers_per_stage=Et|t|m|L mtp_stage=4")


def test_numbers_in_a_sequence():
    assert read_layout((3, 2)) == read_layout(["3", "2"]) == (3, 2)
    assert read_layout(["Et*2|t", "L"]) == (2, 1)
    assert read_layout(()) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Et|x|L", "'x' is none of E t m L"),
        ("Et|tt", "one L must come last"),
        ("tt|ttL", "one E must come first"),
        ("Et|EtL", "one E must come first"),
        ("EtL|t", "one L must come last"),
        ("E(t|L", "a bracket is not closed"),
        ("Et)|L", "a bracket is closed that was not opened"),
        ("*3Et|L", "nothing before it to repeat"),
        ("Et*0|L", "must be 1 to 65536"),
        ("Et*99999999|L", "must be 1 to 65536"),
        ("Et*65537|L", "must be 1 to 65536"),
        ("E(tt)*32769|L", "must be 1 to 65536"),
        ("E((t*2)*128)*257|L", "must be 1 to 65536"),
        ("Et*3|m|tt|L", "no layer t may come after it"),
        ("Et|mtL", "no layer t may come after it"),
        ("Et|m|mL", "one m at most"),
        ("Et|mE|L", "one E must come first"),
        ("3,,4", "must be whole numbers"),
        ("3,-4", "negative number of layers"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")) as caught:
        read_layout(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["Et*65536|L", "E(tt)*32768|L", "E((t*2)*128)*256|L"])
def test_the_longest_repetitions(text):
    assert read_layout(text) == (65536, 0)
