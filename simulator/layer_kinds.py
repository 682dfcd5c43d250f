"""What kinds of layers has a model, and what does a rank see of them?

Legend: T tokens on a rank, h hidden, t tp, u = t with sequence parallelism else 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import collectives
from .model import Block, Model
from .network import ListedLayer, Network
from .operators import Strategy
from .precision import Recipe
from .task import Task

Value = NDArray[np.float64]


class Kind(NamedTuple):
    """A layer kind of the cost table: a block of the model, one of its ends, or a listed layer."""

    name: str
    block: Block | None = None
    listed: ListedLayer | None = None


def layer_kinds(model: Model) -> tuple[Kind, ...]:
    """Blocks, then embedding and head; 'shared' ends reuse an embedding on the same rank, and a
    'lone' end has neither embedding nor head beside it. A network's listed layers have no ends."""
    if isinstance(model, Network):
        return tuple(Kind(f"layer {i}", None, layer) for i, layer in enumerate(model.listed))
    kinds = [Kind(f"block {i}", block) for i, block in enumerate(model.kinds)]
    kinds += [Kind("embedding"), Kind("head")]
    if model.tied:
        kinds.append(Kind("shared head"))
    if model.mtp_layers:
        last = model.kinds[model.order[-1]]
        kinds += [Kind("mtp", last), Kind("shared mtp", last), Kind("lone mtp", last)]
    return tuple(kinds)


class Local(NamedTuple):
    """What the cost of any kind needs: the question, the strategies and what they imply."""

    task: Task
    recipe: Recipe
    s: Strategy
    tokens: Value
    split: Value
    """Ranks that share norms and residuals: u."""
    hidden: Value
    """Bytes of a micro-batch's hidden states."""
    vocabulary: Value
    """The vocabulary, padded to a multiple that every tensor rank shares."""
    tensor: TensorCollectives


class TensorCollectives(NamedTuple):
    """Seconds of the tensor-parallel collectives of the hidden states."""

    gather: Value
    scatter: Value
    reduce: Value


def local_strategies(task: Task, recipe: Recipe, s: Strategy) -> Local:
    """The strategies with the sizes and collectives that all kinds share."""
    tokens, cluster = s.tokens(task.sequence), task.cluster
    hidden = tokens * (task.model.hidden * recipe.activation)
    group = collectives.place(s.tp, 1, cluster)
    multiple = task.software.vocabulary_multiple * s.tp
    return Local(
        task,
        recipe,
        s,
        tokens,
        s.norm_split,
        hidden,
        np.ceil(task.model.vocabulary / multiple) * multiple,
        TensorCollectives(
            collectives.all_gather(hidden, group, cluster),
            collectives.reduce_scatter(hidden, group, cluster),
            collectives.all_reduce(hidden, group, cluster),
        ),
    )
