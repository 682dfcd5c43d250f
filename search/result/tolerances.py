"""Tolerances of the exact searches: what rounding alone can do to a sum."""

ROUNDING = 1e-9
"""Relative difference of steps below which two plans count as equal, and slack of a bound: the same
sums in another order."""
TOLERANCE = 1e-3
"""Gap within which a search that bounds its answer is complete: far below the error of any
prediction."""
LAST_DIGITS = 1e-12
"""The same of two ways to build a stage, summed in the same order."""
