"""A job's environment: one image, built once from the base image and `conda_dependencies.yml`."""
