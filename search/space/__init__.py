"""Search spaces: axes, spaces of legal plans, sampling problems."""
