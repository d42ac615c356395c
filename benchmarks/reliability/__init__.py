"""What runs, files and inputs survive: each module is a command that prints a table."""
