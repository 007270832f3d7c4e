"""Small pure functions, chosen by name: advantages, losses, rewards, task filters."""
