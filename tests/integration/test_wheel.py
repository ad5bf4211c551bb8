"""The built wheel has the templates, and the program runs from it alone."""

import os
import subprocess
import sys
import sysconfig
import tarfile
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


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in a separate environment, with the wheel and its dependencies, and nothing of this checkout."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    install = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, timeout=120)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path line adds the packages there, but not what their own .pth files add: the editable checkout.
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    return folder / "bin" / "gpuinfra"


def test_wheel_holds_every_template_and_only_our_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    found = (file for file in (ROOT / "templates").rglob("*") if file.is_file() and file.suffix != ".pyc")
    templates = {f"gpuinfra/{file.relative_to(ROOT).as_posix()}" for file in found}
    assert {"gpuinfra/templates/starter.yaml", "gpuinfra/templates/schedule/crontab"} <= templates
    assert templates <= names
    for package in ("provision", "remote", "runner", "sandbox"):
        assert f"gpuinfra/{package}/__init__.py" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"gpuinfra"}
    assert "gpuinfra/py.typed" in names


def test_source_distribution_holds_every_file_once(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert len(names) == len(set(names))
    assert "gpuinfra/provision/plan.py" in names
    assert not [
        name for name in names if name.split("/")[0] in {"provision", "remote", "runner", "sandbox", "templates"}
    ]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A project whose modules have the names of our folders."""
    folder = tmp_path / "work"
    (folder / "templates").mkdir(parents=True)
    for name in ("runner.py", "sandbox.py", "provision.py", "remote.py", "templates/__init__.py"):
        (folder / name).write_text("raise SystemExit('the module of the project was imported')\n", "utf-8")
    return folder


def test_program_runs_from_the_wheel_beside_modules_of_the_same_names(
    program: Path, work: Path, tmp_path: Path
) -> None:
    python, home = program.with_name("python"), tmp_path / "home"
    home.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "GPUINFRA_SANDBOX_HOME": str(tmp_path / "sandbox"),
        "GPUINFRA_CLOUD": "sandbox",
    }

    def run(*words: str | Path) -> str:
        done = subprocess.run(
            words, cwd=work, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # Python puts the current folder first on its path for both.
    assert run(python, "-c", "import gpuinfra; print(gpuinfra.__file__)").startswith(str(program.parents[1]))
    run(python, "-m", "gpuinfra", "init")
    assert run(program, "validate", "gpu.yaml").startswith("valid  my-dsvm  gpu.yaml:")
    try:
        assert "my-dsvm" in run(python, "-m", "gpuinfra", "up", "gpu.yaml", "--yes")
        crontab = run(program, "schedule", "render", "--with", "cron")
        (line,) = (line for line in crontab.splitlines() if not line.startswith("#") and line)
        assert str(program) in line
        # Cron takes five words as the time, and `\\%` as `%`. It discards the output of a successful run: show it.
        command = line.split(maxsplit=5)[5].replace("\\%", "%")
        run("sh", "-c", command)
        assert "my-dsvm" in run(program, "down", "--delete", "--yes", "my-dsvm")
    finally:
        run(program, "sandbox", "stop")
