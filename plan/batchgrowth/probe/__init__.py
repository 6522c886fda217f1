"""The critical batch of a training, from short branches of it with other batches: Merrill et al., 2025.

`branches` says which batches are tried and plans each branch, `critical` compares what they reach, and `block` writes
the part of a manifest that follows. The trainer makes the branches.
"""
