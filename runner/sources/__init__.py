"""Files of a project that describe an environment: requirements, `pyproject.toml`, `uv.lock` and Dockerfiles."""
