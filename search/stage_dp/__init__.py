"""Dynamic programming over the stages of a pipeline."""
