"""Exact searches of uniform plans: exhaustive, branch-and-bound."""
