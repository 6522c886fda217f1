"""Access to the API server: reads, writes, certificates and the lease. No other folder talks to it."""
