"""The policies that need no torch."""
