"""What a new machine is told at its first boot."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from gpuinfra.provision.lifecycle.terms import Terms
from gpuinfra.provision.plan_input import HostKey
from gpuinfra.templates import read_template

LARGEST = 64 * 1024
"""What Azure takes as custom data."""
AGENT = "/usr/local/lib/gpuinfra/agent.py"
AGENT_CONFIG = "/etc/gpuinfra/agent.json"
AGENT_UNIT = "gpuinfra-agent.service"
# A client that is gone without a word is noticed after two minutes: else its connection would look like a login.
_KIND_SETTING = "Provisioning.SshHostKeyPairType"
_AGENT_KEY_KIND = (
    f"sed -i '/^ *{_KIND_SETTING}=/d' /etc/waagent.conf && echo {_KIND_SETTING}=ed25519 >> /etc/waagent.conf || true"
)
_SSH_SERVER = "ClientAliveInterval 30\nClientAliveCountMax 4\n"


def custom_data(host_key: HostKey, terms: Terms, username: str) -> str:
    """cloud-init's instructions, as Azure takes them: the host's key, and the agent that switches the machine off."""
    config = {
        # The image's own keys are not known to us: only ours may answer.
        "ssh_deletekeys": True,
        "ssh_genkeytypes": [],
        "ssh_keys": {"ed25519_private": host_key.private, "ed25519_public": host_key.public},
        # Azure's agent waits half an hour for a host key of its own kind, which is RSA, before it reports ready.
        "bootcmd": [_AGENT_KEY_KIND],
        "write_files": _files(terms, f"/home/{username}"),
        "runcmd": [
            _docker_group(username),
            # sshd may have read its settings before ours were written.
            "systemctl try-reload-or-restart ssh || true",
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", "--now", AGENT_UNIT],
        ],
    }
    return _encoded(config)


def public_data(username: str) -> str:
    """The instructions that hold no secret, for a template: without the host key, and without the agent, which would
    have no right to switch the machine off."""
    return _encoded({"runcmd": [_docker_group(username)]})


def _docker_group(username: str) -> str:
    # The Data Science VM's image does not let its administrator use Docker.
    return f"usermod -aG docker {username} || true"


def _encoded(config: dict[str, Any]) -> str:
    # JSON is YAML, and needs no quoting rules of its own.
    return base64.b64encode(f"#cloud-config\n{json.dumps(config, indent=1)}\n".encode()).decode("ascii")


def agent_config(terms: Terms, home: str) -> dict[str, Any]:
    """What the agent goes by where it cannot ask Azure for the machine's tags."""
    cap = int(terms.cap.total_seconds()) if terms.cap is not None else None
    lease, idle = int(terms.lease.total_seconds()), int(terms.idle.total_seconds())
    return {"lease": lease, "idle": idle, "cap": cap, "home": home}


def agent_unit(home: str) -> str:
    """The agent's service."""
    return read_template("agent.service").replace("{home}", home)


def _files(terms: Terms, home: str) -> list[dict[str, str]]:
    # The same time in every archive: the same machine is told the same.
    agent = gzip.compress(read_template("agent.py").encode(), mtime=0)
    return [
        {
            "path": AGENT,
            "content": base64.b64encode(agent).decode("ascii"),
            "encoding": "gz+b64",
            "permissions": "0644",
        },
        {"path": f"/etc/systemd/system/{AGENT_UNIT}", "content": agent_unit(home), "permissions": "0644"},
        {"path": AGENT_CONFIG, "content": json.dumps(agent_config(terms, home)) + "\n", "permissions": "0644"},
        {"path": "/etc/ssh/sshd_config.d/60-gpuinfra.conf", "content": _SSH_SERVER, "permissions": "0644"},
    ]
