"""Makes the cluster match the plan: observe, decide purely, write once.

`process` starts it. `loop` runs kopf and the queues, and `api` talks to the API server. `job`, `children` and `seen`
are pure: they read no clock and use no network.
"""
