"""What one layer costs under a local strategy: seconds, parameters, bytes."""
