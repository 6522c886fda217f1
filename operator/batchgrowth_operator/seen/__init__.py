"""The observed state of a job and its cluster as plain data, and its interpretation. Pure."""
