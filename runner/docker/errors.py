"""What an engine's answers and the SDK's exceptions mean, in one table. Importing it imports the SDK."""

from __future__ import annotations

import http.client
import re
from typing import NamedTuple

import docker.credentials.errors  # type: ignore[import-untyped]
import docker.errors  # type: ignore[import-untyped]
import requests.exceptions
import urllib3.exceptions

from gpuinfra.diagnostics import Code
from gpuinfra.runner.docker.check import NO_PERMISSION, NOT_RUNNING, TOOLKIT, Said, docker_check
from gpuinfra.runner.errors import Broken, ConnectError, JobError, TimedOut, Unreachable

LONGEST_NOTE = 600
USER = "$USER"
LOG_IN = "log in on this computer: `docker login REGISTRY`; the credentials travel with the request, and stay nowhere"

SUMMARIES = {
    Code.REGISTRY_LOGIN: "the registry refuses the log-in",
    Code.NO_IMAGE: "no such image",
    Code.NO_ENGINE: "no Docker Engine",
    Code.JOB_FAILED: "the engine refuses",
}


# runc starts the program of a container last: what it says of `exec` right after these words is about that program.
# The same reasons without them are about programs and files of the engine, such as runc itself or a cgroup.
COMMAND = re.compile(
    r"""container\ process(?:\ caused)?:?\s["\\]*(?:error\ during\ container\ init:\ )?
        exec:?\s["\\]*[^"\\:]+["\\]*:\s(?:stat\s[^:]+:\ )?
        (?:executable\ file\ not\ found|no\ such\ file|permission\ denied|exec\ format|(?:is|not)\ a\ directory)
      |exec\ user\ process\ caused
      |crun:\ executable\ file\ \S+\ not\ found""",
    re.VERBOSE,
)


class Sign(NamedTuple):
    """Something that an engine says, and what it is about."""

    words: tuple[str | re.Pattern[str], ...]
    """Any of these, in small letters."""
    code: Code
    summary: str
    help: str


# The first that fits counts.
SIGNS = (
    Sign(
        ("no space left on device", "disk quota exceeded"),
        Code.DISK_FULL,
        "the target's disk is full",
        "make room there: `docker image prune` removes unused images",
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
        "the image cannot run the command",
        "the program has to be in the image, on its PATH, executable, and made for the machine's processor",
    ),
    Sign(
        ("argument list too long",),
        Code.ENVIRONMENT_TOO_LARGE,
        "the environment is too large",
        "give large values by a file in the project instead",
    ),
    Sign(
        ("pull access denied", "repository does not exist", "manifest unknown", "manifest for", "no such image"),
        Code.NO_IMAGE,
        "no such image",
        f"look for a slip in its name; where it is private, {LOG_IN}",
    ),
    Sign(
        ("no matching manifest", "does not match the specified platform"),
        Code.NO_IMAGE,
        "the image is for another processor",
        "take one that is made for the machine's",
    ),
    Sign(
        ("unauthorized", "no basic auth credentials", "authentication required", ": denied", "incorrect username"),
        Code.REGISTRY_LOGIN,
        "the registry refuses the log-in",
        LOG_IN,
    ),
    Sign(("toomanyrequests",), Code.REGISTRY_LOGIN, "the registry wants a log-in for so many requests", LOG_IN),
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
        "try again; if it fails again, restart it there, which ends the containers that run: "
        "`sudo systemctl restart docker`; `sudo journalctl -u docker -u containerd` has its log",
    ),
    Sign(
        ("dial tcp", "no such host", "tls handshake", "request canceled while waiting", "context deadline exceeded"),
        Code.NO_IMAGE,
        "the registry cannot be reached",
        "the target has to reach it; or bring the image there by `docker save` and `docker load`",
    ),
    Sign(
        ("invalid reference format", "repository name must be", "invalid repository name"),
        Code.NO_IMAGE,
        "no name of an image",
        "it is `name`, `name:tag` or `registry/name:tag`, in small letters",
    ),
    Sign(
        ("bind source path does not exist",),
        Code.JOB_FAILED,
        "a folder is missing on the target",
        "make it there: a folder that the engine made would be root's",
    ),
)

# By class, where the words say nothing. The first that fits counts; None: the connection is lost.
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
    # What cannot be sent at all is not the connection's fault.
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
# Raised if nothing listens at an address, or if access is denied.
CLOSED_DOORS = (FileNotFoundError, PermissionError, ConnectionRefusedError)
UNMADE = (requests.exceptions.ConnectTimeout, urllib3.exceptions.NewConnectionError)


def told(error: Exception, where: str, doing: str, *, expected: bool) -> JobError | ConnectError | None:
    """Return our error for a foreign exception; None for a bug of our own.

    `expected` says that the engine has answered before: then it is restarting, and not missing.
    """
    chain = list(_chain(error))
    if any(isinstance(each, TIMEOUTS) for each in chain):
        return TimedOut(f"the engine of {where} does not answer: {doing}")
    closed = next((each for each in chain if isinstance(each, (*CLOSED_DOORS, *UNMADE))), None)
    if closed is not None:
        # The words are those of the program `docker`, for which the reasons are known already.
        words = NO_PERMISSION if isinstance(closed, PermissionError) else NOT_RUNNING[0]
        return missing(Said(1, f"{words}: {closed}"), where, expected=expected)
    kind = next((code for foreign, code in KINDS if isinstance(error, foreign)), ...)
    if kind is ...:
        return None
    if kind is None:
        return Broken(f"the connection to the engine of {where} is lost: {brief(str(error) or type(error).__name__)}")
    explanation = getattr(error, "explanation", None)
    return refusal(str(explanation or error), doing, kind)


def refusal(text: str, doing: str, otherwise: Code = Code.JOB_FAILED) -> JobError:
    """What an engine said, when it did not do something."""
    words = text.casefold()
    for sign in SIGNS:
        if any(each in words if isinstance(each, str) else each.search(words) for each in sign.words):
            return JobError(sign.summary, f"{doing}: {brief(text)}", sign.help, sign.code)
    return JobError(SUMMARIES[otherwise], f"{doing}: {brief(text)}", None, otherwise)


def missing(said: Said, where: str, *, expected: bool) -> JobError | ConnectError:
    """No engine answers, by what was said instead."""
    check = docker_check(said, USER)
    if expected and any(sign in said.text.casefold() for sign in NOT_RUNNING):
        return Unreachable(f"the engine of {where} no longer answers: {check.found}", check.help)
    return JobError(SUMMARIES[Code.NO_ENGINE], f"{where}: {check.found}", check.help, Code.NO_ENGINE)


def brief(text: str) -> str:
    """On one line, and not all of a long one."""
    return " ".join(text.split())[:LONGEST_NOTE]


def _chain(error: BaseException | None) -> list[BaseException]:
    """The exception, and what it was made of: urllib3 and requests put causes into arguments, too."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is None or each in found:
            continue
        found.append(each)
        waiting += [argument for argument in each.args if isinstance(argument, BaseException)]
        waiting += [each.__cause__, each.__context__, getattr(each, "reason", None)]
    return found
