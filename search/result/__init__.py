"""What a search returns: ranked plans, objectives, the frontier."""
