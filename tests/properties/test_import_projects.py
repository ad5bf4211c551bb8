"""Every real project becomes a valid spec or a clear error, and its files accept what `up` writes."""

from functools import cache
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Exit, Problem
from gpuinfra.models.spec import Spec
from gpuinfra.parse.spec import load_bytes
from gpuinfra.provision.target import target_from_spec
from gpuinfra.workbench.project import Project, find_projects, load_project
from gpuinfra.workbench.project_import import ImportOptions, ImportResult, import_project
from gpuinfra.workbench.targets import find_target, write_target
from tests.unit.provision_help import NAME, made
from tests.workbench import FOLDER, copy_writable, needs_projects

SEVERAL = {"project-011", "project-058", "project-068"}


@cache
def projects() -> tuple[Project, ...]:
    return tuple(load_project(root) for root in find_projects(FOLDER))


@cache
def outcomes() -> dict[Path, ImportResult | Problem]:
    return {project.root: outcome(project) for project in projects()}


def outcome(project: Project, **options: str) -> ImportResult | Problem:
    try:
        return import_project(project, ImportOptions(**options))
    except Problem as problem:
        return problem


def imported() -> dict[Path, ImportResult]:
    """Projects that name their target unambiguously."""
    return {root: found for root, found in outcomes().items() if isinstance(found, ImportResult)}


def spec_of(found: ImportResult) -> Spec:
    loaded = load_bytes("gpu.yaml", found.spec_text.encode())
    assert loaded.diagnostics == []
    (located,) = loaded.specs
    assert (located.spec.name, located.spec.target_name) == (found.name, found.target)
    return located.spec


@needs_projects
def test_every_project_gives_a_spec_or_a_list_of_targets() -> None:
    assert len(imported()) > 100
    for found in imported().values():
        spec_of(found)
    problems = {root: found for root, found in outcomes().items() if isinstance(found, Problem)}
    assert {root.relative_to(FOLDER).as_posix() for root in problems} == SEVERAL
    for problem in problems.values():
        (diagnostic,) = problem.diagnostics
        assert (diagnostic.code, problem.exit_code) == (Code.USAGE, Exit.USAGE)
        assert diagnostic.note
        assert diagnostic.help


@needs_projects
def test_every_target_can_be_chosen() -> None:
    size = "Standard_NC24ads_A100_v4"
    for project in projects():
        for name, compute in project.computes.items():
            found = outcome(project, target=name, size=size)
            if compute.type == "cluster":
                assert isinstance(found, Problem)
                assert found.diagnostics[0].span is not None
            else:
                assert isinstance(found, ImportResult)
                assert spec_of(found).sizes == (size,)


@needs_projects
def test_every_missing_equivalent_has_its_place() -> None:
    for root, found in imported().items():
        for missing in found.missing:
            assert missing.what
            assert missing.instead
            assert missing.span is not None
            file = Path(missing.span.file)
            assert root in file.parents
            lines = file.read_text("utf-8").splitlines()
            assert missing.span.line <= len(lines)
            assert missing.span.column <= len(lines[missing.span.line - 1]) + 1


@needs_projects
def test_secrets_and_addresses_are_not_imported() -> None:
    for project in projects():
        if project.root not in imported():
            continue
        found = imported()[project.root]
        words = found.spec_text + "".join(f"{missing.what} {missing.instead}\n" for missing in found.missing)
        for compute in project.computes.values():
            for secret in (compute.address, compute.password):
                assert secret is None or secret not in words


@needs_projects
def test_existing_files_accept_the_new_machine(tmp_path: Path) -> None:
    chosen = [each for each in projects() if each.root in imported() and each.computes]
    assert len(chosen) > 50
    for number, project in enumerate(chosen):
        root, copy = project.root, tmp_path / str(number)
        found = import_project(project, ImportOptions(name=NAME))
        copy_writable(root / "aml_config", copy / "aml_config")
        before = {file.name: file.read_bytes() for file in (copy / "aml_config").iterdir() if file.is_file()}
        spec = spec_of(found)
        target = target_from_spec(made(spec).observe(spec.name, spec.group_name), spec, ssh_port=22, identity=None)
        written = {file.name for file in write_target(copy, target)}
        assert written <= {f"{found.target}.compute", f"{found.target}.runconfig"}
        for name, content in before.items():
            assert name in written or (copy / "aml_config" / name).read_bytes() == content
        again = find_target(copy, found.target)
        assert again is not None
        assert (again.type, again.address) == (spec.target.type, "203.0.113.99")
        if spec.target.type == "remotedocker":
            assert again.base_docker_image == spec.target.base_docker_image
            assert again.nvidia_docker == spec.target.nvidia_docker


@needs_projects
@pytest.mark.parametrize("folder", ["project-009", "project-068"])
def test_azure_ml_v1_projects_are_recognised(folder: str) -> None:
    project = load_project(FOLDER / folder)
    assert import_project(project, ImportOptions(target="local")).is_sdk_v1
