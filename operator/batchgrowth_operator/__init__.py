"""Makes the cluster match the plan: observe, decide purely, write once.

`shell` runs kopf and the queues, `server` talks to the API server, `decide` and `seen` are pure: they know neither
clock nor network.
"""
