"""The sinks of a run's events: metrics, displays, logs, trackers, and the progress reports to the operator."""
