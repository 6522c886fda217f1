"""A real Kubernetes for the tests and for `make demo`, from Go modules alone: `python -m cluster`.

What belongs here starts and stops other people's programs. Nothing of the project's own behaviour does.
"""
