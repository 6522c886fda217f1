"""How the partial sums of the workers meet: process groups, the all-reduce, and where members find each other."""
