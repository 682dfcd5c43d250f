"""Profiles from measurements: measured, read, fitted, written."""
