"""Access to the API server: reads, writes, events, certificates and the lease. No other folder talks to it."""
