"""Validation: published runs predicted and scored."""
