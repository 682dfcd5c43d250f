"""Chooses plans; imports simulator, never the reverse."""
