"""The manifests of a job's children, named after the job alone, and whether a child has drifted from its manifest."""
