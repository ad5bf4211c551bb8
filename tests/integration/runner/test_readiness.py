"""Wait for a booting machine: a real OpenSSH server that starts late, and a guest of the embedded Azure."""

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gpuinfra.models.target import Target
from gpuinfra.runner.readiness import NotReady, wait_until_ready
from tests.integration.runner.conftest import SshServer, eventually, make_key
from tests.integration.sandbox.guest_host import Client, GuestHost, make_spec
from tests.progress import RecordedSteps


class RecordedProgress(RecordedSteps):
    """Records progress reports."""

    def __init__(self) -> None:
        self.reports = []
        self.doings: list[str] = []

    def begin(self, step: str, doing: str) -> None:
        self.doings.append(doing)


class Clock:
    """A clock that only pauses advance, so that a slow computer does not change the result."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


@contextlib.contextmanager
def meanwhile(progress: RecordedProgress, *acts: tuple[str, Callable[[], object]]) -> Iterator[None]:
    """Run each action as soon as the progress shows that the wait is for it."""

    def act() -> None:
        for doing, do in acts:
            assert eventually(partial(operator.contains, progress.doings, doing))
            do()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.fixture
def smi(tmp_path: Path, server: SshServer) -> Path:
    """The path of an `nvidia-smi` that the server's commands find first. It does not exist yet."""
    folder = tmp_path / "bin"
    folder.mkdir()
    server.settings["SetEnv"] = f"PATH={folder}:/usr/bin:/bin"
    return folder / "nvidia-smi"


def install(smi: Path, script: str) -> None:
    new = smi.with_suffix(".new")
    new.write_text(f"#!/bin/sh\n{script}\n")
    new.chmod(0o755)
    new.rename(smi)


def test_wait_follows_each_stage_of_a_boot(server: SshServer, smi: Path, tmp_path: Path) -> None:
    # A boot: no server, then the image's host key, then no login key, then no driver.
    progress, target = RecordedProgress(), server.target
    own, image = server.host_key, make_key(tmp_path / "image_key")
    server.host_key = image
    server.authorized_keys.write_text("")

    def replace_host_key() -> None:
        server.stop()
        server.host_key = own
        server.start()

    with meanwhile(
        progress,
        ("waiting for SSH", server.start),
        ("waiting for its host key", replace_host_key),
        ("waiting for its login key", lambda: server.authorize(server.user_key)),
        ("waiting for nvidia-smi", lambda: install(smi, "echo 'Tesla T4, 535.161.08, 15360 MiB, 7.5'")),
    ):
        facts = wait_until_ready(target, progress=progress)
    assert facts.models == ("Tesla T4",)
    assert not facts.simulated
    # While the server is replaced, a connection may be refused again.
    assert list(dict.fromkeys(progress.doings)) == [
        *("waiting for SSH", "waiting for its host key", "waiting for its login key"),
        "waiting for nvidia-smi",
    ]
    assert progress.reports[-1] == ("end", "gpu my-dsvm", "Tesla T4, 15360 MiB, driver 535.161.08")


def test_refused_connection_fails_at_the_ssh_stage(server: SshServer) -> None:
    clock = Clock()
    with pytest.raises(NotReady, match="Connection refused") as caught:
        wait_until_ready(server.target, ssh_seconds=5, progress=RecordedProgress(), clock=clock, pause=clock.pause)
    assert caught.value.stage == "ssh"


def test_missing_gpu_fails_at_the_gpu_stage(server: SshServer, smi: Path) -> None:
    server.start()
    install(smi, "echo 'No devices were found'; exit 6")
    clock = Clock()
    with pytest.raises(NotReady, match="printed: No devices were found") as caught:
        wait_until_ready(server.target, gpu_seconds=5, progress=RecordedProgress(), clock=clock, pause=clock.pause)
    assert caught.value.stage == "gpu"


def test_connection_that_is_lost_while_the_driver_loads_is_opened_again(server: SshServer, smi: Path) -> None:
    server.start()
    progress = RecordedProgress()

    def restart() -> None:
        server.cut()
        install(smi, "echo 'Tesla T4, 535.161.08, 15360 MiB, 7.5'")

    install(smi, "sleep 30")
    with meanwhile(progress, ("waiting for nvidia-smi", restart)):
        assert wait_until_ready(server.target, progress=progress).driver == "535.161.08"


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[tuple[GuestHost, Target]]:
    with contextlib.closing(GuestHost()) as host:
        client = Client(tmp_path)
        spec = make_spec(tmp_path / "root", client.public_key)
        host.call(host.guests.start(spec))
        key = (spec.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
        yield (
            host,
            Target(
                name="my_dsvm",
                machine="my-dsvm",
                type="remotedocker",
                address=spec.address,
                port=spec.port,
                username=spec.username,
                host_key=key,
                identity=str(client.key_file),
            ),
        )
        host.call(host.guests.delete(spec.vm_id, spec.root))


def test_guest_of_the_embedded_azure_is_ready_and_simulated(guest: tuple[GuestHost, Target]) -> None:
    progress = RecordedProgress()
    facts = wait_until_ready(guest[1], progress=progress)
    assert facts.as_json() == {
        "count": 1,
        "models": ["Tesla T4 (simulated)"],
        "driver": "535.161.08",
        "memoryMiB": [15360],
        "computeCapabilities": ["7.5"],
        "simulated": True,
    }


def test_guest_with_another_host_key_is_refused(guest: tuple[GuestHost, Target], tmp_path: Path) -> None:
    other = Path(f"{make_key(tmp_path / 'other')}.pub").read_text()
    target, clock = replace(guest[1], host_key=other), Clock()
    with pytest.raises(NotReady, match="shows the host key SHA256"):
        wait_until_ready(target, ssh_seconds=5, progress=RecordedProgress(), clock=clock, pause=clock.pause)
