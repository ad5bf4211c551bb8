"""Docker in a guest: the image lets only root and members of the group `docker` use it, as the Data Science VM does."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuinfra.sandbox.guest.spec import GuestSpec
from tests.fake_engine import VERSION, fake_engine
from tests.integration.sandbox.guest_host import Client, GuestHost, Session, make_spec

ASK = 'docker version --format "{{.Server.Version}}"'
ADD_USER = b'#cloud-config\n{"runcmd": [["usermod", "-aG", "docker", "azureuser"]]}\n'


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with fake_engine(tmp_path_factory.mktemp("d") / "s") as address:
        yield address


def started(host: GuestHost, client: Client, root: Path, engine: str, custom_data: bytes | None = None) -> GuestSpec:
    spec = make_spec(root, client.public_key, environment={"DOCKER_HOST": engine}, custom_data=custom_data)
    host.call(host.guests.start(spec))
    return spec


def test_docker_is_denied_to_the_admin_user(host: GuestHost, client: Client, engine: str, tmp_path: Path) -> None:
    spec = started(host, client, tmp_path / "root", engine)
    try:
        denied = client.run(spec, ASK)
        assert (denied.returncode, b"permission denied" in denied.stderr) == (1, True)
        assert client.output(spec, f"sudo {ASK}") == VERSION
        forged = client.run(spec, "-oSetEnv=GPUINFRA_GUEST_GROUPS=docker", ASK)
        assert forged.returncode == 1
    finally:
        host.call(host.guests.delete(spec.vm_id, spec.root))


def test_docker_is_allowed_to_a_user_added_by_cloud_init(
    host: GuestHost, client: Client, engine: str, tmp_path: Path
) -> None:
    spec = started(host, client, tmp_path / "root", engine, ADD_USER)
    try:
        assert "done" in client.output(spec, "cloud-init status --wait")
        assert client.output(spec, ASK) == VERSION
    finally:
        host.call(host.guests.delete(spec.vm_id, spec.root))


def test_new_group_applies_to_later_logins(host: GuestHost, client: Client, engine: str, tmp_path: Path) -> None:
    spec = started(host, client, tmp_path / "root", engine)
    try:
        with client.connect(spec) as connection:
            before = Session(connection)
            assert "Permission denied" in before.output("usermod -aG docker azureuser 2>&1; true")
            before.output("sudo usermod -aG docker azureuser && sudo usermod -a -G docker azureuser")
            assert "permission denied" in before.output(f"{ASK} 2>&1; true")
        assert client.output(spec, ASK) == VERSION
        assert (spec.root / "etc" / "group").read_text().splitlines()[-1] == "docker:x:998:azureuser"
    finally:
        host.call(host.guests.delete(spec.vm_id, spec.root))


@pytest.mark.parametrize(
    "words", ["-G docker azureuser", "-aG nosuch azureuser", "-aG docker stranger", "-L azureuser", "-aG docker"]
)
def test_other_uses_of_usermod_are_refused(
    host: GuestHost, client: Client, engine: str, tmp_path: Path, words: str
) -> None:
    spec = started(host, client, tmp_path / "root", engine)
    try:
        assert client.run(spec, f"sudo usermod {words}").returncode != 0
        assert "azureuser" not in (spec.root / "etc" / "group").read_text()
    finally:
        host.call(host.guests.delete(spec.vm_id, spec.root))
