"""Small pure functions, selected by name: advantages, losses, rewards, task filters."""
