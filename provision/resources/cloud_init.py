"""Generate the cloud-init configuration for a new machine's first boot, with the guest agent."""

import base64
import gzip
import io
import json
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from gpuinfra.provision.lease import Terms
from gpuinfra.provision.login import HostKey
from gpuinfra.templates import read_template

LARGEST = 64 * 1024
"""Azure's limit for custom data."""
AGENT = "/usr/local/lib/gpuinfra/agent.pyz"
AGENT_CONFIG = "/etc/gpuinfra/agent.json"
AGENT_UNIT = "gpuinfra-agent.service"
_KIND_SETTING = "Provisioning.SshHostKeyPairType"
_AGENT_KEY_KIND = (
    f"sed -i '/^ *{_KIND_SETTING}=/d' /etc/waagent.conf && echo {_KIND_SETTING}=ed25519 >> /etc/waagent.conf || true"
)
# Detect a lost client after two minutes; otherwise its connection would still count as a login.
_SSH_SERVER = "ClientAliveInterval 30\nClientAliveCountMax 4\n"


def custom_data(host_key: HostKey, terms: Terms, username: str) -> str:
    """Return the cloud-init data in Azure's encoding: the host key, and the agent that switches the machine off."""
    config = {
        # We do not know the image's own keys, so only ours may be used.
        "ssh_deletekeys": True,
        "ssh_genkeytypes": [],
        "ssh_keys": {"ed25519_private": host_key.private, "ed25519_public": host_key.public},
        # Azure's agent waits half an hour for an RSA host key, its default, before it reports ready.
        "bootcmd": [_AGENT_KEY_KIND],
        "write_files": _files(terms, f"/home/{username}"),
        "runcmd": [
            _docker_group(username),
            # sshd may have read its configuration before this file was written.
            "systemctl try-reload-or-restart ssh || true",
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", "--now", AGENT_UNIT],
        ],
    }
    return _encoded(config)


def public_data(username: str) -> str:
    """Return the data without secrets, for a template: no host key, and no agent, which would lack its role."""
    return _encoded({"runcmd": [_docker_group(username)]})


def _docker_group(username: str) -> str:
    # On the Data Science VM image, the administrator cannot use Docker by default.
    return f"usermod -aG docker {username} || true"


def _encoded(config: dict[str, Any]) -> str:
    # JSON is valid YAML and simpler to quote.
    return base64.b64encode(f"#cloud-config\n{json.dumps(config, indent=1)}\n".encode()).decode("ascii")


def agent_config(terms: Terms, home: str) -> dict[str, Any]:
    """Return the agent's settings for when it cannot read the VM's tags from Azure."""
    cap = int(terms.cap.total_seconds()) if terms.cap is not None else None
    lease, idle = int(terms.lease.total_seconds()), int(terms.idle.total_seconds())
    return {"lease": lease, "idle": idle, "cap": cap, "home": home}


def agent_unit(home: str) -> str:
    """Return the agent's systemd unit."""
    return read_template("agent.service").replace("{home}", home)


def _files(terms: Terms, home: str) -> list[dict[str, str]]:
    # A fixed time in the archive keeps the data identical for identical machines.
    agent = gzip.compress(agent_archive(), mtime=0)
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


_REMOTE = "gpuinfra.remote"
_SHARED = ("run_folder.py",)
"""What the agent imports from the rest of `remote`."""
_MAIN = f"import sys\n\nfrom {_REMOTE}.agent.main import main\n\nsys.exit(main())\n"


def agent_archive() -> bytes:
    """Return the archive; the same bytes for the same modules.

    It is not compressed: cloud-init's own compression of the whole file makes it smaller.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, text in sorted(_contents()):
            # Without a time, owner and mode of its own.
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, text)
    return buffer.getvalue()


def _contents() -> Iterator[tuple[str, str]]:
    yield "__main__.py", _MAIN
    root, folder = files(_REMOTE), _REMOTE.replace(".", "/")
    yield "gpuinfra/__init__.py", ""
    yield f"{folder}/__init__.py", ""
    for name in _SHARED:
        yield f"{folder}/{name}", root.joinpath(name).read_text("utf-8")
    for file in root.joinpath("agent").iterdir():
        if file.name.endswith(".py"):
            yield f"{folder}/agent/{file.name}", file.read_text("utf-8")
