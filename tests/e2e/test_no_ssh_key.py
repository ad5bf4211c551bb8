"""A user who never used SSH: gpuinfra creates a key of its own, and every command finds it."""

import stat
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Exit
from tests.e2e.azure import Azure
from tests.e2e.jobs import Terminal
from tests.e2e.run_help import project
from tests.e2e.user import User


@pytest.fixture
def newcomer(azure: Azure, tmp_path: Path) -> User:
    """A user without an SSH key."""
    user = User(azure, tmp_path / "user", tmp_path / "project", key=False)
    (user.home / ".ssh").rmdir()
    project(user)
    return user


def own_key(user: User) -> Path:
    return user.home / ".gpuinfra" / "ssh" / "id_ed25519"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_up_in_the_sandbox_creates_a_key_that_every_command_finds(newcomer: User, tmp_path: Path) -> None:
    nothing = tmp_path / "bin"
    nothing.mkdir()
    done = newcomer("up", "gpu.yaml", PATH=str(nothing))  # no `ssh-keygen` either
    assert done.returncode == 0, done.stderr
    key = own_key(newcomer)
    assert f"created an SSH key for gpuinfra: {key}" in done.stderr
    assert (mode(key), mode(key.parent)) == (0o600, 0o700)
    assert not (newcomer.home / ".ssh").exists()

    assert f"IdentityFile={key}" in newcomer.does("ssh", "my-dsvm")["command"]
    assert f"IdentityFile {key}" in newcomer("export", "my-dsvm", "--format", "ssh-config").stdout
    assert newcomer("submit", "-c", "my_dsvm", "quick.py").returncode == 0
    assert "ssh-key" in newcomer("doctor").stdout

    # Without the spec, only the path of the key shows that it is ours.
    (newcomer.workspace / "gpu.yaml").unlink()
    assert f"IdentityFile={key}" in newcomer.does("ssh", "my-dsvm")["command"]


def test_existing_key_of_gpuinfra_is_never_overwritten(newcomer: User) -> None:
    newcomer.up()
    key = own_key(newcomer)
    before = key.read_bytes()
    key.with_suffix(".pub").unlink()
    done = newcomer("up", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert key.read_bytes() == before
    assert "another SSH key" not in done.stdout + done.stderr


def test_machine_stays_reachable_after_the_user_creates_a_key(newcomer: User) -> None:
    newcomer.up()
    newcomer.private_key.parent.mkdir(mode=0o700)
    newcomer.make_key()
    command = newcomer.does("ssh", "my-dsvm")["command"]
    assert f"IdentityFile={own_key(newcomer)}" in command
    assert newcomer("submit", "-c", "my_dsvm", "quick.py").returncode == 0


def test_without_terminal_the_error_names_the_option(newcomer: User, azure: Azure) -> None:
    problem = newcomer.fails("up", "gpu.yaml", code="no-public-key", sandbox=False, **azure.environment())
    assert "--yes" in problem["help"]
    assert str(own_key(newcomer)) in problem["help"]
    assert azure.writes() == []
    assert not own_key(newcomer).exists()


def test_plan_without_a_key_says_that_up_creates_one(newcomer: User, azure: Azure) -> None:
    done = newcomer("plan", "gpu.yaml", sandbox=False, **azure.environment())
    assert done.returncode == 0, done.stderr
    assert "`up` creates" in done.stderr
    assert not own_key(newcomer).exists()


def test_yes_creates_a_key(newcomer: User, azure: Azure) -> None:
    machine = newcomer.up("--yes", sandbox=False, **azure.environment())
    assert machine["target"]["machine"] == "my-dsvm"
    assert mode(own_key(newcomer)) == 0o600


def test_on_a_terminal_up_asks_before_it_creates_a_key(newcomer: User, azure: Azure) -> None:
    terminal = Terminal(newcomer, "up", "gpu.yaml", **azure.environment())
    try:
        terminal.wait_for_text(b"Create one for gpuinfra?")
        terminal.type_keys(b"n\n")
        assert terminal.wait_for_exit() == Exit.FAILED
    finally:
        terminal.close()
    assert azure.writes() == []
    assert not own_key(newcomer).exists()


def test_missing_key_named_in_the_spec_is_not_replaced(newcomer: User, azure: Azure) -> None:
    newcomer.spec(admin={"sshPublicKey": "~/.ssh/work.pub"})
    problem = newcomer.fails("up", "gpu.yaml", "--yes", code="no-public-key")
    assert "work.pub" in problem["note"]
    assert azure.writes() == []
    assert not own_key(newcomer).exists()
