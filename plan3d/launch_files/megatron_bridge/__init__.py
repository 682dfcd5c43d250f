"""Recipes of Megatron-Bridge."""
