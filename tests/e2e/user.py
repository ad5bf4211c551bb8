"""A user of the installed program."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests import program
from tests.e2e.azure import Azure
from tests.program import PROGRAM

__all__ = ["PROGRAM", "Run", "User", "inherited", "run_program"]

Run = Callable[..., subprocess.CompletedProcess[str]]

REGION, OTHER_REGION = "southcentralus", "eastus"
SIZE, LARGER_SIZE = "Standard_NC4as_T4_v3", "Standard_NC8as_T4_v3"
SPEC: dict[str, Any] = {
    "apiVersion": "gpuinfra/v1",
    "name": "my-dsvm",
    "region": REGION,
    "size": SIZE,
    "network": {"allowSshFrom": ["203.0.113.7/32"]},
}
PARTS = [
    "disks/my-dsvm-disk",
    "networkInterfaces/my-dsvm-nic",
    "networkSecurityGroups/my-dsvm-nsg",
    "publicIPAddresses/my-dsvm-ip",
    "resourceGroups/gpuinfra-my-dsvm",
    "schedules/shutdown-computevm-my-dsvm",
    "virtualMachines/my-dsvm",
    "virtualNetworks/my-dsvm-vnet",
]
"""All resources of a machine."""


def run_program(
    *arguments: str,
    folder: Path,
    stdin: str = "",
    seconds: float = 240,
    executed: bool = False,
    patch: Mapping[str, float] | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run `gpuinfra` in a folder, without settings of this shell."""
    environment = {**inherited(), **variables}
    return program.run(
        *arguments, cwd=folder, env=environment, stdin=stdin, timeout=seconds, executed=executed, patch=patch
    )


def inherited() -> dict[str, str]:
    """Return the part of this process's environment that a program gets."""
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


class User:
    """A user with a home, an SSH key and a project."""

    patch: Mapping[str, float] | None = None
    """Constants of the program that a test sets, for all commands."""

    def __init__(self, azure: Azure, home: Path, workspace: Path, *, key: bool = True) -> None:
        self.azure, self.home, self.workspace = azure, home, workspace
        self.private_key = home / ".ssh" / "id_ed25519"
        workspace.mkdir(parents=True, exist_ok=True)
        self.private_key.parent.mkdir(parents=True, mode=0o700)
        if key:
            self.make_key()

    def make_key(self, passphrase: str = "") -> None:
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "user", "-f", str(self.private_key)]
        subprocess.run(words, check=True, timeout=20)

    @property
    def variables(self) -> dict[str, str]:
        return {"HOME": str(self.home), "GPUINFRA_SANDBOX_HOME": str(self.azure.folder)}

    def spec(self, *left_out: str, file: str = "gpu.yaml", **fields: Any) -> str:
        """Write a spec file: the usual spec with these fields added or replaced. JSON is YAML."""
        document = {name: value for name, value in {**SPEC, **fields}.items() if name not in left_out}
        (self.workspace / file).write_text(json.dumps(document))
        return file

    def start(self, *words: str, terminal: int | None = None, **more: str) -> subprocess.Popen[str]:
        """Start the program, on a terminal or without one."""
        return program.Program(
            *words,
            cwd=self.workspace,
            env={**inherited(), **self.variables, "GPUINFRA_CLOUD": "sandbox", **more},
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE if terminal is None else terminal,
            stderr=subprocess.PIPE if terminal is None else terminal,
            text=True,
        )

    def __call__(self, *words: str, sandbox: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run the program. Any result is fine, except a traceback."""
        variables = {**self.variables, **({"GPUINFRA_CLOUD": "sandbox"} if sandbox else {}), **more}
        done = run_program(*words, folder=self.workspace, patch=self.patch, **variables)
        assert "Traceback" not in done.stderr, done.stderr
        assert "internal error" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done

    def does(self, *words: str, **more: Any) -> dict[str, Any]:
        """Run a command that must succeed, and return the object that it prints."""
        done = self(*words, "--json", **more)
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["schemaVersion"] == 1
        return document

    def up(self, *words: str, **more: Any) -> dict[str, Any]:
        """Run `up`, and return the one machine."""
        (machine,) = self.does("up", "gpu.yaml", *words, **more)["machines"]
        return dict(machine)

    def plan(self, *words: str) -> dict[str, Any]:
        (plan,) = self.does("plan", "gpu.yaml", *words)["plans"]
        return dict(plan)

    def down(self, *words: str, **more: Any) -> dict[str, Any]:
        """Run `down`, and return the one receipt."""
        (receipt,) = self.does("down", *words, **more)["receipts"]
        return dict(receipt)

    def fails(self, *words: str, code: str, exit_code: int = 1, **more: Any) -> dict[str, Any]:
        """Run a command that must fail with this one problem, which has a help text."""
        done = self(*words, "--json", **more)
        assert done.returncode == exit_code, done.stdout + done.stderr
        (diagnostic,) = json.loads(done.stdout)["diagnostics"]
        assert diagnostic["code"] == code, diagnostic
        assert diagnostic["summary"]
        assert diagnostic.get("help"), f"no next step: {diagnostic}"
        return dict(diagnostic)


def run_reap(user: User, *words: str, code: int = 0) -> dict[str, Any]:
    """Run `reap`, which must exit with this code, and return the object that it prints."""
    done = user("reap", *words, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return dict(json.loads(done.stdout))
