"""The two files that `up` writes for a spec, byte by byte, with the edits that the article requires."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpuinfra.models.target import Target
from gpuinfra.parse.spec import load_bytes
from gpuinfra.provision.target import target_from_spec
from gpuinfra.workbench.targets import find_target, write_target
from tests.cases import compare
from tests.unit.provision_help import made

CASES = sorted((Path(__file__).parents[1] / "cases" / "targets").glob("*.yaml"))
ARTICLES = sorted((Path(__file__).parents[3] / "shared" / "seeds").glob("*.txt"))


def target(case: Path) -> Target:
    """Return the target as `up` creates it. A case named after a port is a machine on that port."""
    loaded = load_bytes(case.name, case.read_bytes())
    assert loaded.diagnostics == []
    spec = loaded.specs[0].spec
    observed = made(spec).observe(spec.name, spec.group_name)
    found = re.search(r"port-([0-9]+)", case.stem)
    return target_from_spec(
        observed, spec, ssh_port=int(found[1]) if found else 22, identity="/home/me/.ssh/id_ed25519"
    )


def test_cases_are_complete() -> None:
    assert {case.stem for case in CASES} >= {"defaults", "article", "remote", "port-2222"}
    others = {file.stem for file in CASES[0].parent.iterdir()}
    assert others == {case.stem for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_files_of_a_target_match_the_case(case: Path, tmp_path: Path, update_cases: bool) -> None:
    written = write_target(tmp_path, target(case))
    assert [file.suffix for file in written] == [".compute", ".runconfig"]
    for file in written:
        compare(file.read_bytes().decode(), case.with_suffix(file.suffix), update=update_cases)
        assert "\r" not in file.read_bytes().decode()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_files_of_a_target_round_trip(case: Path, tmp_path: Path) -> None:
    wanted = target(case)
    write_target(tmp_path, wanted)
    found = find_target(tmp_path, wanted.name)
    assert found is not None
    kept = ("name", "type", "address", "port", "username", "host_key", "framework", "conda_dependencies")
    assert [getattr(found, name) for name in kept] == [getattr(wanted, name) for name in kept]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_files_match_the_output_of_the_workbench_cli(case: Path) -> None:
    """`az ml computetarget attach` dumped them with sorted keys; a plain dump gives the same text."""
    for suffix in (".compute", ".runconfig"):
        text = case.with_suffix(suffix).read_text()
        assert yaml.safe_dump(yaml.safe_load(text), default_flow_style=False, width=1000) == text


def test_article_files_have_the_documented_lines() -> None:
    compute, runconfig = (article_file(suffix).read_text().splitlines() for suffix in (".compute", ".runconfig"))
    assert {"baseDockerImage: microsoft/mmlspark:plus-gpu-0.9.9", "nvidiaDocker: true"} <= set(compute)
    assert "Framework: Python" in runconfig


@pytest.mark.skipif(not ARTICLES, reason="the article is not beside this checkout")
@pytest.mark.parametrize("article", ARTICLES, ids=lambda article: article.stem[:8])
def test_article_files_match_every_translation(article: Path) -> None:
    blocks = re.findall(r"```yaml\s*\n(.*?)```", article.read_text("utf-8"), re.DOTALL)
    (compute,) = (block for block in blocks if "nvidiaDocker" in block)
    (runconfig,) = (block for block in blocks if "Framework" in block and "dependencies:" not in block)
    ours = {suffix: yaml.safe_load(article_file(suffix).read_text()) for suffix in (".compute", ".runconfig")}
    shown = yaml.safe_load(compute.replace("...", ""))
    assert shown.pop("baseDockerImage").startswith("microsoft/mmlspark:plus-gpu-0.")
    assert shown.items() <= ours[".compute"].items()
    assert yaml.safe_load(runconfig).items() <= ours[".runconfig"].items()


def article_file(suffix: str) -> Path:
    return next(case for case in CASES if case.stem == "article").with_suffix(suffix)


def test_ids_of_the_vm_before_are_removed_with_its_host_key(tmp_path: Path) -> None:
    place = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/my-dsvm"
    known = replace(target(CASES[0]), resource_id=place, vm_id="1")
    write_target(tmp_path, known)
    found = find_target(tmp_path, known.name)
    assert found
    assert (found.resource_id, found.vm_id) == (place, "1")
    write_target(tmp_path, replace(known, resource_id="", vm_id=""))
    assert find_target(tmp_path, known.name) == found
    write_target(tmp_path, replace(known, resource_id="", vm_id="", host_key=f"{known.host_key[:-1]}A"))
    other = find_target(tmp_path, known.name)
    assert other
    assert (other.resource_id, other.vm_id) == ("", "")
