"""Fits of a profile's constants to measurements, with held-out errors."""
