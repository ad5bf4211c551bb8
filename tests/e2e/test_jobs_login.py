"""Jobs of a user who is not root on the machine, as on every Azure VM, while containers run as root."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuinfra.models.target import Target
from tests.e2e.jobs import outputs_of, read_tree, run_for_bytes, show_run, submit_job, submit_refused
from tests.lab import REMOTE, REMOTEDOCKER, Lab
from tests.sshd import SshServer

USER, NUMBER = "alice", 65533
# It leaves files in the project and in the outputs that only root may change.
LEAVING = """
import os
os.umask(0o077)
for folder in (".", "outputs"):
    os.makedirs(os.path.join(folder, "left", "deep"))
    with open(os.path.join(folder, "left", "deep", "file"), "w") as file:
        file.write(str(os.getuid()))
print(sorted(os.listdir(".")))
"""
FIRST = b"['aml_config', 'left', 'outputs', 'train.py']\n"


class OrdinaryServer(SshServer):
    """A server that knows an unprivileged user. Only this server sees the changed user database."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        users = folder / "passwd"
        users.write_text(f"{Path('/etc/passwd').read_text()}{USER}:x:{NUMBER}:{NUMBER}::/:/bin/sh\n")
        script = 'mount --bind "$0" /etc/passwd || exit; exec "$@"'
        self.prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(users)]

    @property
    def target(self) -> Target:
        return replace(super().target, username=USER)


@pytest.fixture
def machine(lab: Lab) -> Iterator[Lab]:
    """The lab with an unprivileged login that may use the engine."""
    usual, mode = lab.server, lab.engine.socket.stat().st_mode
    with tempfile.TemporaryDirectory(dir=lab.folder) as folder:
        lab.server = OrdinaryServer(Path(folder) / "sshd")
        Path(folder).chmod(0o755)
        lab.server.settings = usual.settings
        lab.engine.socket.chmod(0o666)
        shutil.chown(lab.home, NUMBER, NUMBER)
        try:
            lab.server.start()
            yield lab
        finally:
            lab.server.stop()
            lab.server = usual
            lab.engine.socket.chmod(mode)


def test_files_of_a_containers_root_are_fetched_and_removed(machine: Lab) -> None:
    user = machine.user()
    for _ in range(2):
        code, out, errors = run_for_bytes(user, "submit", "-c", REMOTEDOCKER, user.script(LEAVING))
        assert (code, out) == (0, FIRST), errors
        run = show_run(user)
        assert run["outputs"]["complete"], run
        assert read_tree(outputs_of(user, run["id"])) == {"left/deep/file": b"0"}
        assert not (machine.home / ".gpuinfra/runs" / run["id"]).exists()
    run = submit_job(user, "-c", REMOTE, "train.py")
    assert read_tree(outputs_of(user, run["id"])) == {"left/deep/file": str(NUMBER).encode()}

    # A folder of another user is in the way.
    (tree,) = machine.home.glob(".gpuinfra/projects/*.bare/slot-1/tree")
    (tree / "foreign").mkdir(mode=0o700)
    (tree / "foreign/file").touch()
    assert str(tree) in submit_refused(user, "-c", REMOTE, "train.py", code="upload-failed")["note"]


def test_engine_without_permission_is_reported(machine: Lab) -> None:
    user = machine.user()
    machine.engine.socket.chmod(0o600)
    try:
        found = submit_refused(user, "-c", REMOTEDOCKER, user.script("print('hello')\n"), code="no-engine")
        assert "docker" in found["help"]
    finally:
        machine.engine.socket.chmod(0o666)
