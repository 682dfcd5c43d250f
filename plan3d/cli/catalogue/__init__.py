"""What is known by name: models, clusters, systems."""
