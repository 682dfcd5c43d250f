"""How fast is this machine really? Microbenchmarks, readers of logs, and fits with their errors."""
