"""Optimizer steps over flat vectors, most of them torch's: one optimizer, one module."""
