"""Validity of plans: named rules that prune, explain and are tested."""
