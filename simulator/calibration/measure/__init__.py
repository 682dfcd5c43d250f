"""Measures a machine with torch and numpy alone."""
