"""What is trained: models as layers with counts, read from presets, config.json and layer lists."""
