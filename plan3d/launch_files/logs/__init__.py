"""Logs of training runs as launch files: the settings that trainers print when they start."""
