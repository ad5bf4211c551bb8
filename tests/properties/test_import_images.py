"""How `import` treats an image and a folder."""

from pathlib import Path

import pytest

from gpuinfra.app.import_project import _root
from gpuinfra.lint.fix import check_projects
from gpuinfra.workbench.project import load_project
from gpuinfra.workbench.project_import import ImportOptions, import_project

MACHINE = "type: remotedocker\naddress: h\nusername: me\n"


def project(folder: Path, image: str) -> Path:
    files = folder / "aml_config"
    files.mkdir(parents=True)
    (files / "g.compute").write_text(f"{MACHINE}baseDockerImage: {image}\n")
    (files / "g.runconfig").write_text("Target: g\nFramework: Python\n")
    return folder


@pytest.mark.parametrize("image", ["nvidia/cuda", "nvidia/cuda:11-base", "team/cuda11-train:1", "team/train:cudnn7"])
def test_import_and_lint_agree_on_gpu_images(tmp_path: Path, image: str) -> None:
    folder = project(tmp_path, image)
    assert [each.diagnostic.code for each in check_projects([folder]).findings] == ["gpu-not-passed-on"]
    assert "nvidiaDocker: true" in import_project(load_project(folder), ImportOptions()).spec_text


def test_project_can_be_named_by_its_linked_folder(tmp_path: Path) -> None:
    project(tmp_path / "real", "python:3")
    other = tmp_path / "other"
    other.mkdir()
    (other / "aml_config").symlink_to(tmp_path / "real/aml_config")
    assert _root(other / "aml_config") == other
