"""A job's environment: the base image and `conda_dependencies.yml` become one image, made once."""
