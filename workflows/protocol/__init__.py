"""What workflows, attempts, endpoint and engines share: requests and replies, trajectories, tools, outcomes, seeds."""
