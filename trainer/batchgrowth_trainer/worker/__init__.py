"""What runs inside a Dask worker: the member that trains, its control by the driver, and its graceful shutdown."""
