"""Published runs, read as tasks and plans; the one nearest to a question."""
