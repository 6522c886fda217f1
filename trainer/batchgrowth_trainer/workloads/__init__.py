"""Workloads that ship: modules with functions that return a `Workload`, for a manifest's entrypoint to name."""
