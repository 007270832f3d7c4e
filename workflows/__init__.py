"""Rollouts: inference engines, the rollout loop, workflows, rewards and evaluation."""
