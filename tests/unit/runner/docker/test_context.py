"""A machine as a Docker context."""

import io
import json
import tarfile
from dataclasses import replace

from gpuinfra.models.target import Target
from gpuinfra.runner.docker.context import archive, endpoint, known_hosts_line

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
TARGET = Target("my_dsvm", "my-dsvm", "remotedocker", "203.0.113.7", 22, "azureuser", KEY, "/home/me/.ssh/id_ed25519")


def test_archive_has_the_format_of_docker_context_export() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive(TARGET))) as tar:
        description, certificates = tar.getmembers()
        stream = tar.extractfile(description)
        assert stream is not None
        content = json.load(stream)
    assert (description.name, certificates.name, certificates.isdir()) == ("meta.json", "tls", True)
    assert content == {
        "Name": "my-dsvm",
        "Metadata": {"Description": "GPU machine my-dsvm"},
        "Endpoints": {"docker": {"Host": "ssh://azureuser@203.0.113.7:22", "SkipTLSVerify": False}},
    }
    assert archive(TARGET) == archive(replace(TARGET, identity=None)), "it has no path of this computer"


def test_another_port_is_part_of_the_address() -> None:
    other = replace(TARGET, port=2222)
    assert endpoint(other) == "ssh://azureuser@203.0.113.7:2222"
    assert known_hosts_line(other) == f"[203.0.113.7]:2222 {KEY}"
    assert known_hosts_line(TARGET) == f"203.0.113.7 {KEY}"
