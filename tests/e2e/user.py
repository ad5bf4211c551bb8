"""Somebody who uses the installed program."""

import json
import os
import subprocess
from collections.abc import Callable
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
"""All that a machine is made of."""


def run_program(
    *arguments: str, folder: Path, stdin: str = "", seconds: float = 240, executed: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `gpuinfra` in a folder, with nothing of this shell's own settings."""
    environment = {**inherited(), **variables}
    return program.run(*arguments, cwd=folder, env=environment, stdin=stdin, timeout=seconds, executed=executed)


def inherited() -> dict[str, str]:
    """What a program gets of this process's environment."""
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


class User:
    """Somebody with a home, an SSH key and a project of their own, who has the program installed."""

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
        """Write a file: the usual spec with these fields besides or instead. JSON is YAML."""
        document = {name: value for name, value in {**SPEC, **fields}.items() if name not in left_out}
        (self.workspace / file).write_text(json.dumps(document))
        return file

    def start(self, *words: str, terminal: int | None = None, **more: str) -> subprocess.Popen[str]:
        """The program on its way, on a terminal or on none."""
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
        """Whatever comes of it; only a traceback never does."""
        variables = {**self.variables, **({"GPUINFRA_CLOUD": "sandbox"} if sandbox else {}), **more}
        done = run_program(*words, folder=self.workspace, **variables)
        assert "Traceback" not in done.stderr, done.stderr
        assert "internal error" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done

    def does(self, *words: str, **more: Any) -> dict[str, Any]:
        """It succeeds; the object that it prints."""
        done = self(*words, "--json", **more)
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["schemaVersion"] == 1
        return document

    def up(self, *words: str, **more: Any) -> dict[str, Any]:
        """The one machine that `up` brought up."""
        (machine,) = self.does("up", "gpu.yaml", *words, **more)["machines"]
        return dict(machine)

    def plan(self, *words: str) -> dict[str, Any]:
        (plan,) = self.does("plan", "gpu.yaml", *words)["plans"]
        return dict(plan)

    def down(self, *words: str, **more: Any) -> dict[str, Any]:
        """The one receipt."""
        (receipt,) = self.does("down", *words, **more)["receipts"]
        return dict(receipt)

    def fails(self, *words: str, code: str, exit_code: int = 1, **more: Any) -> dict[str, Any]:
        """It fails with this one problem, and says what to do."""
        done = self(*words, "--json", **more)
        assert done.returncode == exit_code, done.stdout + done.stderr
        (diagnostic,) = json.loads(done.stdout)["diagnostics"]
        assert diagnostic["code"] == code, diagnostic
        assert diagnostic["summary"]
        assert diagnostic.get("help"), f"no next step: {diagnostic}"
        return dict(diagnostic)
