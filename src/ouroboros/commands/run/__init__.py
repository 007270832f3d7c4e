"""Starts runs and sweeps, and shows their progress on the terminal."""
