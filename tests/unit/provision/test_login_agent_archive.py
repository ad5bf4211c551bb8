"""The guest agent as it is sent: complete, reproducible, and run by Python as one file."""

import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpuinfra.provision.resources import cloud_init as agent_archive


def modules() -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(agent_archive.agent_archive())) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_archive_has_every_module_that_the_agent_imports() -> None:
    found = modules()
    for text in found.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpuinfra"):
                path = (node.module or "").replace(".", "/")
                assert f"{path}.py" in found or all(f"{path}/{each.name}.py" in found for each in node.names)


def test_archive_depends_on_the_modules_only(monkeypatch: pytest.MonkeyPatch) -> None:
    first = agent_archive.agent_archive()
    monkeypatch.setattr("time.time", lambda: 2_000_000_000.0)
    contents = list(agent_archive._contents())
    monkeypatch.setattr(agent_archive, "_contents", lambda: iter(contents[::-1]))
    assert agent_archive.agent_archive() == first


def test_python_runs_the_archive_without_the_project(tmp_path: Path) -> None:
    file = tmp_path / "agent.pyz"
    file.write_bytes(agent_archive.agent_archive())
    words = [sys.executable, "-IS", str(file), "--help"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--config" in done.stdout
