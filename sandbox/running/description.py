"""Where a running server is: `server.json` in its folder."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "server.json"
# Names of fields and of members in the file.
_TEXTS = {
    **{name: name for name in ("endpoint", "authority", "ca", "tenant", "subscription", "started")},
    "client_id": "clientId",
    "docker_host": "dockerHost",
}


@dataclass(frozen=True)
class Description:
    """What clients need to know about a server. It contains no secrets."""

    pid: int
    port: int
    endpoint: str
    authority: str
    ca: str
    """The file with the certificate that clients have to trust."""
    tenant: str
    subscription: str
    client_id: str
    started: str
    ssh_port: int | None = None
    docker_host: str = ""
    """The DOCKER_HOST that guests use: the one of the shell that started the server."""

    def as_json(self) -> dict[str, Any]:
        plain = {"pid": self.pid, "port": self.port, **{key: getattr(self, name) for name, key in _TEXTS.items()}}
        return plain if self.ssh_port is None else {**plain, "sshPort": self.ssh_port}


def from_json(plain: dict[str, Any]) -> Description:
    """Parse what `as_json` returns. Raises KeyError for anything else."""
    port = plain.get("sshPort")
    return Description(
        pid=int(plain["pid"]),
        port=int(plain["port"]),
        ssh_port=None if port is None else int(port),
        **{name: str(plain[key]) for name, key in _TEXTS.items()},
    )


def read_description(folder: Path) -> Description | None:
    """Return the description in a folder, if there is one."""
    try:
        return from_json(json.loads((folder / FILE).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_description(folder: Path, description: Description) -> None:
    """Write the description atomically, readable by this user only."""
    temporary = folder / f"{FILE}.new"
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        json.dump(description.as_json(), stream, indent=2)
    temporary.replace(folder / FILE)


def remove_description(folder: Path) -> None:
    """Remove the description: the server has ended."""
    (folder / FILE).unlink(missing_ok=True)
