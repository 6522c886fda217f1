"""Access to the API server: reads, writes, events and the lease. No other folder talks to it."""
