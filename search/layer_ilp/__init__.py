"""Integer programming over layers and operators."""
