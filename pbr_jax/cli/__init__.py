"""The command line: a file for each family of commands."""
