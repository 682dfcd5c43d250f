"""What torchtitan made of a file: the facts that both of its versions have."""

from __future__ import annotations

from typing import Any


def facts(model: Any, dims: Any, training: Any) -> dict[str, Any]:
    """Sizes of the model and of the meshes; micro-batches are those of one accumulation step."""
    batch = training.local_batch_size * dims.dp_replicate * dims.dp_shard
    assert training.global_batch_size % batch == 0, "global batch"
    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "dp": dims.dp_replicate * dims.dp_shard,
        "replicas": dims.dp_replicate if dims.dp_shard * dims.cp > 1 else 1,
        "axes": (dims.tp, dims.cp, dims.pp, dims.ep),
        "micro_batches": training.global_batch_size // batch,
    }


def with_pipeline(found: dict[str, Any], parts: list[Any], pieces: int) -> dict[str, Any]:
    """The facts with the chunks of the first rank; a local batch is cut into `pieces`."""
    chunks = [len(part.layers) for part in parts]
    return {
        **found,
        "micro_batches": found["micro_batches"] * pieces,
        "chunks of rank 0": chunks,
    }
