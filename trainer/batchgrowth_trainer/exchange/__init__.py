"""How members exchange gradients and weights: connections, groups, the all-reduce, and one strategy per exchange."""
