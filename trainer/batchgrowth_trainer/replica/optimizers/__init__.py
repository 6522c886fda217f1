"""torch's optimizer steps over one flat vector: one optimizer, one module."""
