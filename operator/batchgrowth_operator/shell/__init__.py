"""kopf's handlers and the queue of passes: when a job is looked at."""
