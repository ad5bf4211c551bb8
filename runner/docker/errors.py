"""Translate an engine's messages and the SDK's exceptions to our errors. Importing this imports the SDK."""

from __future__ import annotations

import http.client
import re
from typing import NamedTuple

import docker.credentials.errors  # type: ignore[import-untyped]
import docker.errors  # type: ignore[import-untyped]
import requests.exceptions
import urllib3.exceptions

from gpuinfra.diagnostics import Code
from gpuinfra.runner.docker.check import CANNOT_RUN, NO_PERMISSION, NOT_RUNNING, TOOLKIT, CommandOutput, docker_check
from gpuinfra.runner.errors import Broken, ConnectError, JobError, TimedOut, Unreachable

MAX_NOTE = 600
USER = "$USER"
LOG_IN = "log in on this computer: `docker login REGISTRY`; the credentials are sent with the request and not stored"

SUMMARIES = {
    Code.REGISTRY_LOGIN: "the registry refuses the login",
    Code.NO_IMAGE: "no such image",
    Code.NO_ENGINE: "no Docker Engine",
    Code.JOB_FAILED: "the engine refuses the request",
}


# runc starts a container's program last: an `exec` error after these words is about that program. Without these words,
# the same errors are about the engine's programs and files, such as runc itself or a cgroup.
COMMAND = re.compile(
    r"""container\ process(?:\ caused)?:?\s["\\]*(?:error\ during\ container\ init:\ )?
        exec:?\s["\\]*[^"\\:]+["\\]*:\s(?:stat\s[^:]+:\ )?
        (?:executable\ file\ not\ found|no\ such\ file|permission\ denied|exec\ format|(?:is|not)\ a\ directory)
      |exec\ user\ process\ caused
      |crun:\ executable\ file\ \S+\ not\ found""",
    re.VERBOSE,
)


class Sign(NamedTuple):
    """Texts in an engine's message, and the error that they mean."""

    texts: tuple[str | re.Pattern[str], ...]
    """Any of these, in lower case."""
    code: Code
    summary: str
    help: str


# The first match counts.
SIGNS = (
    Sign(
        ("no space left on device", "disk quota exceeded"),
        Code.DISK_FULL,
        "the target's disk is full",
        "free space there: `docker image prune` removes unused images",
    ),
    Sign(
        (
            "could not select device driver",
            "nvidia-container-cli",
            "nvidia-container-runtime",
            "cdi device",
            "unknown or invalid runtime name: nvidia",
        ),
        Code.NO_GPU,
        "the container gets no GPU",
        TOOLKIT,
    ),
    Sign(
        (COMMAND,),
        Code.JOB_FAILED,
        CANNOT_RUN,
        "the program must be in the image, on its PATH, executable, and built for the machine's processor",
    ),
    Sign(
        ("argument list too long",),
        Code.ENVIRONMENT_TOO_LARGE,
        "the environment is too large",
        "pass large values in a file of the project instead",
    ),
    Sign(
        ("pull access denied", "repository does not exist", "manifest unknown", "manifest for", "no such image"),
        Code.NO_IMAGE,
        "no such image",
        f"check its name; if it is private, {LOG_IN}",
    ),
    Sign(
        ("no matching manifest", "does not match the specified platform"),
        Code.NO_IMAGE,
        "the image is for another processor",
        "use an image for the machine's processor",
    ),
    Sign(
        ("unauthorized", "no basic auth credentials", "authentication required", ": denied", "incorrect username"),
        Code.REGISTRY_LOGIN,
        "the registry refuses the login",
        LOG_IN,
    ),
    Sign(("toomanyrequests",), Code.REGISTRY_LOGIN, "the registry limits requests without a login", LOG_IN),
    Sign(
        (
            "oci runtime",
            "failed to create task",
            "failed to create shim",
            "failed to start shim",
            "shim error",
            "containerd.sock",
            "containerd-shim",
            "io.containerd.",
            "cgroup",
            "failed to set up container networking",
            "failed to create endpoint",
            "/var/lib/docker/",
            "/run/docker/",
        ),
        Code.ENGINE_FAILED,
        "Docker Engine failed on the target",
        "try again; if it fails again, restart it there, which ends running containers: "
        "`sudo systemctl restart docker`; for its log: `sudo journalctl -u docker -u containerd`",
    ),
    Sign(
        ("dial tcp", "no such host", "tls handshake", "request canceled while waiting", "context deadline exceeded"),
        Code.NO_IMAGE,
        "the registry cannot be reached",
        "the target must reach it; or copy the image there with `docker save` and `docker load`",
    ),
    Sign(
        ("invalid reference format", "repository name must be", "invalid repository name"),
        Code.NO_IMAGE,
        "invalid image name",
        "use `name`, `name:tag` or `registry/name:tag`, in lower case",
    ),
    Sign(
        ("bind source path does not exist",),
        Code.JOB_FAILED,
        "a folder is missing on the target",
        "create it there: if the engine creates it, it belongs to root",
    ),
)

# The code by exception class, if the message has no sign. The first match counts. None means a lost connection.
KINDS: tuple[tuple[type[Exception], Code | None], ...] = (
    (docker.errors.ImageNotFound, Code.NO_IMAGE),
    (docker.errors.APIError, Code.JOB_FAILED),
    (docker.errors.InvalidConfigFile, Code.REGISTRY_LOGIN),
    (docker.errors.InvalidRepository, Code.NO_IMAGE),
    (docker.errors.InvalidVersion, Code.NO_ENGINE),
    (docker.errors.TLSParameterError, Code.NO_ENGINE),
    (docker.errors.MissingContextParameter, Code.NO_ENGINE),
    (docker.errors.ContextAlreadyExists, Code.NO_ENGINE),
    (docker.errors.ContextException, Code.NO_ENGINE),
    (docker.errors.ContextNotFound, Code.NO_ENGINE),
    (docker.errors.DockerException, Code.JOB_FAILED),
    (docker.errors.StreamParseError, None),
    (docker.credentials.errors.StoreError, Code.REGISTRY_LOGIN),
    # These requests cannot be sent over any connection.
    (requests.exceptions.URLRequired, Code.NO_ENGINE),
    (requests.exceptions.MissingSchema, Code.NO_ENGINE),
    (requests.exceptions.InvalidSchema, Code.NO_ENGINE),
    (requests.exceptions.InvalidURL, Code.NO_ENGINE),
    (requests.exceptions.InvalidHeader, Code.JOB_FAILED),
    (requests.exceptions.SSLError, Code.NO_ENGINE),
    (requests.exceptions.ProxyError, Code.NO_ENGINE),
    (requests.exceptions.RequestException, None),
    (urllib3.exceptions.HTTPError, None),
    (http.client.HTTPException, None),
    (OSError, None),
)
TIMEOUTS = (requests.exceptions.ReadTimeout, urllib3.exceptions.ReadTimeoutError, TimeoutError)
# Raised if no engine listens at an address, or if access is denied.
NO_ENGINE_ERRORS = (FileNotFoundError, PermissionError, ConnectionRefusedError)
NO_CONNECTION_ERRORS = (requests.exceptions.ConnectTimeout, urllib3.exceptions.NewConnectionError)


def translate_error(error: Exception, where: str, doing: str, *, expected: bool) -> JobError | ConnectError | None:
    """Return our error for an exception of the SDK, or None for any other exception.

    `expected` means that the engine has answered before, and so may be restarting.
    """
    chain = list(_chain(error))
    if any(isinstance(each, TIMEOUTS) for each in chain):
        return TimedOut(f"the engine of {where} does not answer: {doing}")
    closed = next((each for each in chain if isinstance(each, (*NO_ENGINE_ERRORS, *NO_CONNECTION_ERRORS))), None)
    if closed is not None:
        # Use the messages of the Docker CLI, whose causes `docker_check` knows.
        message = NO_PERMISSION if isinstance(closed, PermissionError) else NOT_RUNNING[0]
        return no_engine(CommandOutput(1, f"{message}: {closed}"), where, expected=expected)
    kind = next((code for foreign, code in KINDS if isinstance(error, foreign)), ...)
    if kind is ...:
        return None
    if kind is None:
        return Broken(f"the connection to the engine of {where} is lost: {brief(str(error) or type(error).__name__)}")
    explanation = getattr(error, "explanation", None)
    return refusal(str(explanation or error), doing, kind)


def refusal(text: str, doing: str, otherwise: Code = Code.JOB_FAILED) -> JobError:
    """Return the error for an engine's message."""
    lowered = text.casefold()
    for sign in SIGNS:
        if any(each in lowered if isinstance(each, str) else each.search(lowered) for each in sign.texts):
            return JobError(sign.summary, f"{doing}: {brief(text)}", sign.help, sign.code)
    return JobError(SUMMARIES[otherwise], f"{doing}: {brief(text)}", None, otherwise)


def no_engine(output: CommandOutput, where: str, *, expected: bool) -> JobError | ConnectError:
    """Return the error for a missing or stopped engine, from the output of a `docker` command."""
    check = docker_check(output, USER)
    if expected and any(sign in output.text.casefold() for sign in NOT_RUNNING):
        return Unreachable(f"the engine of {where} no longer answers: {check.found}", check.help)
    return JobError(SUMMARIES[Code.NO_ENGINE], f"{where}: {check.found}", check.help, Code.NO_ENGINE)


def brief(text: str) -> str:
    """Return a text on one line, shortened."""
    return " ".join(text.split())[:MAX_NOTE]


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return an exception and its causes, which urllib3 and requests also put into arguments."""
    found: list[BaseException] = []
    pending = [error]
    while pending:
        each = pending.pop()
        if each is None or each in found:
            continue
        found.append(each)
        pending += [argument for argument in each.args if isinstance(argument, BaseException)]
        pending += [each.__cause__, each.__context__, getattr(each, "reason", None)]
    return found
