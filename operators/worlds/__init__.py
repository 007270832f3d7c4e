"""Worlds of the built-in environments (workflows/environments/): their rules, and tasks drawn from a seed."""
