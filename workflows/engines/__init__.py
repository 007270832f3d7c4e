"""Rollout engines: vLLM, transformers, scripted answers, in one or several processes."""
