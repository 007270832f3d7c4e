"""The training loop (DeepSpeed ZeRO) shared by all algorithms."""
