"""The files of a run: history, checkpoints and summary, written and read back."""
