"""`lint` on real projects, with every finding recorded, and on the files of the article."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.lint.finding import Finding
from gpuinfra.lint.fix import check_projects, fix_projects
from gpuinfra.workbench.project import find_projects
from tests.cases import LINT_CASES, compare
from tests.workbench import FOLDER, needs_projects

HEAD = """\
Findings on the recorded projects: file, line and column, severity, and whether --fix repairs it.
The record has only some files of each project, and of earlier versions only those that changed.
"""
REASONS = {
    Code.BAD_CONTAINER_IMAGE: "A space before the closing quote; a container engine refuses it.",
    Code.BAD_REQUIREMENT: "Conda's `=` in the list for pip, and a comment glued to a version: pip refuses both.",
    Code.CPU_ONLY_PACKAGE: (
        "TensorFlow 1 for the CPU on a target with a GPU image and nvidiaDocker.\n"
        "# The same file serves a container without a GPU, so nothing is changed."
    ),
    Code.GPU_NOT_PASSED_ON: "A GPU image in a container that gets no GPU.",
    Code.MISSING_FILE: "An environment of the project's own that is named here and not in the record.",
    Code.MIXED_IMAGES: "0.7 for one target, and the development version before it for the other.",
    Code.PLACEHOLDER: "Samples, and targets whose address was taken out: nothing can run there until it is written.",
    Code.TAB: "A tab after the colon of a key, in what Spark is to have: YAML takes none there.",
    Code.UNKNOWN_TARGET: (
        "The record has no .compute file of this name. Where the run configuration has the target's name,\n"
        "# the two were written together, and many keep the one with the address out of git."
    ),
    Code.WRONG_CUDA: "tensorflow-gpu without a version: for Python 3.5 it looks for CUDA 10.1; the image has 8.0.",
}


def table() -> str:
    found: dict[Code, list[Finding]] = defaultdict(list)
    for finding in check_projects(find_projects(FOLDER)).findings:
        found[finding.diagnostic.code].append(finding)
    assert found.keys() == REASONS.keys()
    parts = ["".join(f"# {line}\n" for line in HEAD.splitlines())]
    parts += [f"# {code.value}: {REASONS[code]}\n{''.join(map(row, found[code]))}" for code in sorted(found)]
    return "\n".join(parts)


def row(finding: Finding) -> str:
    span = finding.diagnostic.span
    assert span
    file = span.file.removeprefix(f"{FOLDER}/")
    fixable = " fixable" if finding.fix else ""
    return f"{file}:{span.line}:{span.column} {finding.diagnostic.severity}{fixable}\n"


@needs_projects
def test_findings_of_shared_projects_are_unchanged(update_cases: bool) -> None:
    compare(table(), LINT_CASES / "shared-projects.txt", update=update_cases)


ARTICLES = sorted((FOLDER.parents[1] / "seeds").glob("*.txt"))
ENVIRONMENT = re.compile(r"```\w*\n(name: project_environment\n.*?)```", re.DOTALL)
COMPUTE = "type: remotedocker\naddress: 192.0.2.10\nusername: me\nbaseDockerImage: {}\nnvidiaDocker: true\n"
RUNCONFIG = "Target: my_dsvm\nFramework: Python\n"


@needs_projects
@pytest.mark.parametrize("article", ARTICLES, ids=lambda article: article.stem[:3])
def test_final_files_of_the_article_are_valid_except_one_wheel(article: Path, tmp_path: Path) -> None:
    text = article.read_text("utf-8")
    (image,) = re.findall(r"^baseDockerImage: (\S+)$", text, re.MULTILINE)
    environments = ENVIRONMENT.findall(text)
    assert len(environments) == 3
    for number, environment in enumerate(environments):
        folder = tmp_path / str(number) / "aml_config"
        folder.mkdir(parents=True)
        (folder / "my_dsvm.compute").write_text(COMPUTE.format(image))
        (folder / "my_dsvm.runconfig").write_text(RUNCONFIG)
        (folder / "conda_dependencies.yml").write_text(environment)
    found = [finding.diagnostic.code for finding in check_projects(find_projects(tmp_path)).findings]
    assert found == [Code.WRONG_PLATFORM] * text.count("    - https://cntk.ai/PythonWheel/GPU/cntk-2.1-cp35-cp35m-win")
    assert fix_projects(find_projects(tmp_path)).findings == []
    written = [(folder / "aml_config" / "conda_dependencies.yml").read_text() for folder in sorted(tmp_path.iterdir())]
    assert written == [each.replace("win_amd64", "linux_x86_64") for each in environments]


@needs_projects
def test_one_article_has_the_wrong_wheel() -> None:
    assert len(ARTICLES) == 5
    assert sum("GPU/cntk-2.1-cp35-cp35m-win_amd64" in article.read_text("utf-8") for article in ARTICLES) == 1
