"""Catalogues of models, clusters, stacks and systems; help, completion and textbook formulas."""
