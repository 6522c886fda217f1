"""The sinks of a run's events: the history, the metrics, the displays, and the progress reports."""
