"""Specs: init, validate, schema."""

import json
import re
from pathlib import Path

import pytest

from tests.e2e.conftest import Run

SPEC = "apiVersion: gpuinfra/v1\nname: my-dsvm\nregion: southcentralus\nsize: Standard_NC4as_T4_v3\n"


def test_init_writes_a_valid_spec(run: Run, tmp_path: Path) -> None:
    done = run("init")
    assert done.returncode == 0
    assert done.stdout == "wrote gpu.yaml\nwrote gpuinfra.schema.json\n"
    assert "gpuinfra validate gpu.yaml" in done.stderr
    assert run("validate", "gpu.yaml").returncode == 0
    assert (tmp_path / "gpu.yaml").read_text().startswith("# yaml-language-server: $schema=./gpuinfra.schema.json\n")
    assert (tmp_path / "gpuinfra.schema.json").read_text() == run("schema").stdout
    assert sorted(file.name for file in tmp_path.iterdir()) == ["gpu.yaml", "gpuinfra.schema.json"]


def test_every_commented_choice_of_the_starter_is_valid(run: Run, tmp_path: Path) -> None:
    run("init")
    # A choice is a comment that starts with a key; prose starts with a capital.
    text = re.sub(r"^( *)# ( *[a-z][A-Za-z]*:)", r"\1\2", (tmp_path / "gpu.yaml").read_text(), flags=re.MULTILINE)
    text = text.replace("priority: regular", "priority: spot")
    (tmp_path / "all.yaml").write_text(text)
    done = run("validate", "all.yaml", "--json")
    document = json.loads(done.stdout)
    assert document["diagnostics"] == []
    spec = document["specs"][0]["spec"]
    assert spec["lifecycle"]["maxCost"] == "5 USD"
    assert spec["tags"] == {"project": "mnist"}
    assert spec["spot"] == {"maxPrice": 0.3}
    assert spec["admin"]["username"] == "azureuser"


def test_init_takes_a_file_or_a_directory(run: Run, tmp_path: Path) -> None:
    assert run("init", "infra/train.yaml").stdout.splitlines()[0] == "wrote infra/train.yaml"
    (tmp_path / "other").mkdir()
    assert run("init", "other").stdout.splitlines()[0] == "wrote other/gpu.yaml"


def test_init_does_not_replace_files_without_yes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text("mine\n")
    (tmp_path / "gpuinfra.schema.json").write_text('{"$id": "foreign"}')
    done = run("init")
    assert done.returncode == 2
    assert "file exists" in done.stderr
    assert (tmp_path / "gpu.yaml").read_text() == "mine\n"
    assert run("init", "--yes").stdout == "wrote gpu.yaml\n"
    assert "foreign" in (tmp_path / "gpuinfra.schema.json").read_text()
    assert run("validate", "gpu.yaml").returncode == 0


def test_init_reports_an_unwritable_path(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("init", "file/gpu.yaml")
    assert done.returncode == 1
    assert "file cannot be written" in done.stderr


def test_validate_reports_every_problem_in_one_pass(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SPEC.replace("my-dsvm", "my_dsvm").replace("NC4as", "NC5as"))
    (tmp_path / "b.yaml").write_text(SPEC)
    done = run("validate", "a.yaml", "b.yaml", "none.yaml")
    assert done.returncode == 2
    assert done.stdout == "valid  my-dsvm  b.yaml:2\n"
    assert done.stderr.count("error: ") == 3
    assert done.stderr.endswith("3 problems found\n")
    assert "\x1b" not in done.stdout + done.stderr


def test_validate_prints_json(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SPEC + "---\n" + SPEC.replace("southcentralus", "southcentalus"))
    done = run("validate", "--json", "a.yaml")
    assert done.returncode == 2
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert (document["schemaVersion"], document["valid"]) == (1, False)
    assert [(spec["name"], spec["file"], spec["line"]) for spec in document["specs"]] == [("my-dsvm", "a.yaml", 2)]
    assert document["specs"][0]["digest"].startswith("sha256:")
    (diagnostic,) = document["diagnostics"]
    assert diagnostic == {
        "severity": "error",
        "code": "unknown-region",
        "summary": "unknown region",
        "file": "a.yaml",
        "line": 8,
        "column": 9,
        "endLine": 8,
        "endColumn": 22,
        "machine": "my-dsvm",
        "label": "Azure has no region with this name",
        "help": "did you mean `southcentralus`?",
    }


def test_validate_reads_standard_input(run: Run) -> None:
    assert run("validate", "-", stdin=SPEC).stdout == "valid  my-dsvm  <stdin>:2\n"


def test_validate_searches_a_directory_and_ignores_other_yaml(run: Run, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for folder in ("", "aml_config", "deep/er", ".git", "node_modules/x"):
        (project / folder).mkdir(parents=True, exist_ok=True)
    (project / "aml_config/conda_dependencies.yml").write_text(
        "name: project_environment\ndependencies: [python=3.5.2]\n"
    )
    (project / "service.yaml").write_text("apiVersion: v1\nkind: Service\nname: [broken\n")
    (project / "deep/er/gpu.yml").write_text(SPEC)
    (project / ".git/gpu.yaml").write_text(SPEC)
    (project / "node_modules/x/gpu.yaml").write_text(SPEC)
    (project / "loop").symlink_to(project)
    assert run("validate", "project").stdout == "valid  my-dsvm  project/deep/er/gpu.yml:2\n"
    (project / "typo.yaml").write_text(SPEC.replace("gpuinfra/v1", "gpuinfra/v9"))
    done = run("validate", "project")
    assert done.returncode == 2
    assert "unknown apiVersion" in done.stderr


def test_directory_without_a_spec_is_an_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run("validate", "empty")
    assert done.returncode == 2
    assert "no spec found" in done.stderr


def test_two_specs_of_one_name_are_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SPEC)
    (tmp_path / "b.yaml").write_text(SPEC.replace("my-dsvm", "MY-dsvm"))
    done = run("validate", "a.yaml", "b.yaml")
    assert done.returncode == 2
    assert "`my-dsvm` is already defined at a.yaml:2:7" in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_unencodable_characters_are_replaced(run: Run, tmp_path: Path, encoding: str) -> None:
    (tmp_path / "手.yaml").write_text(SPEC + "手: 書\n")
    done = run("validate", "手.yaml", PYTHONIOENCODING=encoding)
    assert done.returncode == 2
    assert "unknown key" in done.stderr


def test_schema_prints_json(run: Run) -> None:
    assert json.loads(run("schema", "--json").stdout)["schema"] == json.loads(run("schema").stdout)


def test_validate_warns_about_hours_that_the_default_idle_time_defeats(run: Run, tmp_path: Path) -> None:
    hours = f'{SPEC}lifecycle:\n  hours: {{timezone: UTC, on: "mon-fri 08:00-19:00"}}\n'
    (tmp_path / "gpu.yaml").write_text(hours)
    done = run("validate", "gpu.yaml")
    assert done.returncode == 0
    assert done.stdout.startswith("valid  my-dsvm")
    assert "warning: fields that defeat each other" in done.stderr
    assert "write `idle: 11h` to keep it on during its hours" in done.stderr
    found = json.loads(run("validate", "gpu.yaml", "--json").stdout)
    assert found["valid"] is True
    (warning,) = found["diagnostics"]
    assert (warning["severity"], warning["code"], warning["line"]) == ("warning", "defeating-fields", 6)
    assert warning["machine"] == "my-dsvm"

    (tmp_path / "gpu.yaml").write_text(f"{hours}  idle: 11h\n")
    assert run("validate", "gpu.yaml").stderr == ""
