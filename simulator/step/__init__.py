"""Layers added up to a step: stages, synchronisation, memory. Seconds of kinds meet only here."""
