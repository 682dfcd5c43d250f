"""Searches that draw plans and see their scores: zeroth-order methods, reinforcement learning."""
