"""What-if questions: sweep, compare."""
