"""Policy losses by family: clipped ratios, weighted log-probs, demonstrations, preferences, mixtures."""
