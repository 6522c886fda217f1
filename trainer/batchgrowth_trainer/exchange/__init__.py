"""How members add their partial sums: process groups, the all-reduce, and the rendezvous of a generation."""
