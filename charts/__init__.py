"""The Helm chart in `batchgrowth/`, and what is made for it: `python -m charts generate`, `python -m charts vendor`."""
