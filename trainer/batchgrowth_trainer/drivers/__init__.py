"""The drivers, one per exchange, the run in which they record what happens, and the scaling of its workers."""
