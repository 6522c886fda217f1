"""The manifests of a job's children; the children's names depend only on the job's name."""
