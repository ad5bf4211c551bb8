"""The recipe of an environment's image."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.target import Target
from gpuinfra.parse.document import read_document
from gpuinfra.runner.environment.builder import note_for
from gpuinfra.runner.environment.recipe import Recipe, make_recipe
from gpuinfra.runner.job_spec import GpuNeed, JobSpec
from gpuinfra.templates import read_template
from gpuinfra.workbench.conda import Conda, read_conda

FILE = "aml_config/conda_dependencies.yml"
ARTICLE = """\
name: project_environment
channels: [conda-forge]
dependencies:
  # Python of the Workbench
  - python=3.5.2
  - ipykernel=4.6.1
  - pip:
    - --index-url https://azuremldownloads.azureedge.net/python-repository/preview
    - --extra-index-url https://pypi.python.org/simple
    - azure-ml-api-sdk==0.1.0a11  # of the service
    - https://cntk.ai/PythonWheel/GPU/cntk-2.1-cp35-cp35m-linux_x86_64.whl
    - pywin32; sys_platform == 'win32'
"""


@dataclass(frozen=True)
class Image:
    id: str = "sha256:" + "1" * 64
    name: str = "microsoft/mmlspark:plus-gpu-0.9.9"


def conda_of(text: str, path: str = FILE) -> Conda:
    return read_conda(path, read_document(path, text.encode()))[0]


def made(text: str, project: Path = Path("nowhere"), base: Image = Image(), **variables: str) -> Recipe:
    found = make_recipe(base, conda_of(text), project, variables)
    assert found is not None
    return found


def text_of(found: Recipe, name: str) -> str:
    content = found.files[name]
    assert isinstance(content, bytes)
    return content.decode()


NO_LABELS = 'gpuinfra.environment.kind="" gpuinfra.environment.items=""'


def test_dockerfile_copies_only_the_environment() -> None:
    found = made(ARTICLE)
    assert found.dockerfile("0ab1") == (
        f"""\
FROM {Image().id} AS made
LABEL gpuinfra.building=0ab1
USER 0
COPY context/ /opt/gpuinfra-build/
RUN ["/bin/sh", "/opt/gpuinfra-build/environment.sh"]
FROM {Image().id}
LABEL gpuinfra.environment={found.tag.removeprefix("gpuinfra/")} {NO_LABELS}
COPY --from=made /opt/gpuinfra/environment/ /opt/gpuinfra/environment/
"""
        "ENV PATH=/opt/gpuinfra/environment/bin:$PATH PYSPARK_PYTHON=/opt/gpuinfra/environment/bin/python "
        "PYSPARK_DRIVER_PYTHON=/opt/gpuinfra/environment/bin/python\n"
    )


def test_files_for_the_articles_example() -> None:
    found = made(ARTICLE)
    assert json.loads(text_of(found, "environment.yml")) == {
        "channels": ["conda-forge"],
        "dependencies": ["python=3.5.2", "ipykernel=4.6.1", "pip"],
    }
    assert text_of(found, "requirements.txt").splitlines() == [
        "--index-url https://azuremldownloads.azureedge.net/python-repository/preview",
        "--extra-index-url https://pypi.python.org/simple",
        "azure-ml-api-sdk==0.1.0a11",
        "https://cntk.ai/PythonWheel/GPU/cntk-2.1-cp35-cp35m-linux_x86_64.whl",
        "pywin32; sys_platform == 'win32'",
    ]
    assert text_of(found, "settings").splitlines() == [
        "prefix=/opt/gpuinfra/environment",
        "python_text=python=3.5.2",
        "python_first=3005002",
        "python_end=3005003",
        "python_names='python python3 python3.5'",
        "python_is_known=yes",
        "only_conda_has=ipykernel",
        "has_channels=yes",
    ]
    assert text_of(found, "environment.sh") == read_template("environment.sh")
    assert (text_of(found, "secrets"), found.secrets) == ("", ())


@pytest.mark.parametrize(
    "text", ["name: x\n", "dependencies:\n", "dependencies: [python]\n", "dependencies: [pip: []]\n"]
)
def test_file_without_packages_needs_no_image(text: str) -> None:
    assert make_recipe(Image(), conda_of(text), Path("nowhere")) is None
    assert make_recipe(Image(), None, Path("nowhere")) is None


@pytest.mark.parametrize("text", ["dependencies: [python=3.5.2]\n", "dependencies: [pip: [numpy]]\n"])
def test_python_version_or_package_needs_an_image(text: str) -> None:
    assert "only_conda_has=''" in text_of(made(text), "settings")


@pytest.mark.parametrize(
    ("line", "tools", "needs"),
    [
        ("pip", "", "''"),
        ("pip==9.0.3", "pip==9.0.3\n", "''"),
        ("pip=9.0", "pip==9.0.*\n", "''"),
        ("pip>=19", "pip>=19\n", "''"),
        ("pip=9.0=py35_0", "", "pip"),
        ("numpy", "", "numpy"),
        ("https://host/numpy-1.0-0.tar.bz2", "", "numpy"),
    ],
)
def test_pips_own_tools_do_not_need_conda(line: str, tools: str, needs: str) -> None:
    found = made(f"dependencies:\n  - {line}\n  - pip: [keras]\n")
    assert text_of(found, "tools.txt") == tools
    assert f"only_conda_has={needs}\n" in text_of(found, "settings")


def test_tag_depends_on_everything_that_is_installed() -> None:
    tag = made(ARTICLE).tag
    same = [
        made(ARTICLE),
        made(ARTICLE.replace("  # Python of the Workbench\n", "").replace("\n", "\r\n")),
        made(ARTICLE.replace("project_environment", "other")),
        made(ARTICLE, base=Image(name="another/name")),
    ]
    assert {each.tag for each in same} == {tag}
    others = [
        made(ARTICLE, base=Image(id="sha256:" + "2" * 64)),
        made(ARTICLE.replace("4.6.1", "4.6.2")),
        made(ARTICLE.replace("a11", "a12")),
        made(ARTICLE.replace("conda-forge", "defaults")),
        made(ARTICLE.replace("3.5.2", "3.5")),
        made(ARTICLE.replace("/preview", "/release")),
    ]
    assert len({tag, *(each.tag for each in others)}) == 7
    assert len(tag) == len("gpuinfra/") + 16


def test_script_is_part_of_the_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    tag = made(ARTICLE).tag
    monkeypatch.setattr("gpuinfra.runner.environment.recipe.read_template", lambda name: "#!/bin/sh\n")
    assert made(ARTICLE).tag != tag


def test_secrets_are_detected_and_not_shown() -> None:
    text = """\
channels: ["https://conda.example/t/tk-1234-abcd/main"]
dependencies:
  - numpy
  - pip:
    - --index-url https://me:p%40ss-word@feed.example/simple
    - --extra-index-url https://x:${FEED_TOKEN}@feed.example/other
    - https://blob.example/a-1.0-py3-none-any.whl?sr=c&sig=aBcD%2B123
    - torch==${TORCH_VERSION}
"""
    found = made(text, FEED_TOKEN="of-the-feed", TORCH_VERSION="1.13.1+cu117")
    in_addresses = {"tk-1234-abcd", "p%40ss-word", "p@ss-word", "aBcD%2B123", "aBcD+123"}
    assert {*found.secrets} == in_addresses | {"of-the-feed", "1.13.1+cu117", "1.13.1%2Bcu117"}
    assert text_of(found, "secrets").splitlines() == [*found.secrets]
    lines = text_of(found, "requirements.txt").splitlines()
    assert lines[1] == "--extra-index-url https://x:of-the-feed@feed.example/other"
    assert lines[3:] == ["torch==1.13.1+cu117"]
    everything = repr(found) + found.dockerfile("1")
    assert not [each for each in found.secrets if each in everything]


def test_variable_that_is_not_a_build_secret_is_refused() -> None:
    with pytest.raises(Problem) as caught:
        made("dependencies:\n  - pip:\n    - torch==${TORCH} # ${COMMENT}\n    - a==${ALLOWED}\n", ALLOWED="1.2.3.4")
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.span and diagnostic.span.line) == (Code.MISSING_SECRET, 3)
    assert "--build-secret TORCH" in str(diagnostic.help)


def test_password_does_not_change_the_tag() -> None:
    text = "dependencies: [pip: ['--index-url https://x:${FEED_TOKEN}@feed.example/simple', numpy]]\n"
    assert made(text, FEED_TOKEN="one-password").tag == made(text, FEED_TOKEN="another-one").tag


def test_line_that_cannot_be_parsed_is_refused() -> None:
    with pytest.raises(Problem) as caught:
        made("dependencies:\n  - numpy\n  - '!!'\n")
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.span and diagnostic.span.line) == (Code.UNKNOWN_VALUE, 3)


def test_note_says_that_the_file_is_not_used() -> None:
    def note(kind: str, *, own: bool = False) -> str | None:
        target = Target("my", "my", kind, "", 0, "", "", base_docker_image=None, nvidia_docker=False)
        packages = conda_of("dependencies: [a]\n")
        return note_for(JobSpec(Path(), "my", target, GpuNeed.NO, packages=packages, has_own_environment=own))

    assert note("local") == (
        "`conda_dependencies.yml` is not used: a `local` target uses the Python and packages of this computer"
    )
    assert "packages of the machine" in str(note("remote"))
    assert note("remote", own=True) is None
    assert note("remotedocker") is None
    assert note("localdocker") is None
