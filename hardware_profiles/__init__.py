"""One TOML file a machine: every number with its unit, its source and whether it was measured."""
