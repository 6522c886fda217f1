"""The drivers of training, and `run`, the state of one run, in which they record updates and events.

There are four for all exchanges: `generations` drives every exchange between workers; GatherScatter, Hogwild and
SingleProcess have drivers of their own. Each has a function `train(run, join)`, where `join` connects to a cluster: see
`run.RunState` and `scaling.Join`. The `_handle` of a driver learns that a worker has joined or is lost, which
pool/membership.py finds out.
"""
