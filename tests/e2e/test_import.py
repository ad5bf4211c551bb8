"""`import` by the installed program: a legacy project, its spec, and the machine created from it."""

import json
from pathlib import Path

from gpuinfra.workbench.compute import split_address
from tests.e2e.azure import Azure
from tests.e2e.conftest import Run
from tests.e2e.user import User

SECRET = "AzureMlSecret=my_dsvm#ada#0123456789abcdef0123456789abcdef"
FILES = {
    "my_dsvm.compute": (
        "# the big one\r\naddress: 198.51.100.7\r\nbaseDockerImage: microsoft/mmlspark:plus-gpu-0.9.9\r\n"
        f"nvidiaDocker: true\r\npassword: {SECRET}\r\nsharedVolumes: false\r\ntype: virtualmachine\r\nusername: ada"
    ),
    "my_dsvm.runconfig": '"ArgumentVector":\n  - "$file"\n"Target": "my_dsvm"\n"Framework": "Python"\n',
    "docker.compute": 'type: "localdocker"\nbaseDockerImage: "microsoft/mmlspark:plus-0.9.9"\n',
    "hdi.compute": "type: cluster\naddress: hdi.example.com\n",
    "conda_dependencies.yml": "dependencies:\n- python=3.5.2\n- tensorflow-gpu\n",
}


def make_project(folder: Path) -> Path:
    config = folder / "aml_config"
    config.mkdir(parents=True)
    for name, text in FILES.items():
        (config / name).write_bytes(text.encode())
    return folder


def assert_as_before(folder: Path) -> None:
    found = {file.name: file.read_bytes().decode() for file in (folder / "aml_config").iterdir()}
    assert found == FILES


def test_import_writes_a_spec_and_leaves_the_project_unchanged(run: Run, tmp_path: Path) -> None:
    folder = make_project(tmp_path / "mnist")
    done = run("import", "mnist")
    assert (done.returncode, done.stdout) == (0, "wrote mnist/gpu.yaml\n")
    assert "mnist/aml_config/my_dsvm.compute:3:18: `microsoft/mmlspark:plus-gpu-0.9.9` cannot use" in done.stderr
    assert "mnist/aml_config/hdi.compute:1:7: `hdi` is a cluster\n      instead: " in done.stderr
    assert done.stderr.endswith("Next: gpuinfra validate mnist/gpu.yaml, then: gpuinfra lint mnist\n")
    text = (folder / "gpu.yaml").read_text()
    assert not [word for word in (SECRET, "198.51.100.7", "hdi.example.com") if word in text + done.stderr]
    assert run("validate", "mnist/gpu.yaml").stdout == "valid  my-dsvm  mnist/gpu.yaml:6\n"
    assert_as_before(folder)

    (folder / "gpu.yaml").write_text("mine\n")
    refused = run("import", "mnist", "--json")
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["diagnostics"][0]["code"] == "file-exists"
    assert (folder / "gpu.yaml").read_text() == "mine\n"
    printed = run("import", "mnist/aml_config", "--output", "-")
    assert (printed.returncode, printed.stdout) == (0, text)
    assert run("import", "mnist", "--yes").returncode == 0
    assert (folder / "gpu.yaml").read_text() == text


def test_import_prints_json(run: Run, tmp_path: Path) -> None:
    make_project(tmp_path / "mnist")
    words = ("--region", "eastus", "--size", "Standard_NC24ads_A100_v4", "--name", "trainer", "--output", "new.yaml")
    document = json.loads(run("import", "mnist", *words, "--json").stdout)
    assert (document["file"], document["target"]) == ("new.yaml", "my_dsvm")
    assert (document["spec"]["name"], document["spec"]["regions"]) == ("trainer", ["eastus"])
    assert {"file", "line", "column", "what", "instead"} == set(document["withoutEquivalent"][0])
    assert run("validate", "new.yaml").returncode == 0
    printed = json.loads(run("import", "mnist", "--output", "-", "--json").stdout)
    assert printed["file"] is None
    assert printed["content"].startswith(
        "# One machine with a GPU in Azure, imported from an Azure ML Workbench project.\n"
    )


def test_failed_import_says_why(run: Run, tmp_path: Path) -> None:
    folder = make_project(tmp_path / "mnist")
    (folder / "aml_config" / "other.compute").write_text(FILES["my_dsvm.compute"])
    wrong = {
        ("mnist",): ("usage", "the project has `my_dsvm` and `other`"),
        ("mnist", "--target", "hdi"): ("no-such-target", ""),
        ("mnist", "--target", "nothing"): ("no-such-target", "the project has no target `nothing`"),
        ("mnist", "--size", "Standard_NC6"): ("retired-size", "`--size Standard_NC6`: Azure retired it"),
        ("mnist", "--region", "mars"): ("unknown-region", "`--region mars`: Azure has no"),
        ("mnist", "--name", "my_dsvm"): ("bad-name", "`--name my_dsvm`: "),
        (".",): ("no-project-found", "there is no folder `aml_config`"),
        ("nowhere",): ("file-not-found", "`nowhere` is not a directory"),
    }
    for words, (code, note) in wrong.items():
        done = run("import", *words, "--json")
        (diagnostic,) = json.loads(done.stdout)["diagnostics"]
        assert (done.returncode, diagnostic["code"]) == (2, code), words
        assert diagnostic.get("note", "").startswith(note)
        assert diagnostic["help"]
    assert not (folder / "gpu.yaml").exists()
    assert run("import", "mnist", "--target", "other").returncode == 0


def test_imported_target_is_updated_to_the_new_machine(user: User, azure: Azure) -> None:
    make_project(user.workspace)
    user.does("import", ".", "--yes")
    assert user.up()["target"]["name"] == "my_dsvm"
    compute = (user.workspace / "aml_config" / "my_dsvm.compute").read_bytes().decode()
    lines = compute.split("\r\n")
    assert lines[0] == "# the big one"
    assert split_address(lines[1].removeprefix("address: "))[0] == azure.address()
    assert lines[2] == "baseDockerImage: mcr.microsoft.com/azureml/openmpi5.0-cuda12.4-ubuntu22.04"
    assert lines[3:8] == FILES["my_dsvm.compute"].split("\r\n")[3:8]
    assert (user.workspace / "aml_config" / "hdi.compute").read_bytes().decode() == FILES["hdi.compute"]
    assert json.loads(user("plan", "gpu.yaml", "--json").stdout)["plans"][0]["changes"] == []
