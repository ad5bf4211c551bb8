"""What the target files of a foreign project can say about host keys and private keys."""

from pathlib import Path

import pytest

from gpuinfra.app.host_keys import MachineTrust, own_ssh_files
from gpuinfra.app.settings import Settings
from gpuinfra.app.ssh import configure_ssh
from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.target import Target, unreached_target
from gpuinfra.provision.up import FoundMachine
from gpuinfra.runner.connection.known_hosts import check_known_key
from gpuinfra.runner.connection.private_keys import identity_of
from gpuinfra.runner.errors import HostKeyChanged
from gpuinfra.workbench.targets import read_targets

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB8eHRwbGhkYFxYVFBMSERAPDg0MCwoJCAcGBQQDAgEA"
VM = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/"


class Silent:
    """A frontend of a command without a terminal."""

    can_ask = False


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    workspace = tmp_path / "project"
    (workspace / "aml_config").mkdir(parents=True)
    return Settings(False, False, False, "azure", workspace, "")


def write_target(settings: Settings, name: str, **values: str) -> None:
    values = {"address": "127.0.0.1", "hostKey": KEY, "type": "remote", "username": "me", **values}
    text = "".join(f"{key}: {value}\n" for key, value in values.items())
    (settings.workspace / "aml_config" / f"{name}.compute").write_text(text)


def my_dsvm(key: str = KEY) -> Target:
    return unreached_target("my_dsvm", "my-dsvm", key, simulated=False)


@pytest.mark.parametrize(("source", "is_known"), [("up:s/g", True), ("attach:127.0.0.1:22", True), ("", False)])
def test_only_machines_created_or_attached_here_are_used_without_consent(
    settings: Settings, source: str, is_known: bool
) -> None:
    own_ssh_files().remember(my_dsvm(), source)
    trust = MachineTrust(settings, my_dsvm(), "up:s/g", Silent())  # type: ignore[arg-type]
    if is_known:
        trust.check_found(FoundMachine(KEY, ""))
        return
    with pytest.raises(Problem) as raised:
        trust.check_found(FoundMachine(KEY, ""))
    assert raised.value.diagnostics[0].code is Code.UNKNOWN_HOST_KEY


def test_ssh_config_has_the_name_of_the_file_and_not_of_the_machine_in_it(settings: Settings) -> None:
    write_target(settings, "lab", resourceId=f"{VM}prod")
    assert configure_ssh(settings, "lab").host == "lab"
    files = own_ssh_files()
    assert "prod" not in files.config.read_text() + files.known_hosts.read_text()


def test_ssh_config_has_the_name_of_an_own_machine(settings: Settings) -> None:
    own_ssh_files().remember(my_dsvm(), "up:s/g")
    write_target(settings, "lab", resourceId=f"{VM}my-dsvm")
    assert configure_ssh(settings, "lab").host == "my-dsvm"


@pytest.mark.parametrize("name", ["lab", "my_dsvm"])
def test_ssh_config_needs_the_recorded_key_of_both_names(settings: Settings, name: str) -> None:
    own_ssh_files().remember(my_dsvm(OTHER_KEY), "up:s/g")
    write_target(settings, name, resourceId=f"{VM}{'my-dsvm' if name == 'lab' else 'lab'}")
    with pytest.raises(Problem) as raised:
        configure_ssh(settings, name)
    assert raised.value.diagnostics[0].code is Code.OTHER_HOST_KEY


def test_path_of_a_private_key_has_no_variable_that_openssh_would_show(settings: Settings) -> None:
    write_target(settings, "lab", privateKeyFile="'${AWS_SECRET_ACCESS_KEY}'")
    (problem,) = read_targets(settings.workspace).diagnostics
    assert problem.code is Code.BAD_PATH
    (settings.workspace / "${TOKEN}").touch()
    assert identity_of("${TOKEN}.pub", settings.workspace) is None


def test_name_with_periods_has_the_recorded_key_of_a_machine(settings: Settings) -> None:
    own_ssh_files().remember(my_dsvm(), "up:s/g")
    with pytest.raises(HostKeyChanged):
        check_known_key(unreached_target("my.dsvm", "my.dsvm", OTHER_KEY, simulated=False))
