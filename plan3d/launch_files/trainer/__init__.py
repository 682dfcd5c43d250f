"""Hugging Face's Trainer and what is built on it: LLaMA-Factory, axolotl, ms-swift, accelerate."""
