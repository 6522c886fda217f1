"""The observed state of a job and its cluster, as plain data, and what it means. Pure."""
