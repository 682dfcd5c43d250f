"""Pipelines of stages that may differ: what all exact searches of them share."""
