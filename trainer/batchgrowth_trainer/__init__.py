"""Do the arithmetic. torch and Dask live here."""
