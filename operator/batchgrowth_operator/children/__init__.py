"""From a job to the manifests of its children, whose names depend on the job's name only."""
