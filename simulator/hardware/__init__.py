"""What models are trained on: accelerators, clusters, their measured tables, software stacks."""
