"""Published runs, how they are read, and how far predictions are off."""
