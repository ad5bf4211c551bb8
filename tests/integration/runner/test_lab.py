"""The lab that tests of jobs use."""

import subprocess
from pathlib import Path

from tests.lab import BUSYBOX, PYTHON, REMOTEDOCKER, Lab
from tests.sshd import eventually
from tests.variants import variant

SECONDS = 30.0


def test_login_has_the_home_and_the_images_of_the_lab(lab: Lab) -> None:
    with lab.connected() as connection:
        said = connection.run("echo $HOME; docker image ls --format '{{.Repository}}:{{.Tag}}'", timeout=SECONDS)
    assert {str(lab.home), BUSYBOX, PYTHON} <= set(said.stdout.split())


def test_reset_ends_all_processes(lab: Lab) -> None:
    with lab.connected() as connection:
        started = connection.run("setsid sleep 600 >/dev/null 2>&1 & echo $!", timeout=SECONDS)
    status = Path("/proc", started.stdout.strip(), "status")
    assert eventually(lambda: "sleep" in status.read_text())  # before, it is the shell or setsid
    lab.reset()
    assert eventually(lambda: not status.exists() or "State:\tZ" in status.read_text())


def test_disk_can_be_full(lab: Lab) -> None:
    fill = "head -c 3000000 /dev/zero > ~/.gpuinfra/file"
    with lab.connected() as connection:
        with lab.small_disk(2):
            assert "No space left" in connection.run(fill, timeout=SECONDS).stderr
        assert connection.run(fill, timeout=SECONDS).exit_code == 0


@variant
def test_restarted_engine_knows_its_containers(lab: Lab) -> None:
    engine = lab.engine
    engine.docker("run", "--name", "before", BUSYBOX, "echo", "hello")
    engine.restart()
    assert engine.docker("logs", "before").stdout == "hello\n"


@variant
def test_container_keeps_running_without_its_engine(lab: Lab) -> None:
    engine = lab.engine
    engine.options = ("--live-restore",)
    try:
        engine.restart()
        engine.docker("run", "-d", "--name", "running", BUSYBOX, "sleep", "600")
        engine.kill()
        engine.start()
        assert engine.docker("inspect", "-f", "{{.State.Running}} {{.RestartCount}}", "running").stdout == "true 0\n"
        engine.clear()
    finally:
        engine.options = ()
        engine.restart()


@variant
def test_python_of_the_image_can_create_environments(lab: Lab) -> None:
    script = (
        "python -c 'import ssl, sqlite3, ctypes, lzma' && python -m venv /tmp/v && /tmp/v/bin/python -m pip --version"
    )
    assert lab.engine.docker("run", "--rm", PYTHON, "sh", "-c", script).stdout.startswith("pip ")


def test_user_has_targets_of_every_type(lab: Lab) -> None:
    user = lab.user()
    listed = {each["name"]: each for each in user.does("targets")["targets"]}
    assert {name: each["type"] for name, each in listed.items()} == {
        "my_dsvm": "remotedocker",
        "bare": "remote",
        "docker": "localdocker",
        "local": "local",
    }
    assert listed[REMOTEDOCKER]["reachable"] == "yes"
    key = user.home / ".ssh" / "id_ed25519"
    words = ["ssh", "-F", "none", "-i", str(key), "-p", str(lab.server.port), "-o", "StrictHostKeyChecking=no"]
    said = subprocess.run(
        [*words, "-o", f"UserKnownHostsFile={user.home}/known", "127.0.0.1", "nvidia-smi", "-L"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert said.stdout.count("simulated") == 2
