"""The explorer of an rft stage: prompts, groups, interim evaluations, and its processes."""
