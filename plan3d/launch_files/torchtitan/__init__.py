"""Configurations of torchtitan."""
