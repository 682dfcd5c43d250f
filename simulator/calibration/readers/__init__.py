"""Reads measurements of other programs: nccl-tests, traces, training logs."""
