"""Benchmarks that compare side by side in one run; each prints one line of JSON last."""
