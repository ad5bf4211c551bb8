"""The packages of requirements files, `pyproject.toml` and `uv.lock`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.runner.environment.recipe import Recipe, make_recipe, python_range
from gpuinfra.runner.sources.pyproject import read_pyproject
from gpuinfra.runner.sources.requirements_file import read_requirements
from gpuinfra.workbench.conda import Conda
from tests.real import program
from tests.unit.runner.environment.test_recipe import Image
from tests.wheels import write_wheel

PROJECT = '[project]\nname = "demo"\nversion = "0.1"\n'


def lines(conda: Conda, project: Path) -> list[str]:
    """Return the lines that pip reads."""
    recipe = make_recipe(Image(), conda, project)
    assert isinstance(recipe, Recipe)
    content = recipe.files["requirements.txt"]
    assert isinstance(content, bytes)
    return content.decode().splitlines()


def of_pyproject(project: Path, text: str) -> Conda:
    (project / "pyproject.toml").write_text(PROJECT + text)
    return read_pyproject(project, "pyproject.toml")


def test_requirements_are_read_as_pip_does(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("included==1\n")
    text = "# remark\n--extra-index-url https://feed.example/simple\r\nnumpy==2.0 \\\n    --hash=sha256:aa \\\n"
    text += "    --hash=sha256:bb\n\n  torch ; sys_platform == 'linux'  # why\n-r more.txt\n"
    (tmp_path / "requirements.txt").write_text(text)
    conda = read_requirements(tmp_path, "requirements.txt")
    assert lines(conda, tmp_path) == [
        "--extra-index-url https://feed.example/simple",
        "numpy==2.0 --hash=sha256:aa --hash=sha256:bb",
        "torch ; sys_platform == 'linux'",
        "included==1",
    ]
    (torch,) = [each for each in conda.packages if each.name == "torch"]
    span = conda.document.span(torch.node)
    assert (span.line, span.column, span.text.strip()) == (7, 3, "torch ; sys_platform == 'linux'  # why")


def test_problem_of_requirements_has_its_place(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\nscipy=1.0\n")
    with pytest.raises(Problem) as caught:
        make_recipe(Image(), read_requirements(tmp_path, "requirements.txt"), tmp_path)
    (found,) = caught.value.diagnostics
    assert (found.code, found.span and found.span.line, found.help) == (Code.BAD_REQUIREMENT, 2, "write `scipy==1.0`")
    (tmp_path / "requirements.txt").write_text("a ${TOKEN}\n")
    with pytest.raises(Problem, match="not a build secret"):
        make_recipe(Image(), read_requirements(tmp_path, "requirements.txt"), tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_unreadable_requirements_are_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is None:
        (tmp_path / "requirements.txt").symlink_to("/etc/hostname")
    else:
        (tmp_path / "requirements.txt").write_bytes(content)
    with pytest.raises(Problem, match="cannot be read"):
        read_requirements(tmp_path, "requirements.txt")


def test_pyproject_without_lock(tmp_path: Path) -> None:
    (tmp_path / "own.whl").touch()
    write_wheel(tmp_path / "own-1.0-py3-none-any.whl")
    found = of_pyproject(
        tmp_path,
        """requires-python = ">=3.10, <3.13"
dependencies = ["numpy>=2", "torch==2.7.1", "own", "tool[fast]"]
[tool.uv.sources]
torch = { index = "pytorch" }
own = { path = "own-1.0-py3-none-any.whl" }
tool = { git = "https://example.org/tool", tag = "v1" }
[[tool.uv.index]]
name = "pytorch"
url = "https://download.pytorch.org/whl/cu126"
explicit = true
""",
    )
    numpy, torch, own, tool, index = lines(found, tmp_path)
    assert (numpy, torch) == ("numpy>=2", "torch==2.7.1")
    assert index == "--extra-index-url https://download.pytorch.org/whl/cu126"
    assert own.endswith("/own-1.0-py3-none-any.whl")
    assert tool == "tool[fast] @ git+https://example.org/tool@v1"
    versions = python_range(found)
    assert (versions.first, versions.end, versions.is_understood) == (3_010_000, 3_013_000, True)


@pytest.mark.parametrize(
    ("source", "is_used"),
    [
        ('{ index = "pytorch" }', True),
        ('[{ index = "pytorch", marker = "sys_platform == \'linux\'" }, { index = "other" }]', True),
        ("{ index = \"pytorch\", marker = \"python_version < '3.12' and sys_platform != 'linux'\" }", True),
        ('[{ index = "pytorch", marker = "sys_platform != \'linux\'" }]', False),
        ('[{ index = "pytorch", extra = "cpu" }, { index = "other", extra = "cu126" }]', False),
        ('{ index = "other" }', False),
    ],
)
def test_explicit_index_counts_only_for_packages_on_linux(tmp_path: Path, source: str, is_used: bool) -> None:
    index = '[[tool.uv.index]]\nname = "pytorch"\nurl = "https://download.pytorch.org/whl/cpu"\n'
    text = f'dependencies = ["torch"]\n[tool.uv.sources]\ntorch = {source}\n{index}'
    option = "--extra-index-url https://download.pytorch.org/whl/cpu"
    assert (option in lines(of_pyproject(tmp_path, f"{text}explicit = true\n"), tmp_path)) is is_used
    assert option in lines(of_pyproject(tmp_path, text), tmp_path), "another index counts for all packages"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no dependencies"),
        ('dynamic = ["dependencies"]\n', "no dependencies"),
        ('dependencies = ["a"]\n[tool.uv.sources]\na = { workspace = true }\n', "invalid requirement"),
        ("dependencies = [\n", "cannot be read"),
    ],
)
def test_pyproject_that_does_not_say_is_refused(tmp_path: Path, text: str, said: str) -> None:
    if text:
        with pytest.raises(Problem, match=said):
            of_pyproject(tmp_path, text)
    else:
        (tmp_path / "pyproject.toml").write_text("[tool.poetry]\n")
        with pytest.raises(Problem) as caught:
            read_pyproject(tmp_path, "pyproject.toml")
        assert "poetry export" in str(caught.value.diagnostics[0].help)


def test_lock_of_uv_gives_exact_versions(tmp_path: Path) -> None:
    """The lock is made by the real uv, from a folder of wheels."""
    for name, *needs in (
        ("alpha-1.0", "beta[fast]>=1", "delta ; sys_platform == 'linux'"),
        ("beta-1.5", "gamma ; python_version < '3.9'", "epsilon ; extra == 'fast'"),
        ("gamma-2.0",), ("delta-1", "gamma ; platform_machine == 'arm64'"), ("epsilon-1", "alpha"), ("unused-1",),
    ):  # fmt: skip
        write_wheel(tmp_path / "wheels" / f"{name}-py3-none-any.whl", needs=needs)
    text = 'requires-python = ">=3.8"\ndependencies = ["alpha>=1"]\n[dependency-groups]\ndev = ["unused"]\n'
    text += '[tool.uv]\nno-index = true\nfind-links = ["wheels"]\n'
    (tmp_path / "pyproject.toml").write_text(PROJECT + text)
    variables = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache")}
    command = [program("uv", "uv"), "lock", "--offline", "--quiet"]
    subprocess.run(command, cwd=tmp_path, env=variables, check=True, timeout=60)

    found = read_pyproject(tmp_path, "pyproject.toml")
    assert found.path == "pyproject.toml"
    no_index, links, *packages = lines(found, tmp_path)
    assert (no_index, links.partition(" ")[0]) == ("--no-index", "--find-links")
    gamma = "((sys_platform == 'linux') and (platform_machine == 'arm64')) or (python_full_version < '3.9')"
    assert packages == [
        "alpha==1.0",
        "beta==1.5",
        "delta==1 ; sys_platform == 'linux'",
        "epsilon==1",
        f"gamma==2.0 ; {gamma}",
    ]

    shutil.copy(tmp_path / "pyproject.toml", tmp_path / "before")
    with pytest.raises(Problem) as caught:
        of_pyproject(tmp_path, text.replace("alpha>=1", "alpha>=0.5"))
    (problem,) = caught.value.diagnostics
    assert (problem.label, problem.help) == ("it is older than `pyproject.toml`: alpha", "run `uv lock` in the project")


def test_locked_packages_of_registries_have_their_hashes(tmp_path: Path) -> None:
    lock = """[[package]]
name = "demo"
version = "0.1"
source = { virtual = "." }
dependencies = [{ name = "torch" }]
[package.metadata]
requires-dist = [{ name = "torch", specifier = "==2.7.1" }]
[[package]]
name = "torch"
version = "2.7.1+cu126"
source = { registry = "https://download.pytorch.org/whl/cu126" }
wheels = [{ url = "https://download.pytorch.org/a.whl", hash = "sha256:aa" }]
"""
    (tmp_path / "uv.lock").write_text(lock)
    found = of_pyproject(tmp_path, 'dependencies = ["torch==2.7.1"]\n')
    assert lines(found, tmp_path) == [
        "--extra-index-url https://download.pytorch.org/whl/cu126",
        "torch==2.7.1+cu126 --hash=sha256:aa",
    ]
    (tmp_path / "uv.lock").write_text(
        lock.replace('registry = "https://download.pytorch.org/whl/cu126"', 'directory = "x"')
    )
    with pytest.raises(Problem) as caught:
        read_pyproject(tmp_path, "pyproject.toml")
    (problem,) = caught.value.diagnostics
    assert (problem.summary, problem.span and problem.span.line) == ("unusable lock file", 9)
