"""Pipelines on their own: schedules, their closed forms, and their simulation event by event."""
