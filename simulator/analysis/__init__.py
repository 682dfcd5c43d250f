"""Analysis of a step: parts, differences, sensitivities, provenance, the textbook's formulas."""
