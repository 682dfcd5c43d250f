"""Fits the constants of a profile to measurements, with errors that the fit did not see."""
