"""Shell scripts: words, conditions and flags, read and written."""
