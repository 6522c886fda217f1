"""What a person at a keyboard meets: runs that start in Python, their results, and Ctrl-C."""
