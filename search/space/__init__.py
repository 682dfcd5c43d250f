"""What may be chosen: axes, spaces of legal plans, problems for samplers."""
