"""Makes the cluster match the plan: observe, decide purely, write once.

`handlers` and `__main__` alone import kopf; `observe`, `apply` and
`lease` alone talk to the API server. All between them is a
function of what was seen: `reconcile` and what it calls know neither clock nor network.
"""
