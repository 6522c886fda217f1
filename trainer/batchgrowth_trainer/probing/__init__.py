"""Makes the branches of a probe, from the newest checkpoint of a run.

What is tried and what follows from the losses is pure, and belongs to `batchgrowth.probe`.
"""
