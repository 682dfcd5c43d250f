"""Tolerances of the exact searches: what rounding alone can do to a sum."""

ROUNDING = 1e-9
"""Relative difference of steps below which two plans count as equal, and slack of a bound: the same
sums in another order."""
LAST_DIGITS = 1e-12
"""The same of two ways to build a stage, summed in the same order."""
