"""Speed, measured side by side: this project's exchanges and plain torch on the same work, in the same minutes.

`python -m bench` runs it and docs/benchmarks.md explains it. Nothing here is imported by the package or installed.
"""
