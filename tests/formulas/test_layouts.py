"""Which rank holds which layers: small models placed by hand.

Chunks are in model order. Looped: chunk i on rank i mod p (Narayanan et al. 2021, section 2.2.2);
V-shaped: down the ranks and up again (Qi et al. 2024, controllable memory); two-way: two copies of
the model in opposite directions (DeepSeek-AI 2024, section 3.2.1).
"""

import numpy as np
import pytest

from plan3d.simulator.pipeline.schedule import Placement
from plan3d.simulator.pipeline.schedules import SCHEDULES, placement, schedule_code
from plan3d.simulator.pipeline.stage_placement import (
    Cut,
    balanced_layers,
    chunk_layers,
    chunk_ranks,
    every_rank,
    layout,
    parameter_cut,
    rank_counts,
)

LOOPED, V, TWO_WAY = Placement.LOOPED, Placement.V_SHAPED, Placement.TWO_WAY
PLAIN = ("block 0", "embedding", "head")
TIED = (*PLAIN, "shared head")
MTP = (*PLAIN, "mtp", "shared mtp", "lone mtp")


def cut(kinds, pp, chunks, place=LOOPED, mtp_stage=0):
    """A model of equal blocks, cut into chunks."""
    return Cut((0,) * sum(chunks), kinds, pp, chunks, place, mtp_stage)


def held(*args):
    """Layers of every rank by kind, zeros left out."""
    one = cut(*args)
    return [
        {kind: n for kind, n in zip(one.kinds, row, strict=True) if n}
        for row in rank_counts(one).tolist()
    ]


def test_the_placement_of_every_schedule():
    v_shaped, two_way = ("zb-v", "dualpipe-v"), ("dualpipe", "chimera")
    for schedule in SCHEDULES:
        expected = V if schedule in v_shaped else TWO_WAY if schedule in two_way else LOOPED
        assert placement(np.array([schedule_code(schedule)])).tolist() == [expected]


def test_ranks_of_chunks():
    assert chunk_ranks(3, 6, LOOPED).tolist() == [0, 1, 2, 0, 1, 2]
    assert chunk_ranks(3, 6, V).tolist() == [0, 1, 2, 2, 1, 0]
    assert chunk_ranks(3, 3, TWO_WAY).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("layers", "chunks", "sizes"),
    [
        (12, 4, (3, 3, 3, 3)),
        # One more: a chunk between the ends, then the first, then the last, for embedding and
        # head lie there too.
        (13, 4, (3, 4, 3, 3)),
        (14, 4, (3, 4, 4, 3)),
        (15, 4, (4, 4, 4, 3)),
        (3, 4, (1, 1, 1, 0)),
        (5, 2, (3, 2)),
        (7, 1, (7,)),
    ],
)
def test_balanced_layers(layers, chunks, sizes):
    assert balanced_layers(layers, chunks) == sizes


@pytest.mark.parametrize(
    ("ends", "virtual", "place", "sizes"),
    [
        # 2 + 1 fixed at the ends, 9 for the two ranks between.
        ((2, 1), 1, LOOPED, (2, 5, 4, 1)),
        ((2, 0), 1, LOOPED, (2, 3, 4, 3)),
        ((0, 3), 1, LOOPED, (3, 3, 3, 3)),
        # Two chunks a rank: first 2 = 1 + 1, last 4 = 2 + 2, 6 over the four chunks between.
        ((2, 4), 2, LOOPED, (1, 1, 2, 2, 1, 2, 1, 2)),
        # An uneven first rank has fewest layers beside the embedding, the last beside the head.
        ((3, 3), 2, LOOPED, (1, 1, 2, 2, 2, 2, 1, 1)),
        ((1, 1), 2, LOOPED, (0, 2, 3, 1, 1, 3, 2, 0)),
        # The same in a V: the first rank holds chunks 0 and 7, the last 3 and 4.
        ((2, 4), 2, V, (1, 1, 2, 2, 2, 2, 1, 1)),
    ],
)
def test_layers_of_the_end_ranks(ends, virtual, place, sizes):
    """Megatron-LM's decoder-first/last-pipeline-num-layers, of 12 layers on 4 ranks."""
    assert chunk_layers(12, 4, virtual, *ends, (), place) == sizes


def test_layers_as_told():
    assert chunk_layers(10, 2, 2, 0, 0, (1, 2, 3, 4)) == (1, 2, 3, 4)
    # By rank: 7 = 4 + 3 on rank 0, 3 = 2 + 1 on rank 1; chunks 0, 2 (0, 3 in a V) are rank 0's.
    assert chunk_layers(10, 2, 2, 0, 0, (7, 3)) == (4, 2, 3, 1)
    assert chunk_layers(10, 2, 2, 0, 0, (7, 3), V) == (4, 2, 1, 3)
    assert chunk_layers(10, 1, 1, 9, 9, ()) == (10,)


def test_a_chunk_ends_once_its_share_of_the_parameters_is_passed():
    """nanotron: 4 layers of 10 and a head of 20 over 3 chunks, shares of 20. The running sum
    passes 20 with the third layer, 40 never: the last chunk holds the head alone."""
    assert parameter_cut([10, 10, 10, 10], 20, 3) == (3, 1, 0)
    # Shares of 15 without a head: 10, 20 > 15; 30, 40 > 30.
    assert parameter_cut([10, 10, 10, 10, 5], 0, 3) == (2, 2, 1)
    assert parameter_cut([30, 10, 10], 10, 2) == (2, 1)


def test_embedding_and_head_lie_at_the_ends():
    assert held(PLAIN, 2, (2, 1, 1, 2)) == [
        {"block 0": 3, "embedding": 1},
        {"block 0": 3, "head": 1},
    ]
    assert held(PLAIN, 1, (4,)) == [{"block 0": 4, "embedding": 1, "head": 1}]
    # Both ends of a V are on the first rank.
    assert held(PLAIN, 2, (2, 1, 1, 2), V) == [
        {"block 0": 4, "embedding": 1, "head": 1},
        {"block 0": 2},
    ]


def test_a_tied_head_reuses_the_embedding_where_both_are_on_one_rank():
    assert held(TIED, 2, (3, 3)) == [
        {"block 0": 3, "embedding": 1},
        {"block 0": 3, "head": 1},
    ]
    assert held(TIED, 1, (6,)) == [{"block 0": 6, "embedding": 1, "shared head": 1}]
    assert held(TIED, 2, (1, 1, 1, 1), V)[0] == {"block 0": 2, "embedding": 1, "shared head": 1}


def test_two_copies_are_averaged():
    """Stages of 3, 2, 1 and 0 layers: rank 0 holds stage 0 of one copy and 3 of the other."""
    ends = {"embedding": 0.5, "head": 0.5}
    assert held(PLAIN, 4, (3, 2, 1, 0), TWO_WAY) == [
        {"block 0": 1.5, **ends},
        {"block 0": 1.5},
        {"block 0": 1.5},
        {"block 0": 1.5, **ends},
    ]


def test_multi_token_prediction_lies_with_what_it_shares():
    """DeepSeek-AI 2024, section 2.2: it shares embedding and head with the model. On the last
    stage it finds the head; elsewhere it brings a copy of both."""
    assert held(MTP, 2, (2, 2))[1] == {"block 0": 2, "head": 1, "mtp": 1}
    assert held(MTP, 1, (4,)) == [{"block 0": 4, "embedding": 1, "head": 1, "shared mtp": 1}]
    three = held(MTP, 3, (2, 2, 0), LOOPED, 2)
    assert three == [
        {"block 0": 2, "embedding": 1},
        {"block 0": 2, "lone mtp": 1},
        {"head": 1},
    ]
    # On the first rank of two it finds the embedding.
    assert held(MTP, 2, (2, 2, 0, 0), LOOPED, 3)[0] == {"block 0": 2, "embedding": 1, "mtp": 1}


def test_ranks_with_equal_layers_are_one_class():
    """Ranks 1 and 2 of four hold three blocks each; they are represented by rank 1, and rank 2
    defers more weight gradients."""
    found = layout(cut(PLAIN, 4, (2, 3, 3, 2)))
    assert found.counts.tolist() == [[2, 1, 0], [3, 0, 0], [2, 0, 1]]
    assert found.rank.tolist() == [0, 1, 3]
    assert found.last_rank.tolist() == [0, 2, 3]
    assert found.ranks_alike.tolist() == [1, 2, 1]
    assert found.total_layers.tolist() == [10, 1, 1]
    # Layers of all earlier ranks: those a class waits for while the pipeline fills.
    assert found.layers_before.tolist() == [[0, 0, 0], [2, 1, 0], [8, 1, 0]]


def test_of_two_copies_the_middle_ranks_defer_most_and_none_waits_for_earlier_ones():
    found = layout(cut(PLAIN, 4, (2, 2, 2, 2), TWO_WAY))
    assert found.rank.tolist() == [0, 1]
    assert found.ranks_alike.tolist() == [2, 2]
    assert found.last_rank.tolist() == [0, 1]
    assert not found.layers_before.any()
    six = layout(cut(PLAIN, 6, (2, 2, 2, 2, 2, 2), TWO_WAY))
    assert six.rank.tolist() == [0, 1]
    assert six.last_rank.tolist() == [0, 2]


def test_every_rank_on_its_own():
    found = every_rank(cut(PLAIN, 4, (2, 3, 3, 2)))
    assert found.counts.tolist() == [[2, 1, 0], [3, 0, 0], [3, 0, 0], [2, 0, 1]]
    assert found.rank.tolist() == found.last_rank.tolist() == [0, 1, 2, 3]
    assert found.ranks_alike.tolist() == [1, 1, 1, 1]
    assert found.layers_before[:, 0].tolist() == [0, 2, 5, 8]


def test_blocks_of_several_kinds_keep_their_order():
    """One dense block, then five of experts, over three ranks with a block more in the middle."""
    kinds = ("block 0", "block 1", "embedding", "head")
    found = rank_counts(Cut((0, 1, 1, 1, 1, 1), kinds, 3, (2, 3, 1)))
    assert found.tolist() == [[1, 1, 1, 0], [0, 3, 0, 0], [0, 1, 0, 1]]
