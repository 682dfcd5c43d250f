"""Megatron-DeepSpeed scripts and DeepSpeed configurations."""
