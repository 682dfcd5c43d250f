"""Seconds of one operation: GEMMs, attention, moved bytes, collectives."""
