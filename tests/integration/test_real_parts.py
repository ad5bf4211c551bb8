"""The real programs that tests use are installed and start."""

import subprocess

import pytest

from tests.real import program


@pytest.mark.parametrize(
    ("name", "package", "arguments", "says"),
    [
        ("sshd", "openssh-server", ["-V"], "OpenSSH"),
        ("ssh", "openssh-client", ["-V"], "OpenSSH"),
        ("dockerd", "docker.io", ["--version"], "Docker version"),
        ("iptables", "iptables", ["--version"], "iptables"),
        ("busybox", "busybox-static", ["echo", "hello"], "hello"),
        ("debootstrap", "debootstrap", ["--version"], "debootstrap"),
        ("crontab", "cron", ["-h"], "usage"),
        ("systemd-analyze", "systemd", ["--version"], "systemd"),
        ("shellcheck", "shellcheck", ["--version"], "ShellCheck"),
        ("jq", "jq", ["--version"], "jq"),
        ("curl", "curl", ["--version"], "curl"),
    ],
)
def test_required_program_is_installed(name: str, package: str, arguments: list[str], says: str) -> None:
    done = subprocess.run([program(name, package), *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert says in done.stdout + done.stderr
