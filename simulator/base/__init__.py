"""What everybody uses and what knows nothing of training: errors, units, arrays, tables of text."""
