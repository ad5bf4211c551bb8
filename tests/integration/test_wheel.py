"""What is built is what works: a wheel has the templates, and the program runs from it alone."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


def test_it_holds_every_template_and_every_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    found = (file for file in (ROOT / "templates").rglob("*") if file.is_file() and file.suffix != ".pyc")
    templates = {file.relative_to(ROOT).as_posix() for file in found}
    assert {"templates/starter.yaml", "templates/schedule/crontab"} <= templates
    assert templates <= names
    for package in ("gpuinfra", "provision", "runner", "sandbox", "templates"):
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "docs/"))]


def test_the_program_runs_from_it_alone(wheel: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(library)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(library)}
    work = tmp_path / "work"
    work.mkdir()

    def run(*arguments: str) -> str:
        # -P: the current folder is not on the path, so nothing of the checkout can help.
        command = [sys.executable, "-P", "-m", "gpuinfra", *arguments]
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    where = [sys.executable, "-P", "-c", "import gpuinfra; print(gpuinfra.__file__)"]
    assert subprocess.check_output(where, cwd=work, env=environment, text=True).startswith(str(library))
    run("init")
    assert (work / "gpu.yaml").read_text("utf-8") == (ROOT / "templates" / "starter.yaml").read_text("utf-8")
    assert run("validate", "gpu.yaml") == "valid  my-dsvm  gpu.yaml:8\n"
