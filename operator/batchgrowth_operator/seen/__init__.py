"""What the operator has seen of a job and its cluster, as plain data, and what that means. Pure."""
