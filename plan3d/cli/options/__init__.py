"""Options of the command line: one table, and how their values are read."""
