"""Traces of profilers: what the GPUs of a job did in a step, part by part."""
