"""The one training loop (DeepSpeed ZeRO) that every algorithm shares."""
