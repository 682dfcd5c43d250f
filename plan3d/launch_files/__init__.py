"""Launch files of frameworks: written from a plan, read back as one."""
