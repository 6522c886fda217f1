"""What a run writes to disk: history, checkpoints, summary, and reading them back."""
