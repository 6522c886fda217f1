"""`make demo`: the example job on a cluster, watched until it is done."""
