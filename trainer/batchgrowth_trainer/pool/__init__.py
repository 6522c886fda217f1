"""The workers as the driver sees them, the calls to them, and their cluster: connection, processes, takeover."""
