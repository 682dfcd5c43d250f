"""Pipelines of unequal stages: spaces, tables and bounds that all exact searches share."""
