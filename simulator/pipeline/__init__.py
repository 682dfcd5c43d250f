"""Pipelines: schedules, their closed forms, placements of layers, and the event simulation."""
