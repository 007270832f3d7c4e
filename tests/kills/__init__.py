"""`make test-kill`: kill -9 at every write point and at random times, and the table of what followed."""
