"""How members add their partial sums: how a group forms, its connections, and the all-reduce."""
