"""GPUs of jobs: find them, explain why there are none, and check whether they were used."""
