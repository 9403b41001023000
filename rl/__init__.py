"""Learned policies. Empty until there are some: the hand-written ones are in `runtime/policies`."""
