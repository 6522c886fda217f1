"""Where the constants of a forecast come from: runs that were recorded, or a measurement on this machine.

What follows from the constants is pure, and belongs to `batchgrowth.forecast`.
"""
