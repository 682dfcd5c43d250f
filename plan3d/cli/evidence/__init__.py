"""How right predictions are: validate, calibrate."""
