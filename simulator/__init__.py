"""Predicts time and memory of training steps; knows nothing of search."""
