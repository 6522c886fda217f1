"""Workloads that ship: each module holds functions that return a `Workload`, to be named in a manifest's entrypoint."""
