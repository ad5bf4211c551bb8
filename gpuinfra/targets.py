"""The two files that describe a compute target, as Azure ML Workbench had them."""

from __future__ import annotations

import re
from pathlib import Path

from gpuinfra.models.target import Target
from gpuinfra.workspace import write_text

FOLDER = "aml_config"


def write_target(workspace: Path, target: Target) -> list[Path]:
    """Write what is missing and bring the address up to date; the files that changed.

    All else in a file that is there is the user's own: lines are changed in place, and no others.
    """
    folder = workspace / FOLDER
    compute, runconfig = folder / f"{target.name}.compute", folder / f"{target.name}.runconfig"
    changed = []
    if _write(compute, compute_text(target), {"address": _address(target), "username": target.username}):
        changed.append(compute)
    if _write(runconfig, runconfig_text(target), {}):
        changed.append(runconfig)
    return changed


def _write(path: Path, text: str, ours: dict[str, str]) -> bool:
    try:
        old = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        try:
            write_text(path, text, replace=False)
        except FileExistsError:  # another run was quicker
            return _write(path, text, ours)
        return True
    new = old
    for key, value in ours.items():
        new = _with_value(new, key, value)
    if new != old:
        write_text(path, new, replace=True)
    return new != old


def _with_value(text: str, key: str, value: str) -> str:
    """The text with one line changed, or added: a remark behind the value stays, and so do all other lines."""
    line = re.compile(rf"(?m)^(\ufeff?{key}:)[^\r\n#]*?([ \t]+#[^\r\n]*)?(?=\r?$)")
    changed, found = line.subn(lambda match: f"{match[1]} {value}{match[2] or ''}", text, count=1)
    if found:
        return changed
    end = "\r\n" if "\r\n" in text else "\n"
    return f"{text}{end if text and not text.endswith(end) else ''}{key}: {value}{end}"


def compute_text(target: Target) -> str:
    """`NAME.compute`: keys in the order that `az ml computetarget attach` wrote, with the edits made."""
    fields = {"address": _address(target)}
    if target.type == "remotedocker":
        fields |= {
            "baseDockerImage": target.base_docker_image or "null",
            "nativeSharedDirectory": "~/.azureml/share/",
            "nvidiaDocker": "true" if target.nvidia_docker else "false",
            "sharedVolumes": "true",
        }
    fields |= {"type": target.type, "username": target.username}
    return "".join(f"{key}: {value}\n" for key, value in fields.items())


def runconfig_text(target: Target) -> str:
    """`NAME.runconfig`. The framework is always said: left out it would be PySpark."""
    return (
        "ArgumentVector:\n"
        "- $file\n"
        f"CondaDependenciesFile: {target.conda_dependencies}\n"
        "EnvironmentVariables: null\n"
        f"Framework: {target.framework}\n"
        "PrepareEnvironment: true\n"
        f"Target: {target.name}\n"
        "TrackedRun: true\n"
    )


def _address(target: Target) -> str:
    return target.address if target.port == 22 else f"{target.address}:{target.port}"
