"""What a new machine is told at its first boot."""

from __future__ import annotations

import base64
import json

from provision.setting import HostKey


def custom_data(host_key: HostKey) -> str:
    """cloud-init's instructions, as Azure takes them."""
    config = {
        # The image's own keys are not known to us: only ours may answer.
        "ssh_deletekeys": True,
        "ssh_genkeytypes": [],
        "ssh_keys": {"ed25519_private": host_key.private, "ed25519_public": host_key.public},
    }
    # JSON is YAML, and needs no quoting rules of its own.
    return base64.b64encode(f"#cloud-config\n{json.dumps(config, indent=1)}\n".encode()).decode("ascii")
