"""Finds the constants of a forecast: from recorded runs, from a run so far, or by a measurement on this machine.

`batchgrowth.forecast` computes times from the constants.
"""
