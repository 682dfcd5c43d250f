"""Launch files: export, import."""
