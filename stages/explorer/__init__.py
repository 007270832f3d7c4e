"""The explorer of an rft stage: prompts, groups, evaluations on the way, its processes."""
