"""What is not known exactly: constants with priors, steps that update them, choices under it."""
