"""`export` by the installed program: the result works without gpuinfra, in the real `az`, `ssh` and `docker`."""

import base64
import json
import os
import pty
import subprocess
import tarfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.az import Az
from tests.e2e.azure import GROUP, Azure
from tests.e2e.user import OTHER_REGION, PARTS, REGION, SIZE, User
from tests.real import program
from tests.variants import variant

WAIT_SECONDS = 30.0


def deploy(user: User, az: Az, *parameters: str, fails: str | None = None) -> Any:
    """Export, create the group as suggested, and deploy the template."""
    user.does("export", "my-dsvm", "--format", "arm", "--output", "machine.json", "--yes")
    az("group", "create", "--name", GROUP, "--location", REGION)
    file = str(user.workspace / "machine.json")
    words = ("deployment", "group", "create", "--resource-group", GROUP, "--template-file", file)
    return az(*words, *(("--parameters", *parameters) if parameters else ()), fails=fails)


def assert_nothing_to_do(user: User) -> None:
    done = user("plan", "gpu.yaml", "--detailed-exitcode")
    assert done.returncode == 0, done.stdout + done.stderr


def test_deployed_template_equals_the_result_of_up(user: User, azure: Azure, az: Az) -> None:
    # A container target needs Docker, which the image does not allow its administrator; only `up` changes that.
    # The agent must not end the machine before Azure's schedule does.
    odd = {"team": "[vision]", "note": "[half", "[odd]": "x"}
    user.spec(target={"type": "remote"}, tags=odd, lifecycle={"idle": "12h"})
    deployed = deploy(user, az)
    assert deployed["properties"]["provisioningState"] == "Succeeded"
    assert azure.everything() == PARTS
    assert deployed["properties"]["outputs"]["address"]["value"] == azure.address()
    assert "gpuinfra:name" not in azure.group().get("tags", {})
    assert_nothing_to_do(user)

    for words in (("ssh", "my-dsvm"), ("export", "my-dsvm", "--format", "ssh-config")):
        assert "gpuinfra attach" in user.fails(*words, code="bad-host-key")["help"], "its host key is unknown"

    # After the host key is recorded, `ssh` and `up` know the machine.
    where = ["--address", azure.address(), "--port", str(azure.description.ssh_port), "--username", "azureuser"]
    met = user.does("attach", "my_dsvm", *where, "--type", "remote", "--yes")
    for name in ("my-dsvm", "my_dsvm"):
        assert user.does("ssh", name)["target"]["hostKey"] == met["target"]["hostKey"]
    brought = user.up()
    assert (brought["changed"], brought["target"]["hostKey"]) == (False, met["target"]["hostKey"])

    machine = azure.machine()
    assert machine["powerState"] == "PowerState/running"
    assert "gpuinfra:host-key" not in machine["tags"]
    assert (machine["tags"]["team"], machine["tags"]["note"], machine["tags"]["[odd]"]) == ("[vision]", "[half", "x")
    schedule = azure.part("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm")["properties"]
    assert schedule["status"] == "Enabled"
    until = machine["tags"]["gpuinfra:lease-until"]
    stop = datetime.fromisoformat(until) + timedelta(minutes=35)
    assert schedule["dailyRecurrence"]["time"] == f"{stop:%H%M}"

    azure.control("POST", "clock", {"advance": 3600})
    assert_nothing_to_do(user)
    azure.control("POST", "clock", {"advance": 3 * 3600 + 37 * 60})
    assert not azure.is_billed(), "Azure's own schedule has ended the lease"

    receipt = user.down("my-dsvm", "--delete", "--yes")
    assert receipt["left"] == []
    assert azure.everything() == [f"resourceGroups/{GROUP}"], "the group was not created by up"


@variant
def test_any_candidate_of_the_spec_can_be_deployed(user: User, azure: Azure, az: Az) -> None:
    user.spec(
        "region",
        regions=[REGION, OTHER_REGION],
        zones=["1", "2"],
        priority="spot",
        spot={"maxPrice": 0.3},
        lifecycle={"lease": "2d"},
    )
    deploy(user, az, "location=westeurope", fails="location")
    deploy(user, az, f"location={OTHER_REGION}", "zone=2")
    machine = azure.machine()
    assert (machine["location"], machine["zones"]) == (OTHER_REGION, ["2"])
    assert (machine["properties"]["priority"], machine["properties"]["billingProfile"]) == ("Spot", {"maxPrice": 0.3})
    schedule = azure.part("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm")["properties"]
    assert schedule["status"] == "Disabled"
    assert_nothing_to_do(user)


def test_template_export_works_offline_and_lists_what_it_omits(user: User, azure: Azure) -> None:
    before = azure.last_request()
    user.spec(lifecycle={"lease": "2d"}, image="canonical:ubuntu:22_04:latest", power="deallocated")
    done = user("export", "gpu.yaml", "--format", "arm", sandbox=False)
    assert done.returncode == 0
    template = json.loads(done.stdout)
    assert template["parameters"]["location"]["defaultValue"] == REGION
    assert template["parameters"]["vmSize"]["allowedValues"] == [SIZE]
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert [word in note for word, note in zip(("guest agent", "a day", "off", "plan"), notes, strict=True)] == [
        True
    ] * 4
    document = user.does("export", "my-dsvm", "--format", "arm", sandbox=False)
    assert document == {"schemaVersion": 1, "name": "my-dsvm", "format": "arm", "content": done.stdout}
    assert azure.requests(before) == []


def test_existing_file_is_replaced_only_with_consent(user: User) -> None:
    words = ("export", "gpu.yaml", "--format", "arm", "--output", "machine.json")
    file = user.workspace / "machine.json"
    done = user(*words)
    assert done.stdout == "wrote machine.json\n"
    assert f"az deployment group create --resource-group {GROUP} --template-file machine.json" in done.stderr
    file.write_text("mine")
    user.fails(*words, code="file-exists", exit_code=2)
    assert file.read_text() == "mine"
    made = user.does(*words, "--yes")
    assert made == {"schemaVersion": 1, "name": "my-dsvm", "format": "arm", "file": "machine.json"}
    assert json.loads(file.read_text())["contentVersion"] == "1.0.0.0"
    assert user("export", "gpu.yaml", "--format", "arm", "--yes", "--output", "/dev/null").returncode == 1
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(("answer", "exit_code"), [(b"y\n", 0), (b"n\n", 2)])
def test_terminal_asks_before_a_file_is_replaced(user: User, answer: bytes, exit_code: int) -> None:
    file = user.workspace / "machine.json"
    file.write_text("mine")
    control, terminal = pty.openpty()
    try:
        words = ("export", "gpu.yaml", "--format", "arm", "--output", "machine.json")
        running = user.start(*words, terminal=terminal)
        os.write(control, answer)
        assert running.wait(WAIT_SECONDS) == exit_code
    finally:
        os.close(control)
        os.close(terminal)
    assert (file.read_text() == "mine") is bool(exit_code)


def test_invalid_export_is_reported(user: User) -> None:
    assert (
        "did you mean `ssh-config`?"
        in user.fails("export", "x", "--format", "sshconfig", code="usage", exit_code=2)["help"]
    )
    user.fails("export", "x", "--format", "zip", code="usage", exit_code=2)
    user.fails("export", "other", "--format", "arm", code="no-spec-found", exit_code=2)
    user.fails("export", "other", "--format", "ssh-config", code="no-such-machine", exit_code=2)
    first = (user.workspace / "gpu.yaml").read_text()
    (user.workspace / "gpu.yaml").write_text(f"{first}\n---\n{first.replace('my-dsvm', 'second')}")
    assert "`second`" in user.fails("export", "gpu.yaml", "--format", "arm", code="usage", exit_code=2)["note"]
    assert user.does("export", "second", "--format", "arm")["name"] == "second"


def test_exported_ssh_config_works_without_gpuinfra(user: User, azure: Azure, tmp_path: Path) -> None:
    target = user.up()["target"]
    block = user("export", "my-dsvm", "--format", "ssh-config")
    assert (block.returncode, block.stderr) == (0, "")
    config = tmp_path / "config"
    config.write_text(block.stdout)
    ssh = program("ssh", "openssh-client")
    words = [ssh, "-G", "-F", str(config), "my-dsvm.sandbox"]
    asked = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20)
    understood = dict(line.split(" ", 1) for line in asked.stdout.splitlines())
    assert (understood["hostname"], understood["port"]) == (target["address"], str(target["port"]))
    assert (understood["user"], understood["stricthostkeychecking"]) == ("azureuser", "true")
    assert understood["userknownhostsfile"] == "/dev/null"

    assert log_in(config).stdout == "in\n"
    another = subprocess.run(["ssh-keygen", "-y", "-f", user.private_key], capture_output=True, text=True, check=True)
    key = another.stdout.split()[1]
    config.write_text(block.stdout.replace(target["hostKey"].split()[1], key))
    refused = log_in(config)
    assert (refused.returncode, refused.stdout) == (255, "")
    assert "Host key verification failed" in refused.stderr

    made = user.does("export", "my-dsvm", "--format", "ssh-config", "--output", "machine.ssh")
    assert (user.workspace / made["file"]).read_text() == block.stdout


def log_in(config: Path) -> "subprocess.CompletedProcess[str]":
    words = ["ssh", "-F", str(config), "-o", "BatchMode=yes", "my-dsvm.sandbox", "echo", "in"]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False, stdin=subprocess.DEVNULL
    )


def test_docker_accepts_the_exported_context(user: User, azure: Azure, tmp_path: Path) -> None:
    target = user.up()["target"]
    done = user("export", "my-dsvm", "--format", "docker-context", "--output", "machine.tar")
    assert done.returncode == 0
    assert "SHA256:" in done.stderr
    assert f"[{target['address']}]:{target['port']} {target['hostKey']}" in done.stderr
    assert f"ssh-add {user.private_key}" in done.stderr
    file = user.workspace / "machine.tar"

    def docker(*words: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path / "docker")}
        command = [program("docker", "docker.io"), *words]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
        assert found.returncode == 0, found.stderr
        return found.stdout

    docker("context", "import", "gpu", str(file))
    (imported,) = json.loads(docker("context", "inspect", "gpu"))
    endpoint = f"ssh://azureuser@{target['address']}:{target['port']}"
    assert imported["Endpoints"]["docker"] == {"Host": endpoint, "SkipTLSVerify": False}
    docker("context", "import", "my-dsvm", str(file))
    docker("context", "export", "my-dsvm", str(tmp_path / "theirs.tar"))
    assert members(tmp_path / "theirs.tar") == members(file)

    document = user.does("export", "my-dsvm", "--format", "docker-context")
    assert document["encoding"] == "base64"
    assert base64.b64decode(document["content"]) == file.read_bytes()


def members(file: Path) -> list[tuple[str, bytes | None]]:
    with tarfile.open(file) as tar:
        found = [(each.name, tar.extractfile(each)) for each in tar]
        return [(name, stream.read() if stream else None) for name, stream in found]


def test_archive_is_not_written_to_a_terminal(user: User) -> None:
    control, terminal = pty.openpty()
    try:
        running = user.start("export", "my-dsvm", "--format", "docker-context", terminal=terminal)
        assert running.wait(WAIT_SECONDS) == 2
        assert b"--output FILE" in os.read(control, 65536)
    finally:
        os.close(control)
        os.close(terminal)
