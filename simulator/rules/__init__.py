"""Which plans are legal: named rules that prune, explain and are tested."""
