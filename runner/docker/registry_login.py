"""The login for a pull: this computer's Docker credentials, else the machine's identity for an Azure registry."""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuinfra.diagnostics import Code
from gpuinfra.remote.registry_login import (
    FAILED,
    NO_IDENTITY,
    NO_METADATA,
    OBJECT_ID,
    REFUSED,
    UNREACHABLE,
    azure_registry,
)
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.errors import JobError, RemoteError
from gpuinfra.runner.progress import Progress

HEADER = "X-Registry-Auth"
# Azure's registries take the user's id from the token.
USER = "00000000-0000-0000-0000-000000000000"
MAX_PASSWORD = 1 << 16

MachineLogin = Callable[[str], Mapping[str, Any]]
"""Asks the machine for a password for a registry; the answer is that of `remote.registry_login`."""


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """The credentials of one pull."""

    headers: dict[str, str] = field(default_factory=dict, repr=False)
    """A request header, which is in no process list and not stored on the target."""
    registry: str = ""
    """The Azure Container Registry whose login was the machine's task; empty if it was not."""
    problem: str = ""
    """Why the machine has no password."""
    detail: str = ""
    principal: str = ""
    """The object id of the machine's identity."""


def log_in(engine: Engine, repository: str, progress: Progress) -> RegistryLogin:
    """Return the credentials for a repository's registry. Without any, a public image can still be pulled."""
    from docker import auth  # type: ignore[import-untyped]

    host, _ = auth.resolve_repository_name(repository)
    first, slash, _ = repository.partition("/")
    if slash and host == auth.INDEX_NAME and first != first.lower():
        return RegistryLogin()  # for the engine, it is a registry, and not a user of Docker Hub
    if headers := _own_credentials(engine, host, progress):
        return RegistryLogin(headers)
    registry = azure_registry(host)
    if registry is None or engine.machine_login is None:
        return RegistryLogin()
    login = _ask_machine(engine.machine_login, registry)
    if login.headers:
        progress.note(f"login to {registry} with the identity of {engine.where}")
    return login


def _ask_machine(ask: MachineLogin, registry: str) -> RegistryLogin:
    try:
        answer = ask(registry)
    except RemoteError as error:
        return RegistryLogin(registry=registry, problem=FAILED, detail=str(error))
    password, principal = answer.get("password"), str(answer.get("principal") or "")
    if not OBJECT_ID.fullmatch(principal):  # it becomes part of a command that the user may copy
        principal = ""
    if isinstance(password, str) and 0 < len(password) <= MAX_PASSWORD:
        content = json.dumps({"username": USER, "password": password, "serveraddress": registry}).encode()
        return RegistryLogin({HEADER: base64.urlsafe_b64encode(content).decode()}, registry, principal=principal)
    problem, detail = str(answer.get("problem") or FAILED), str(answer.get("detail") or "")
    return RegistryLogin({}, registry, problem, detail, principal)


def explain_refusal(error: JobError, login: RegistryLogin, where: str) -> JobError:
    """Return the error with its cause, if the machine's identity was to log in and the registry refused the pull."""
    is_refusal = error.code == Code.REGISTRY_LOGIN or (error.code == Code.NO_IMAGE and "denied" in error.note.lower())
    if not login.registry or not is_refusal:
        return error
    name = login.registry.partition(".")[0]
    log_in_here = f"log in on this computer: `az acr login --name {name}`"
    scope = f'"$(az acr show --name {name} --query id --output tsv)"'
    grant = (
        f"`az role assignment create --role AcrPull --assignee-object-id {login.principal or 'PRINCIPAL'} "
        f"--assignee-principal-type ServicePrincipal --scope {scope}`"
    )
    causes = {
        "": (f"the identity {login.principal} of {where} may not pull it", f"give it the role `AcrPull`: {grant}"),
        REFUSED: (
            f"the identity {login.principal} of {where} has no role there: {login.detail}",
            f"give it the role `AcrPull`: {grant}",
        ),
        NO_IDENTITY: (
            f"{where} has no identity that it could use: {login.detail}",
            f"give it one, `az vm identity assign --resource-group GROUP --name VM`, and the role `AcrPull`: {grant}",
        ),
        NO_METADATA: (f"{where} has no identity, because it is not a VM in Azure: {login.detail}", ""),
        UNREACHABLE: (
            f"{where} cannot reach https://{login.registry}/oauth2/exchange: {login.detail}",
            "check the machine's DNS and proxy, and the registry's firewall",
        ),
    }
    cause, fix = causes.get(login.problem, (f"{where} could not log in with its identity: {login.detail}", ""))
    summary = "the registry refuses the machine's identity" if login.problem in {"", REFUSED} else error.summary
    help_line = f"{fix}; or {log_in_here}" if fix else log_in_here
    return JobError(summary, f"{error.note}; {cause}", help_line, Code.REGISTRY_LOGIN)


def _own_credentials(engine: Engine, registry: str, progress: Progress) -> dict[str, str]:
    """Return this computer's credentials as a request header, unless the engine may not get them."""
    from docker import auth
    from docker.errors import DockerException  # type: ignore[import-untyped]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a missing helper is reported below
            header = auth.get_config_header(engine.api, registry)
    except (
        DockerException,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:  # the answer of a helper may be malformed
        # Like `docker pull`, continue without credentials: a public image needs none.
        progress.note(f"Docker's credentials for {registry} cannot be read, so none are sent: {error}")
        header = None
    if header and not engine.shares_credentials:
        progress.note(engine.withheld(f"your Docker credentials for {registry} are"))
        return {}
    return {HEADER: header.decode() if isinstance(header, bytes) else header} if header else {}
