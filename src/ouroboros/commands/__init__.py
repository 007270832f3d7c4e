"""What a user calls: the command line, runs, pages, new projects, and files of other programs."""
