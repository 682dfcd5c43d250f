"""Measurements: validation of predictions against them, and calibration by them."""
