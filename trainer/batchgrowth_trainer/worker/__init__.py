"""Code that runs in a Dask worker, and code that other processes share: addresses, certificates, logs, streams."""
