"""What operator and trainer share: reports, status, metrics, logs, lead times, and Dask's environment."""
