"""Every setting: type, meaning, bounds, default, and what an algorithm is made of."""
