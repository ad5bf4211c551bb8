"""Paths inside a project."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import checked, rejection, whole

YAML_PATH = r"(?![/~])(?!(?:[^\n]*/)?\.\.(?:/|$))[^\\\x00-\x1f]+\.ya?ml"


def check_yaml_path(path: str) -> None:
    """A YAML file inside the project, with forward slashes, so that it means the same on every machine."""
    if re.fullmatch(YAML_PATH, path):
        return
    if path.startswith(("/", "~")) or ".." in path.split("/"):
        label = "expected a path inside the project, relative to its folder"
    elif "\\" in path:
        label = "expected forward slashes"
    else:
        label = "expected the path of a `.yml` or `.yaml` file"
    raise rejection(Code.BAD_PATH, "invalid path", label, "for example `aml_config/conda_dependencies.yml`")


YamlPath = Annotated[str, checked(check_yaml_path), WithJsonSchema({"type": "string", "pattern": whole(YAML_PATH)})]
