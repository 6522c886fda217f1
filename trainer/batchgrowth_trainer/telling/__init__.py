"""Who hears of a run while it trains: displays, progress reports and metrics."""
