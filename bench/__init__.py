"""Measurements. Each figure is a ratio of two things timed in the same run, so it means the same on any machine."""
