"""Configurations of nanotron."""
