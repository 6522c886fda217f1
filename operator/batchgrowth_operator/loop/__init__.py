"""kopf's handlers and the queues of passes, which decide when a job is reconciled."""
