"""One optimizer step on the devices: policy, attention, packing, ZeRO."""
