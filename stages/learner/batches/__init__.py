"""Sources of the rows of a train batch."""
