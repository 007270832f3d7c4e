"""Advantages by family: group (one number a response), token (a number a token), steps (agents that act in turns)."""
