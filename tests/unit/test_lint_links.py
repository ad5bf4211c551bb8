"""`lint --fix` writes nothing behind a link, also if the user names the link."""

from pathlib import Path

import pytest

from gpuinfra.app.lint import lint
from gpuinfra.app.settings import Settings

COMPUTE = b"type: localdocker\nbaseDockerImage: microsoft/mmlspark:plus-gpu-0.9.9\n"
SETTINGS = Settings(json=False, yes=False, verbose=False, cloud="azure", workspace=Path(), correlation_id="")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "gpu.compute").write_bytes(COMPUTE)
    return tmp_path / "project"


def fix(folder: Path) -> list[str]:
    return [fixed.file for fixed in lint(SETTINGS, [folder], fix=True)[1].fixed]


def test_named_link_out_of_the_project_is_not_written(project: Path) -> None:
    (project / "aml_config").symlink_to("../outside")
    for folder in (project / "aml_config", project / "aml_config" / ".." / "project" / "aml_config"):
        assert fix(folder) == []
    assert (project.parent / "outside" / "gpu.compute").read_bytes() == COMPUTE


def test_named_folder_is_fixed(project: Path) -> None:
    (project.parent / "outside").rename(project / "aml_config")
    assert fix(project / "aml_config") == [str(project / "aml_config" / "gpu.compute")]


def test_project_that_the_user_names_by_a_link_is_fixed(project: Path) -> None:
    (project.parent / "outside").rename(project / "aml_config")
    link = project.parent / "link"
    link.symlink_to(project)
    assert fix(link) == [str(link / "aml_config" / "gpu.compute")]
