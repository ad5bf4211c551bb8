"""A machine's Docker Engine as the content of a file for `docker context import`."""

from __future__ import annotations

import io
import json
import tarfile
from urllib.parse import quote

from gpuinfra.models.target import Target
from gpuinfra.runner.connection.handshake import host_and_port
from gpuinfra.runner.connection.known_hosts import HostKey


def endpoint(target: Target) -> str:
    """Return the address of the engine, which the Docker CLI reaches with `ssh`."""
    return f"ssh://{quote(target.username, safe='')}@{host_and_port(target.address, target.port)}"


def archive(target: Target) -> bytes:
    """Return what `docker context export` would write. It contains no secret, and is the same for the same machine."""
    content = {
        "Name": target.machine,
        "Metadata": {"Description": f"GPU machine {target.machine}"},
        "Endpoints": {"docker": {"Host": endpoint(target), "SkipTLSVerify": False}},
    }
    text = json.dumps(content, separators=(",", ":")).encode()
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        description = tarfile.TarInfo("meta.json")
        description.size = len(text)
        tar.addfile(description, io.BytesIO(text))
        # SSH needs no certificates, but the Docker CLI writes the folder.
        certificates = tarfile.TarInfo("tls")
        certificates.type, certificates.mode = tarfile.DIRTYPE, 0o700
        tar.addfile(certificates)
    return written.getvalue()


def known_hosts_line(target: Target) -> str:
    """Return the line for `known_hosts` with the machine's address, as in the endpoint."""
    host = target.address if target.port == 22 else f"[{target.address}]:{target.port}"
    return f"{host} {HostKey.parse(target.host_key)}"
