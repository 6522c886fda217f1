"""A real Kubernetes for the tests and for `make demo`, from Go modules alone: `python -m cluster`.

Code here builds, starts and stops third-party programs; none of the product's behaviour belongs here.
"""
