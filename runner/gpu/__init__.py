"""The GPU contract: what a job's GPUs are, why there are none, and whether they were used."""
