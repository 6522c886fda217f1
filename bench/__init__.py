"""Benchmarks: this project's exchanges beside plain torch, on the same work in the same minutes.

`python -m bench` runs it and docs/benchmarks.md explains it. The package neither imports nor installs it.
"""
