"""kopf's handlers and patches, the queues that decide when a job has its next pass, the pass, and the metrics."""
