"""Recipes of training that are Python, read from the syntax tree."""
