"""Answers drawn: text, tables, JSON, pages. Knows no options and simulates nothing."""
