"""Who computes next: one driver per exchange, the run they report to, and how many workers it should have."""
