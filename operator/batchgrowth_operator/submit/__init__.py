"""`batchgrowth submit`, which acts for a user and not as the operator: a folder of code and a job, to a cluster."""
