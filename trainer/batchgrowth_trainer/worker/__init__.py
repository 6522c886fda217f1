"""What runs inside a Dask worker: the member that trains, and how its process starts, is controlled and leaves."""
