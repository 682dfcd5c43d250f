"""Uncertainty: constants with priors, their posterior from timed steps, choices under it."""
