"""Manage the sandbox's server process, and report its errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, problem

if TYPE_CHECKING:
    from gpuinfra.sandbox.running import Client, Description

START = "`gpuinfra sandbox start` starts it"


def fault_names() -> Sequence[str]:
    """Return the names of the faults that can be injected."""
    from gpuinfra.sandbox.kernel.faults import NAMES

    return NAMES


class Sandbox:
    """The sandbox server in the user's own folder."""

    def __init__(self) -> None:
        from gpuinfra.sandbox import running

        self._process = running
        self.folder: Path = running.default_folder()

    def status(self) -> Description | None:
        """Return the server's description, or None if it does not run."""
        return self._process.status(self.folder)

    def start(self) -> Description:
        """Start the server."""
        return self._process.start(self.folder)

    def start_if_needed(self) -> str | None:
        """Start the server unless it runs. Return its endpoint if it was started, else None."""
        with self.problems():
            return None if self.status() else self._process.ensure_started(self.folder).endpoint

    def stop(self) -> bool:
        """Stop the server, and return whether it ran."""
        return self._process.stop(self.folder)

    def reset(self) -> None:
        """Delete machines, groups, bills, faults and logs."""
        self._process.reset(self.folder)

    def client(self) -> Client:
        """Return a client for the server. Raise Problem if it does not run."""
        client = self._process.client(self.folder)
        if client is None:
            raise self.not_running()
        return client

    def docker_environment(self) -> dict[str, str]:
        """Return the environment in which `docker` finds the engine that simulated machines use."""
        description = self.status()
        host = description.docker_host if description else ""
        kept = {name: value for name, value in os.environ.items() if name not in {"DOCKER_HOST", "DOCKER_CONTEXT"}}
        return {**kept, **({"DOCKER_HOST": host} if host else {"DOCKER_CONTEXT": "default"})}

    @property
    def docker_help(self) -> str:
        """How to use this shell's Docker Engine in the sandbox; empty if the sandbox uses it already."""
        description, own = self.status(), os.environ.get("DOCKER_HOST", "")
        if description is None or description.docker_host == own:
            return ""
        return "`gpuinfra sandbox stop`, because the sandbox uses the `DOCKER_HOST` of the shell that starts it"

    def not_running(self) -> Problem:
        """Return the Problem for a server that does not run."""
        note = f"nothing serves `{self.folder}`"
        return problem(Code.SANDBOX_NOT_RUNNING, "the sandbox is not running", note, START)

    def environment(self) -> dict[str, str]:
        """Return the variables that point other clients at the server. They contain a secret."""
        with self.problems():
            credentials = self.client().get("credentials")
            description = self.status()
        if description is None:
            raise self.not_running()
        variables = {
            "AZURE_TENANT_ID": credentials["tenant"],
            "AZURE_CLIENT_ID": credentials["clientId"],
            "AZURE_CLIENT_SECRET": credentials["clientSecret"],
            "AZURE_SUBSCRIPTION_ID": credentials["subscription"],
            "AZURE_AUTHORITY_HOST": description.authority,
            "GPUINFRA_ARM_ENDPOINT": description.endpoint,
            "REQUESTS_CA_BUNDLE": description.ca,
            "AZURE_CORE_INSTANCE_DISCOVERY": "false",
        }
        if description.ssh_port is not None:
            variables["GPUINFRA_SSH_PORT"] = str(description.ssh_port)
        return variables

    @contextmanager
    def problems(self) -> Iterator[None]:
        """Convert errors of the server to Problems."""
        from gpuinfra.sandbox.running import ClientError, MissingPartsError, ProcessError, RefusedError

        try:
            yield
        except MissingPartsError as error:
            raise problem(
                Code.SANDBOX_NOT_INSTALLED,
                "the sandbox is not installed",
                str(error),
                "pip install 'gpuinfra[sandbox]'",
            ) from error
        except RefusedError as error:
            raise problem(
                Code.SANDBOX_REFUSED,
                "the sandbox refuses",
                str(error),
                exit_code=Exit.USAGE if error.status == 400 else Exit.FAILED,
            ) from error
        except (ProcessError, ClientError) as error:
            note, where = str(error), f"its log is `{self.folder / 'server.log'}`"
            diagnostic = Diagnostic(Code.SANDBOX_FAILED, "the sandbox does not work", note=note, help=where)
            raise Problem(diagnostic, log=getattr(error, "log", "")) from error
