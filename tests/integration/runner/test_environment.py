"""Environments on a real engine, over a real SSH server.

No package index is reachable: the tests create their wheels, and `conda` and `micromamba` are stand-ins that print how
they were called.
"""

import io
import json
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.runner.connection.local import LocalConnection
from gpuinfra.runner.connection.port import Connection
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.docker.images import ImageFacts, find_image
from gpuinfra.runner.environment.build import Environment, ensure_environment, python_of
from gpuinfra.runner.environment.dockerfile_build import ensure_dockerfile
from gpuinfra.runner.environment.recipe import (
    BUILDING_LABEL,
    ITEMS_LABEL,
    KIND_LABEL,
    LABEL,
    PREFIX,
    PYTHON,
    make_recipe,
)
from gpuinfra.runner.errors import ConnectError, JobError
from gpuinfra.runner.sources.dockerfile import Dockerfile
from gpuinfra.runner.sources.requirements_file import read_requirements
from gpuinfra.workbench.conda import Conda, read_conda
from gpuinfra.workbench.project import read_file
from tests.lab import BUSYBOX, Lab
from tests.lab import PYTHON as PYTHON_IMAGE
from tests.sshd import eventually
from tests.variants import variant, variants
from tests.wheels import write_wheel

FILE = "aml_config/conda_dependencies.yml"
WHEEL = "wheels/greeting-1.0-py3-none-any.whl"
SECRET = "hunter2-is-secret"
# A stand-in for conda: it creates an environment from the image's Python, and stores its input.
STAND_IN = """#!/bin/sh
echo "$0 is a stand-in: $*"
while [ $# -gt 0 ]; do
    case $1 in
    --prefix) prefix=$2 ;;
    --file) file=$2 ;;
    esac
    shift
done
python -m venv --without-pip --system-site-packages "$prefix"
mkdir -p "$prefix/conda-meta"
cp "$file" "$prefix/conda-meta/history"
"""


class Recorder:
    """Records the reported progress and output."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        self.lines: list[str] = []

    def begin(self, step: str, doing: str) -> None:
        self.steps.append(("begin", doing))

    def amount(self, step: str, done: int, total: int | None) -> None:
        self.steps.append(("amount", str(done)))

    def end(self, step: str, outcome: str) -> None:
        self.steps.append(("end", outcome))

    def fail(self, step: str, reason: str) -> None:
        self.steps.append(("fail", reason))

    def note(self, text: str) -> None:
        self.steps.append(("note", text))


@pytest.fixture
def engine(lab: Lab) -> Iterator[Engine]:
    with lab.connected() as connection:
        engine = Engine(connection)
        yield engine
        engine.close()


@pytest.fixture
def seen() -> Recorder:
    return Recorder()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "wheels").mkdir(parents=True)
    (folder / "aml_config").mkdir()
    write_wheel(folder / WHEEL, "print('hello')\n")
    return folder


def conda_of(project: Path, text: str) -> Conda:
    (project / FILE).write_text(text)
    conda, diagnostics = read_conda(FILE, read_file(project / FILE))
    assert diagnostics == []
    return conda


def image(engine: Engine, name: str) -> ImageFacts:
    found = find_image(engine, name)
    assert found
    return found


def build(
    engine: Engine, project: Path, text: str, seen: Recorder, base: str = PYTHON_IMAGE, **more: Any
) -> Environment:
    conda = conda_of(project, text)
    return ensure_environment(engine, image(engine, base), conda, project, seen, seen.lines.append, **more)


def output_in(lab: Lab, environment: Environment, *words: str) -> str:
    return lab.engine.docker("run", "--rm", "--network", "none", environment.image, *words).stdout.strip()


def with_wheel(path: str = WHEEL) -> str:
    return f"dependencies:\n  - python=3.11\n  - pip:\n    - --no-index\n    - {path}\n"


def stand_in_image(lab: Lab, name: str, path: str, script: str, *settings: str) -> str:
    """Build the Python image with an additional program."""
    lines = [f"FROM {PYTHON_IMAGE}", f"COPY program {path}", f"RUN chmod 755 {path}", *settings]
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for file, text in (("Dockerfile", "\n".join(lines)), ("program", script)):
            entry = tarfile.TarInfo(file)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    context.seek(0)
    with lab.engine.api() as api:
        said = list(api.build(fileobj=context, custom_context=True, tag=name, rm=True, decode=True))
    assert "error" not in said[-1], said
    return name


def left_on(lab: Lab) -> tuple[list[str], list[str]]:
    """Return the remaining containers, and images of first stages."""
    filters = ("--filter", f"label={BUILDING_LABEL}")
    images = lab.engine.docker("image", "ls", "--all", "--quiet", *filters).stdout.split()
    return lab.engine.docker("ps", "--all", "--quiet").stdout.split(), images


@variant
def test_wheel_of_the_project_is_installed_once(lab: Lab, engine: Engine, project: Path, seen: Recorder) -> None:
    first = build(engine, project, with_wheel(), seen)

    assert (first.built, first.python) == (True, PYTHON)
    assert output_in(lab, first, "python", "-c", "import greeting") == "hello"
    assert any("Successfully installed greeting-1.0" in line for line in seen.lines)
    assert not [line for line in seen.lines if line.startswith(("Step ", " --->"))]
    assert seen.steps[0] == ("begin", f"building on {PYTHON_IMAGE}")
    assert seen.steps[-1][0] == "end"
    assert left_on(lab) == ([], [])

    again = Recorder()
    found = build(engine, project, f"# a remark\n{with_wheel()}", again)
    assert found == replace(first, built=False, seconds=found.seconds)
    assert (again.steps, again.lines) == ([], [])

    write_wheel(project / WHEEL, "print('good day')\n")
    other = build(engine, project, with_wheel(), seen)
    assert (other.built, other.tag != first.tag) == (True, True)
    assert output_in(lab, other, "python", "-c", "import greeting") == "good day"


def test_added_package_does_not_reinstall_the_others(lab: Lab, engine: Engine, project: Path, seen: Recorder) -> None:
    write_wheel(project / "wheels/other-1.0-py3-none-any.whl")
    file, options = project / "requirements.txt", "--no-index\n--find-links wheels\n"

    def requirements(*names: str, **more: Any) -> Environment:
        file.write_text(options + "\n".join(names))
        seen.lines.clear()
        packages = read_requirements(project, "requirements.txt")
        base = image(engine, PYTHON_IMAGE)
        return ensure_environment(engine, base, packages, project, seen, seen.lines.append, **more)

    def installed() -> list[str]:
        return [line.partition("installed ")[2] for line in seen.lines if line.startswith("Successfully installed")]

    first = requirements("greeting")
    assert installed() == ["greeting-1.0"]
    second = requirements("other", "greeting")
    assert installed() == ["other-1.0"], "only the new package"
    assert output_in(lab, second, "python", "-c", "import greeting, other") == "hello"
    assert requirements("greeting").image == first.image
    assert left_on(lab) == ([], [])

    requirements("other")
    assert installed() == ["other-1.0"]
    assert (
        "ModuleNotFoundError"
        in lab.engine.docker(
            "run",
            "--rm",
            "--network",
            "none",
            requirements("other").image,
            "python",
            "-c",
            "import greeting",
            check=False,
        ).stderr
    ), "an environment has no packages that its file does not name"
    write_wheel(project / WHEEL, "print('good day')\n")
    third = requirements("greeting", "other")
    assert output_in(lab, third, "python", "-c", "import greeting, other") == "good day", "a wheel has changed"
    requirements("greeting", "other", fresh=True)
    assert installed() == ["greeting-1.0 other-1.0"]


@pytest.mark.parametrize("by_dockerfile", variants(True, False))
def test_environment_begins_with_no_image_of_another_project(
    lab: Lab, engine: Engine, project: Path, seen: Recorder, by_dockerfile: bool
) -> None:
    (project / "requirements.txt").write_text("--no-index\n--find-links wheels\ngreeting")
    packages, base = read_requirements(project, "requirements.txt"), image(engine, PYTHON_IMAGE)
    recipe = make_recipe(base, packages, project)
    assert recipe
    evil = [
        f"LABEL {KIND_LABEL}={recipe.kind} {ITEMS_LABEL}={','.join(recipe.items)}",
        f"RUN python -m venv --system-site-packages {PREFIX} && touch {PREFIX}/planted",
    ]
    if by_dockerfile:
        text = "\n".join([f"FROM {PYTHON_IMAGE}", *evil])
        ensure_dockerfile(engine, Dockerfile("Dockerfile", ".", text), project, seen, seen.lines.append)
    else:
        stand_in_image(lab, "theirs", "/bin/theirs", "", *evil)
    made = ensure_environment(engine, base, packages, project, seen, seen.lines.append)
    assert "planted" not in output_in(lab, made, "ls", PREFIX)


def test_dockerfile_is_built_once_for_its_content(lab: Lab, engine: Engine, project: Path, seen: Recorder) -> None:
    def dockerfile(more: str = "", **options: Any) -> Environment:
        text = f"FROM {PYTHON_IMAGE}\nCOPY wheels/*.whl /tmp/\nRUN python -m pip install --no-index /tmp/*.whl\n{more}"
        return ensure_dockerfile(
            engine, Dockerfile("Dockerfile", ".", text), project, seen, seen.lines.append, **options
        )

    first = dockerfile()
    assert (first.built, first.python) == (True, None)
    assert output_in(lab, first, *python_of(first), "-c", "import greeting") == "hello"
    (project / "train.py").write_text("print(1)\n")
    again = dockerfile()
    assert again == replace(first, built=False, seconds=again.seconds)
    seen.lines.clear()
    second = dockerfile("USER 1000\n")
    assert second.image != first.image
    assert not [line for line in seen.lines if "Successfully installed" in line], "the engine has this layer"
    write_wheel(project / WHEEL, "print('good day')\n")
    third = dockerfile()
    assert output_in(lab, third, "python", "-c", "import greeting") == "good day"

    with pytest.raises(JobError) as caught:
        dockerfile("RUN echo about to fail && exit 7\n")
    assert (caught.value.code, "about to fail" in caught.value.note) == (Code.BUILD_FAILED, True)
    with pytest.raises(JobError, match="not prepared"):
        dockerfile("USER 2\n", may_build=False)


def test_image_keeps_the_settings_of_its_base(lab: Lab, engine: Engine, project: Path, seen: Recorder) -> None:
    settings = (
        "RUN python -m venv --without-pip --system-site-packages /opt/venv",
        "RUN echo 'print(1)' > /opt/venv/lib/python3.11/site-packages/framework.py",
        "ENV PATH=/opt/venv/bin:$PATH TORCH=yes",
        "USER 1000",
        'ENTRYPOINT ["/bin/echo", "entry"]',
        f"LABEL {KIND_LABEL}=theirs {ITEMS_LABEL}=theirs",
    )
    base = stand_in_image(lab, "own:test", "/usr/bin/anything", "", *settings)

    environment = build(engine, project, with_wheel(), seen, base)

    inspected: dict[str, Any] = json.loads(lab.engine.docker("inspect", environment.image).stdout)[0]["Config"]
    assert (inspected["User"], inspected["Entrypoint"]) == ("1000", ["/bin/echo", "entry"])
    assert inspected["Labels"] == {LABEL: environment.tag.removeprefix("gpuinfra/"), KIND_LABEL: "", ITEMS_LABEL: ""}
    assert "TORCH=yes" in inspected["Env"]
    assert "PATH=/opt/gpuinfra/environment/bin:/opt/venv/bin:" in "\n".join(inspected["Env"])
    # The image's Python reads a library in root's home.
    words = (
        "run",
        "--rm",
        "--user",
        "0",
        "--entrypoint",
        "python",
        environment.image,
        "-c",
        "import greeting, framework",
    )
    assert lab.engine.docker(*words).stdout.split() == ["hello", "1"]


def test_secrets_are_neither_in_the_image_nor_in_the_output(
    lab: Lab, engine: Engine, project: Path, seen: Recorder, tmp_path: Path
) -> None:
    spoken = STAND_IN + 'cat "$file" requirements.txt\n'
    base = stand_in_image(lab, "conda:test", "/opt/conda/bin/conda", spoken, "RUN rm -rf /tmp/*")
    text = (
        f"channels:\n  - https://conda.example/t/{SECRET}-channel/main\ndependencies:\n  - ipykernel=4.6.1\n  - pip:\n"
        f"    - --no-index\n    - --extra-index-url https://user:{SECRET}@feed.example/simple\n"
        "    - --find-links https://user:${FEED_TOKEN}@feed.example/links\n"
        f"    - https://blob.example/other-1.0-py3-none-any.whl?sr=c&sig={SECRET}%2B; sys_platform == 'win32'\n"
        f"    - {WHEEL}\n"
    )

    environment = build(engine, project, text, seen, base, build_secrets={"FEED_TOKEN": "token-of-the-feed"})

    output = "\n".join(seen.lines)
    assert "/opt/conda/bin/conda is a stand-in: env create --quiet --prefix /opt/gpuinfra/environment" in output
    assert "https://***@feed.example/simple" in output
    lab.engine.docker("save", "--output", str(tmp_path / "image.tar"), environment.image)
    image = (tmp_path / "image.tar").read_bytes()
    assert b"ipykernel=4.6.1" in image  # what conda left is there, and readable
    for secret in (SECRET, "token-of-the-feed"):
        assert secret not in output
        assert image.count(secret.encode()) == 0
        assert secret not in lab.engine.docker("history", "--no-trunc", environment.image).stdout
    assert left_on(lab) == ([], [])


@pytest.mark.parametrize(
    ("base", "text", "note"),
    [
        (
            PYTHON_IMAGE,
            "dependencies: [python=3.5.2]",
            "no conda and Python 3.11.7, and the file asks for python=3.5.2",
        ),
        pytest.param(
            PYTHON_IMAGE,
            "dependencies: [ipykernel=4.6.1, azure]",
            "no conda, and the file asks conda for ipykernel, azure",
            marks=variant,
        ),
        pytest.param(
            BUSYBOX,
            "dependencies: [pip: [numpy]]",
            "no conda and no Python, and the file asks for any Python 3",
            marks=variant,
        ),
    ],
)
def test_unsuitable_base_image_is_refused(
    lab: Lab, engine: Engine, project: Path, seen: Recorder, base: str, text: str, note: str
) -> None:
    with pytest.raises(JobError) as caught:
        build(engine, project, text, seen, base)

    assert caught.value.code == Code.BUILD_FAILED
    assert note in caught.value.note
    assert "name a base image with conda" in str(caught.value.help)
    assert seen.steps[-1] == ("fail", "the environment cannot be built")
    assert left_on(lab) == ([], [])


def test_failed_build_is_reported_and_cleaned_up(lab: Lab, engine: Engine, project: Path, seen: Recorder) -> None:
    before = {*lab.engine.docker("image", "ls", "--all", "--quiet").stdout.split()}
    text = "dependencies:\n  - pip:\n    - --no-index\n    - there-is-none==1.0\n"

    with pytest.raises(JobError) as caught:
        build(engine, project, text, seen)

    assert caught.value.code == Code.BUILD_FAILED
    assert "No matching distribution found for there-is-none==1.0" in caught.value.note
    assert "\x1b" not in caught.value.note
    assert left_on(lab) == ([], [])
    assert {*lab.engine.docker("image", "ls", "--all", "--quiet").stdout.split()} == before

    with pytest.raises(JobError, match="PrepareEnvironment"):
        build(engine, project, text, seen, may_build=False)


def test_parallel_builds_of_one_environment(lab: Lab, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", lab.engine.address)
    write_wheel(project / WHEEL, "print('twice')\n")
    conda = conda_of(project, with_wheel())
    found: list[Environment] = []

    def build_over(connection: Connection) -> None:
        engine, seen = Engine(connection), Recorder()
        base = image(engine, PYTHON_IMAGE)
        found.append(ensure_environment(engine, base, conda, project, seen, seen.lines.append))
        engine.close()

    with lab.connected() as connection:
        threads = [threading.Thread(target=build_over, args=(each,)) for each in (connection, LocalConnection())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    assert len(found) == 2
    for each in found:
        assert output_in(lab, each, "python", "-c", "import greeting") == "twice"
    assert left_on(lab) == ([], [])


@variant
def test_fresh_build_replaces_the_image(lab: Lab, engine: Engine, project: Path, seen: Recorder) -> None:
    changing = STAND_IN + 'cat /proc/sys/kernel/random/uuid > "$prefix/conda-meta/when"\n'
    base = stand_in_image(lab, "mamba:test", "/usr/bin/micromamba", changing)
    first = build(engine, project, "dependencies: [numpy]\n", seen, base)
    second = build(engine, project, "dependencies: [numpy]\n", seen, base, fresh=True)

    assert (second.built, second.tag, second.image != first.image) == (True, first.tag, True)
    assert "No such image" in lab.engine.docker("image", "inspect", first.image, check=False).stderr
    call = next(line for line in seen.lines if "stand-in" in line)
    assert call.endswith("create --yes --prefix /opt/gpuinfra/environment --channel conda-forge --file environment.yml")


@pytest.mark.parametrize("how", variants("interrupt", "cut"))
def test_stopped_build_is_cleaned_up(lab: Lab, project: Path, seen: Recorder, how: str) -> None:
    slow = "#!/bin/sh\necho 'a stand-in that takes its time'\nexec sleep 100\n"
    base = stand_in_image(lab, "slow:test", "/usr/bin/conda", slow)
    conda = conda_of(project, "dependencies: [numpy]\n")

    def stop(line: str) -> None:
        if "takes its time" not in line:
            return
        if how == "cut":
            lab.server.cut()
        else:
            raise KeyboardInterrupt

    with lab.connected() as connection:
        engine = Engine(connection)
        with pytest.raises(KeyboardInterrupt if how == "interrupt" else ConnectError):
            ensure_environment(engine, image(engine, base), conda, project, seen, stop)
        engine.close()

    assert eventually(lambda: left_on(lab)[0] == [])
    if how == "interrupt":
        assert left_on(lab)[1] == []


@variant
def test_image_without_a_file_is_the_environment(lab: Lab, engine: Engine, project: Path, seen: Recorder) -> None:
    base = image(engine, PYTHON_IMAGE)
    environment = ensure_environment(engine, base, None, project, seen, seen.lines.append)

    assert (environment.tag, environment.built, environment.python) == (PYTHON_IMAGE, False, None)
    words = ("-c", "import sys; print(sys.argv[1:], sys.version_info.major)", "two words")
    assert output_in(lab, environment, *python_of(environment), *words) == "['two words'] 3"

    bare = ensure_environment(engine, image(engine, BUSYBOX), None, project, seen, seen.lines.append)
    done = lab.engine.docker("run", "--rm", bare.image, *python_of(bare), "train.py", check=False)
    assert (done.returncode, done.stderr.strip()) == (127, "gpuinfra: the image has no Python")
