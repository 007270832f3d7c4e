"""How a model meets a task: inference engines, the rollout loop, single-turn workflows."""
