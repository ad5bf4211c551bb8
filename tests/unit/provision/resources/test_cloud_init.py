"""The data for the first boot of a new machine."""

import base64
import json
import shlex
from datetime import timedelta

import pytest

from gpuinfra.provision.lease import Terms
from gpuinfra.provision.login import HostKey
from gpuinfra.provision.resources.cloud_init import AGENT, AGENT_CONFIG, AGENT_UNIT, LARGEST, agent_archive, custom_data
from gpuinfra.sandbox.guest.cloud_init import CloudConfig, read_custom_data

TERMS = Terms(timedelta(hours=4), timedelta(minutes=20), timedelta(hours=9, minutes=30))


@pytest.fixture
def config() -> CloudConfig:
    """As cloud-init reads it."""
    data = custom_data(HostKey("ssh-ed25519 AAAA", "a private key"), TERMS, "ada")
    assert len(base64.b64decode(data)) < LARGEST
    return read_custom_data(base64.b64decode(data), "ada")


def test_nothing_in_it_is_misunderstood(config: CloudConfig) -> None:
    assert config.problems == []
    assert config.host_keys == {"ed25519_private": "a private key", "ed25519_public": "ssh-ed25519 AAAA"}
    assert all(file.mode == 0o644 and not file.append for file in config.files)


def test_the_agent_arrives_whole_with_its_terms(config: CloudConfig) -> None:
    files = {file.path: file.content for file in config.files}
    assert files[AGENT] == agent_archive()
    assert json.loads(files[AGENT_CONFIG]) == {"lease": 14400, "idle": 1200, "cap": 34200, "home": "/home/ada"}
    assert files["/etc/ssh/sshd_config.d/60-gpuinfra.conf"] == b"ClientAliveInterval 30\nClientAliveCountMax 4\n"


def test_the_service_is_started_and_starts_again(config: CloudConfig) -> None:
    files = {file.path: file.content for file in config.files}
    unit = files[f"/etc/systemd/system/{AGENT_UNIT}"].decode()
    (start,) = (line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart="))
    words = shlex.split(start)
    assert words[words.index("--home") + 1] == "/home/ada"
    assert words[words.index("--config") + 1] == AGENT_CONFIG
    assert AGENT in words
    assert {"Restart=always", "StartLimitIntervalSec=0", "WantedBy=multi-user.target"} <= set(unit.splitlines())
    assert config.run_commands[-2:] == [("systemctl", "daemon-reload"), ("systemctl", "enable", "--now", AGENT_UNIT)]


def test_custom_data_is_identical_for_identical_machines() -> None:
    key = HostKey("public", "private")
    assert custom_data(key, TERMS, "ada") == custom_data(key, TERMS, "ada")
    assert json.loads(_agent_file(Terms(TERMS.lease, TERMS.idle)))["cap"] is None


def _agent_file(terms: Terms) -> str:
    data = base64.b64decode(custom_data(HostKey("public", "private"), terms, "ada"))
    (content,) = (file.content for file in read_custom_data(data, "ada").files if file.path == AGENT_CONFIG)
    return content.decode()
