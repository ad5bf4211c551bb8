"""Programs that a guest has of its own: installed at each boot, so that they fit the server that runs it."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from gpuinfra.sandbox.guest.disk import Disk, write_whole
from gpuinfra.sandbox.guest.spec import GuestSpec

_HERE = Path(__file__).parent
_SCRIPTS = ("sudo", "wall", "hostname", "who", "ss", "cloud-init", "journalctl", "docker", "usermod")
# What would act on the host, where a guest runs as the server's user.
_REFUSED = (
    *("shutdown", "poweroff", "reboot", "halt", "init", "telinit"),
    *("apt", "apt-get", "aptitude", "dpkg", "snap", "useradd", "adduser", "userdel", "groupadd", "addgroup"),
    *("passwd", "chpasswd", "gpasswd", "crontab", "at", "mount", "umount", "swapon", "swapoff", "modprobe", "sysctl"),
    *("iptables", "ip6tables", "nft", "ufw", "hostnamectl", "timedatectl", "loginctl"),
)
_LONGEST_FIRST_LINE = 240


def install(spec: GuestSpec, disk: Disk) -> None:
    """Put every program in its place; a size without GPU has no `nvidia-smi`."""
    for name in _SCRIPTS:
        write_whole(disk.bin / name, (_HERE / "shims" / name).read_bytes(), 0o755)
    for name in _REFUSED:
        write_whole(disk.bin / name, (_HERE / "shims" / "refused").read_bytes(), 0o755)
    _install_python(disk.bin / "systemctl", _HERE / "systemctl_client.py")
    nvidia_smi = disk.bin / "nvidia-smi"
    facts = nvidia_smi.with_suffix(".json")
    if spec.gpu is None:
        nvidia_smi.unlink(missing_ok=True)
        facts.unlink(missing_ok=True)
    else:
        write_whole(facts, json.dumps({**dataclasses.asdict(spec.gpu), "machine": spec.vm_id}, indent=1))
        _install_python(nvidia_smi, _HERE / "nvidia_smi.py")


def _install_python(target: Path, source: Path) -> None:
    """A script that stands alone, run by the server's Python, deaf to the variables of the job that calls it."""
    interpreter = f"{sys.executable} -IS"
    if " " in sys.executable or len(interpreter) > _LONGEST_FIRST_LINE:
        interpreter = "/usr/bin/env python3"
    write_whole(target, f"#!{interpreter}\n".encode() + source.read_bytes(), 0o755)
