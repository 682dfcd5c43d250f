"""Launch configurations: plans written for training frameworks, and read from their files."""
