"""Launch scripts of Megatron-LM."""
