"""How members exchange gradients and weights: connections, groups, a strategy per exchange, and spot checks."""
