"""What a Dockerfile needs from the project."""

from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.parse.source import Source
from gpuinfra.runner.environment.dockerfile_build import digest_of, needed_entries
from gpuinfra.runner.project_tree import FILE, FOLDER, Entry
from gpuinfra.runner.sources.dockerfile import Dockerfile, check_builder, ignored_paths, installed_packages

TEXT = """# syntax=docker/dockerfile:1
FROM python:3.12 AS base
COPY requirements.txt \\
    # of the job
    setup.cfg /tmp/
RUN pip install -r /tmp/requirements.txt
ADD https://example.org/file /tmp/
ADD ["./data/*.csv", "/data/"]
FROM base
FROM $OTHER
COPY --from=base /a /b
COPY --chown=1:1 src/package/ /package
"""


def entry(path: str, content: str = "") -> Entry:
    return Entry(path, FILE if "." in path else FOLDER, 0o644, 1, content)


def test_only_copied_files_are_needed() -> None:
    found = Dockerfile("Dockerfile", ".", TEXT)
    assert found.bases == ["python:3.12"]
    assert found.copied == ("requirements.txt", "setup.cfg", "data/*.csv", "src/package")
    paths = [
        "data",
        "data/a.csv",
        "data/a.txt",
        "requirements.txt",
        "src",
        "src/package",
        "src/package/a.py",
        "src/b.py",
    ]
    needed = [each.path for each in needed_entries(found, map(entry, [*paths, "train.py"]), ["src/package/*.py"])]
    assert needed == ["data", "data/a.csv", "requirements.txt", "src", "src/package"]


def test_context_is_a_folder_of_the_project() -> None:
    found = Dockerfile("docker/Dockerfile", "docker/", "FROM a\nCOPY . /app\n")
    assert found.copied is None
    assert [each.path for each in needed_entries(found, map(entry, ["docker", "docker/a.txt", "b.txt"]))] == ["a.txt"]


@pytest.mark.parametrize("line", ["COPY $FILES /a", 'ADD ["."', "COPY ./ /a"])
def test_unknown_sources_need_every_file(line: str) -> None:
    found = Dockerfile("Dockerfile", ".", f"FROM a\n{line}\n")
    assert found.copied is None
    assert needed_entries(found, [entry("a.txt")])


def test_digest_follows_text_and_copied_content() -> None:
    found, other = Dockerfile("Dockerfile", ".", TEXT), Dockerfile("other", ".", TEXT + "USER 1000\n")
    first, second = [entry("requirements.txt", "1")], [entry("requirements.txt", "2")]
    assert digest_of(found, first) == digest_of(found, first)
    assert len({digest_of(found, first), digest_of(found, second), digest_of(other, first)}) == 3


def test_ignore_file_of_the_dockerfile_comes_first(tmp_path: Path) -> None:
    found = Dockerfile("Dockerfile", ".", TEXT)
    assert ignored_paths(tmp_path, found) == []
    (tmp_path / ".dockerignore").write_text("# remark\n\n*.csv\n")
    assert ignored_paths(tmp_path, found) == ["*.csv"]
    (tmp_path / "Dockerfile.dockerignore").write_text("*.txt\n")
    assert ignored_paths(tmp_path, found) == ["*.txt"]


@pytest.mark.parametrize(
    "line",
    [
        "RUN --mount=type=cache,target=/root/.cache pip install a",
        "COPY --chown=1 --link a b",
        "RUN <<EOF",
        "COPY <<-'EOF' /a",
        "ADD --checksum=sha256:1 https://example.org/a /a",
    ],
)
def test_instruction_of_buildkit_is_refused(line: str) -> None:
    with pytest.raises(Problem) as caught:
        check_builder(Source("Dockerfile", f"FROM a\n  {line}\n"))
    (found,) = caught.value.diagnostics
    assert (found.code, found.span and (found.span.line, found.span.column)) == (Code.BUILD_FAILED, (2, 3))
    check_builder(Source("Dockerfile", TEXT + f"# {line}\nRUN echo a<<b\n"))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "FROM a\nRUN pip install torch==2 'numpy>=2' && pip3 install --no-cache-dir -U b;echo c",
            "torch==2 numpy>=2 b",
        ),
        ("FROM a\nRUN apt-get install pip && \\\n  # why\n  /venv/bin/pip3.12 install \\\n  torch", "torch"),
        ('FROM a\nRUN ["python", "-m", "pip", "install", "torch"]', "torch"),
        ("FROM a\nRUN uv pip install --python 3.12 torch --index-url=https://b/cpu", "torch --index-url https://b/cpu"),
        ("FROM a\nRUN pip install -i https://b/cpu torch", "-i https://b/cpu torch"),
        ("FROM a\nRUN pip install -r all.txt -c c.txt b >/dev/null 2>&1", "-r all.txt b"),
        ("FROM a AS one\nRUN pip install b\nFROM c\nRUN pip install d", "d"),
        ("FROM a AS one\nRUN pip install b\nFROM c AS two\nRUN pip install d\nFROM one\nRUN pip install e", "b e"),
        (
            "FROM a\nRUN pip install torch==$VERSION . ./b.whl /c git+https://d/e.git#egg=f g # h",
            "git+https://d/e.git#egg=f g",
        ),
        ("FROM a\nRUN pip install --target /b torch && pip wheel torch && pip install 'c", ""),
    ],
)
def test_packages_that_pip_installs_in_the_last_stage(tmp_path: Path, text: str, lines: str) -> None:
    (tmp_path / "Dockerfile").write_text(f"{text}\n")
    found = installed_packages(tmp_path, Dockerfile("Dockerfile", ".", text))
    ordered = sorted(found.lines, key=lambda line: line.node.start)
    assert " ".join(each.text for each in ordered) == lines
    for package in found.packages:
        assert text[package.node.start : package.node.end] == package.text
