"""Published runs: read as tasks and plans, and the one nearest to a question."""
