"""A project from others whose `aml_config` is a link to a folder of the user's own files."""

from pathlib import Path

import pytest

from gpuinfra.views.diagnostics import render
from gpuinfra.workbench.project import load_project

PRIVATE = "machine example.com login me password hunter2\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "home" / "project"
    (root / ".azureml").mkdir(parents=True)
    (root / "aml_config").symlink_to("..")
    return root


@pytest.mark.parametrize("name", [".netrc", "hosts.yml", "project/link.yml"])
def test_lines_of_private_files_are_not_shown(project: Path, name: str) -> None:
    (project.parent / ".netrc").write_text(PRIVATE)
    (project.parent / "hosts.yml").write_text(PRIVATE)
    (project / "link.yml").symlink_to("../.netrc")
    (project / ".azureml/x.runconfig").write_text(f"CondaDependenciesFile: aml_config/{name}\nTarget: local\n")
    found = load_project(project)
    assert found.unreadable == {f"aml_config/{name}"}
    shown = "\n".join(str(render(each)) for each in found.diagnostics)
    assert name in shown
    assert "hunter2" not in shown


def test_shared_conda_file_is_read(project: Path) -> None:
    (project.parent / "conda_dependencies.yml").write_text("dependencies: [python=3.11]\n")
    found = load_project(project)
    assert found.condas["aml_config/conda_dependencies.yml"].python == (3, 11)
    assert not found.diagnostics
