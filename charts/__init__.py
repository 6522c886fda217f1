"""The Helm chart in `batchgrowth/` and its generators: `python -m charts generate`, `python -m charts vendor`,
`python -m charts package`.
"""
