"""Where the rows of a train batch come from."""
