"""Systems of data, tensor and pipeline parallelism as constraints on plans."""
