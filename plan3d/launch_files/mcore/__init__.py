"""Files in the words of Megatron-Core's configuration: ms-swift (megatron), NeMo."""
