"""The drivers of training, and `run`, the state of one run, in which they record updates and events.

There are four for all exchanges: `generations` drives every exchange between workers; GatherScatter, Hogwild and
SingleProcess have drivers of their own. Each has a function `train(run, join)`, where `join` connects to a cluster: see
`run.RunState` and `scaling.Join`. A worker that has joined or is lost is found by pool/membership.py, from which
`_handle` in generations.py and gather_scatter.py hears of it.
"""
