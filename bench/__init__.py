"""Benchmarks. Each figure is a ratio of two times measured in the same run, so it is comparable across machines."""
