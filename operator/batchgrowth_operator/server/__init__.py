"""The only code that touches the API server: reads, writes, certificates and the lease."""
