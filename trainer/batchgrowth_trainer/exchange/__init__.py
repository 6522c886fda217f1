"""How the partial sums of an update meet: one module per strategy, each readable alone.

A strategy never touches the arithmetic: which rows exist and in which order they are added is fixed by the plan
(`batchgrowth.shards`), so every strategy here ends with the same bits.
"""
