"""Starting runs and sweeps, and what the terminal shows of them."""
