"""Questions about plans: search, estimate, explain, timeline."""
