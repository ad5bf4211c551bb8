"""The real `az` program, logged in to an embedded Azure."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.real import missing

# Not the script `az` beside it: a script cannot name an interpreter whose path has spaces.
PYTHON = Path(__file__).parents[1] / ".venv-az" / "bin" / "python"


class Az:
    """`az` with its own home folder; a call returns what it prints as JSON."""

    def __init__(self, folder: Path, *, endpoint: str, authority_file: str) -> None:
        if not PYTHON.with_name("az").exists():
            missing("no az program in .venv-az: scripts/azure-cli installs it")
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "AZURE_CONFIG_DIR": str(folder / "azure"),
            "REQUESTS_CA_BUNDLE": authority_file,
            "AZURE_CORE_INSTANCE_DISCOVERY": "false",
            "AZURE_CORE_COLLECT_TELEMETRY": "false",
            "AZURE_CORE_ONLY_SHOW_ERRORS": "true",
            "AZURE_EXTENSION_USE_DYNAMIC_INSTALL": "no",
        }
        self("cloud", "register", "-n", "Sandbox", "--endpoint-resource-manager", endpoint)
        self("cloud", "set", "-n", "Sandbox")

    def login(self, *, tenant: str, client: str, secret: str) -> Any:
        """Log in as a service principal, and return the one subscription."""
        (subscription,) = self("login", "--service-principal", "-u", client, "-p", secret, "-t", tenant)
        return subscription

    def __call__(self, *words: str, fails: str | None = None) -> Any:
        """Run `az`. It must succeed, or fail with a message that contains `fails`."""
        done = subprocess.run(
            [PYTHON, "-m", "azure.cli", *words, "--output", "json"],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        if fails is not None:
            assert done.returncode != 0
            assert fails in done.stderr
            return None
        assert done.returncode == 0, f"az {' '.join(words)}\n{done.stderr}"
        return json.loads(done.stdout) if done.stdout.strip() else None
