"""The loop from a forecast to timed runs and back: which plans to time next, and when to stop."""
