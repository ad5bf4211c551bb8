"""A job's environment: what decides it, and how it is made and found again on a target."""
