"""Advantages by family: group (one per response), token (one per token), steps (multi-turn agents)."""
