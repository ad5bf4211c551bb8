"""Every spec case, good and bad: what the loader reports."""

import json
from pathlib import Path

import pytest

from gpuinfra.models.spec import Spec
from gpuinfra.parse.files import load_paths
from gpuinfra.parse.spec import Loaded, load_bytes
from gpuinfra.views.diagnostics import as_json, render
from tests.cases import SPEC_CASES, compare, content, spec_cases

GOOD, BAD = spec_cases("good"), spec_cases("bad")


def name_of(case: Path) -> str:
    return case.stem


def load(case: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """Load a case as `gpuinfra validate` would, with the same path on every machine."""
    (folder / "gpu.yaml").write_bytes(content(case))
    monkeypatch.chdir(folder)
    return load_paths(["gpu.yaml"])


@pytest.mark.parametrize("case", BAD, ids=name_of)
def test_bad_spec_has_its_diagnostics(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update_cases: bool
) -> None:
    loaded = load(case, tmp_path, monkeypatch)
    assert loaded.diagnostics
    for diagnostic in loaded.diagnostics:
        assert diagnostic.span, "it has a place"
        assert diagnostic.label or diagnostic.note or diagnostic.help, "it has a reason"
        assert json.loads(json.dumps(as_json(diagnostic)))["code"] == diagnostic.code
    rendered = "\n\n".join(render(diagnostic).plain for diagnostic in loaded.diagnostics)
    compare(rendered + "\n", case.with_suffix(".txt"), update=update_cases)


@pytest.mark.parametrize("case", GOOD, ids=name_of)
def test_good_spec_has_its_values(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update_cases: bool
) -> None:
    loaded = load(case, tmp_path, monkeypatch)
    assert [render(diagnostic).plain for diagnostic in loaded.diagnostics] == []
    specs = [located.spec.as_json() for located in loaded.specs]
    text = json.dumps(specs, indent=2, ensure_ascii=False) + "\n"
    compare(text, case.with_suffix(".json"), update=update_cases)


@pytest.mark.parametrize("case", GOOD, ids=name_of)
def test_spec_round_trips_as_json(case: Path) -> None:
    for located in load_bytes("gpu.yaml", content(case)).specs:
        again = load_bytes("again.json", json.dumps(located.spec.as_json()).encode())
        assert [found.spec for found in again.specs] == [located.spec]
        assert again.specs[0].spec.digest() == located.spec.digest()


def test_every_expected_file_has_a_case() -> None:
    assert len(BAD) >= 60
    expected = {case.with_suffix(suffix) for cases, suffix in ((BAD, ".txt"), (GOOD, ".json")) for case in cases}
    found = {file for file in SPEC_CASES.rglob("*") if file.suffix in {".txt", ".json"}}
    assert found == expected


def spec(text: str) -> Spec:
    return load_bytes("gpu.yaml", f"apiVersion: gpuinfra/v1\nname: a\n{text}".encode()).specs[0].spec


def test_short_forms_mean_the_same() -> None:
    short = spec("region: eastus\nsize: Standard_NC4as_T4_v3\n")
    assert short == spec("regions: [eastus]\nsizes: [Standard_NC4as_T4_v3]\n")
    assert short.digest() == spec("sizes: [Standard_NC4as_T4_v3]\nregions: [eastus]\n").digest()


LEAST = "region: eastus\nsize: Standard_NC4as_T4_v3\n"


def test_resource_group_is_named_after_the_machine_by_default() -> None:
    assert spec(LEAST).group_name == "gpuinfra-a"
    assert spec(f"{LEAST}resourceGroup: gpu-team\n").group_name == "gpu-team"


def test_subscription_is_compared_without_case() -> None:
    lower, upper = (
        spec(f"{LEAST}subscription: {name}\n")
        for name in ("01234567-89ab-cdef-0123-456789abcdef", "01234567-89AB-CDEF-0123-456789ABCDEF")
    )
    assert lower.subscription == "01234567-89ab-cdef-0123-456789abcdef"
    assert lower.digest() == upper.digest() != spec(LEAST).digest()


def test_omitted_fields_are_not_printed() -> None:
    printed = spec(LEAST).as_json()
    assert not {"subscription", "resourceGroup", "zones"} & set(printed)
    assert printed["power"] == "running"
