"""What answers requests: vLLM, transformers, scripted answers, one or several processes."""
