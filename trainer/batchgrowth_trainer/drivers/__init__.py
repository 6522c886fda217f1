"""The drivers, and the run in which they record what happens.

`generations` drives every exchange between workers; GatherScatter, Hogwild and SingleProcess have drivers of their own.
"""
