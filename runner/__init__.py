"""Runs jobs on a Target and brings the results back. Never imports `provision`."""
