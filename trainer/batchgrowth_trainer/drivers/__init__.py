"""The drivers of training, and `run`, the state of one run, in which they record updates and events.

There are four for all exchanges: `generations` drives every exchange between workers; GatherScatter, Hogwild and
SingleProcess have drivers of their own. Each has a function `train(run, join)`, where `join` connects to a cluster: see
`run.RunState` and `scaling.Join`. pool/membership.py finds workers that have joined or are lost; `_handle` in
generations.py and gather_scatter.py gets its events.
"""
