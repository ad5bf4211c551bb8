"""The options of `gpuinfra attach`, parsed and checked before any connection."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from gpuinfra.app.options import require
from gpuinfra.diagnostics import Code, Exit, Problem, problem
from gpuinfra.models.images import check_container_image
from gpuinfra.models.names import check_target_name
from gpuinfra.models.spec import TargetOptions
from gpuinfra.models.target import ASK, Target, is_host, is_user
from gpuinfra.runner.connection.host_key import HostKey
from gpuinfra.runner.errors import HostKeyInvalid
from gpuinfra.suggest import did_you_mean, listed
from gpuinfra.workbench.compute import split_address

DOCKER, PLAIN = "remotedocker", "remote"
TYPES = (DOCKER, PLAIN)
USUAL_PORT = 22
_FINGERPRINT = r"SHA256:[A-Za-z0-9+/]{43}"


@dataclass(frozen=True)
class AttachOptions:
    """A machine, how to log in to it, and what to check."""

    name: str
    address: str
    port: int
    username: str
    type: str = DOCKER
    gpu: bool = True
    identity: str | None = None
    by_password: bool = False
    host_key: str | None = None
    """A public key, or its fingerprint."""
    image: str | None = None

    @property
    def docker(self) -> bool:
        """Whether jobs run in containers."""
        return self.type == DOCKER

    @property
    def has_fingerprint(self) -> bool:
        """Whether `host_key` is only a fingerprint."""
        return self.host_key is not None and re.fullmatch(_FINGERPRINT, self.host_key) is not None

    def target(self, host_key: str, before: Target | None) -> Target:
        """Return the target for the login. Options that were not given keep their previous values."""
        said = {"type", *(["nvidia_docker"] if self.docker else [])}
        said |= {"identity", "password"} if self.identity or self.by_password else set()
        said |= {"base_docker_image"} if self.image else set()
        keeps = before is not None and not self.identity and not self.by_password
        image = self.image or (before.base_docker_image if before else None) or TargetOptions().base_docker_image
        return Target(
            name=self.name,
            machine=self.name,
            type=self.type,
            address=self.address,
            port=self.port,
            username=self.username,
            host_key=host_key,
            identity=before.identity if before and keeps else self.identity,
            password=ASK if self.by_password else before.password if before and keeps else None,
            base_docker_image=image if self.docker else None,
            nvidia_docker=self.gpu,
            explicit_fields=frozenset(said),
        )

    def command(self, host_key: str) -> str:
        """Return the same command with the host key."""
        words = ["gpuinfra", "attach", self.name, "--address", self.address, "--username", self.username]
        words += ["--port", str(self.port)] if self.port != USUAL_PORT else []
        words += ["--key", self.identity] if self.identity else []
        words += ["--password-stdin"] if self.by_password else []
        words += ["--type", self.type] if self.type != DOCKER else []
        words += ["--base-image", self.image] if self.image else []
        words += [] if self.gpu else ["--no-gpu"]
        return shlex.join([*words, "--host-key", host_key])


def check_options(options: AttachOptions) -> None:
    """Raise Problem if an option breaks a rule that can be checked without the machine."""
    require(check_target_name, options.name, options.name, "attach")
    require(check_container_image, options.image, options.image or "", "attach")
    if options.type not in TYPES:
        help_line = did_you_mean(options.type, TYPES) or f"it can be {listed(TYPES)}"
        raise _wrong(Code.UNKNOWN_VALUE, "unknown type of target", f"there is no type `{options.type}`", help_line)
    if options.image and not options.docker:
        raise _usage("`--base-image` is for containers, and `--type remote` has none")
    if options.identity and options.by_password:
        raise _usage("`--key` and `--password-stdin` exclude each other")
    if not is_user(options.username):
        raise _wrong(
            Code.BAD_USERNAME,
            "invalid user name",
            f"`{options.username}` is not a valid user name",
            "as in `azureuser`",
        )
    _check_host_key(options)


def read_address(address: str, port: int | None) -> tuple[str, int]:
    """Return host and port. The port can be in either argument."""
    host, inner = split_address(address)
    host = (host or "").removeprefix("[").removesuffix("]")
    said = inner if inner != USUAL_PORT or address.endswith(f":{inner}") else None
    if not 0 < inner < 65536:
        raise _wrong(Code.BAD_ADDRESS, "invalid address", f"`{address}`: there is no port {inner}", "as in `host:5022`")
    if said is not None and port is not None and said != port:
        raise _usage(f"`--address {address}` and `--port {port}` contradict each other")
    if not is_host(host):
        name = host.rpartition("@")[2]
        help_line = "give the user's name with `--username`" if is_host(name) else "as in `203.0.113.7` or `gpu.lab`"
        raise _wrong(Code.BAD_ADDRESS, "invalid address", f"`{address}` is neither a name nor an address", help_line)
    return host, port or inner


def read_identity(key: str) -> str:
    """Return the path of the private key. The path of its public half means the same."""
    try:
        path = Path(key).expanduser()
    except RuntimeError:  # `~user` for an unknown user
        path = Path(key)
    private = path.with_suffix("") if path.suffix == ".pub" else path
    if private.is_file():
        return str(private.absolute())
    note = f"`{private}` is not there" if private == path else f"`{private}`, which belongs to `{path}`, is not there"
    raise _wrong(Code.FILE_NOT_FOUND, "no such private key", note, "give the path of the private key, or leave it out")


def _check_host_key(options: AttachOptions) -> None:
    if options.host_key is None or options.has_fingerprint:
        return
    try:
        HostKey.parse(options.host_key)
    except HostKeyInvalid:
        note = f"`--host-key {options.host_key[:80]}` is neither a public key nor a fingerprint"
        help_line = "`ssh-ed25519 AAAA…`, or `SHA256:…` as `ssh-keygen -l` prints it"
        raise _wrong(Code.BAD_HOST_KEY, "invalid host key", note, help_line) from None


def _wrong(code: Code, summary: str, note: str, help_line: str) -> Problem:
    return problem(code, summary, note, help_line, exit_code=Exit.USAGE)


def _usage(note: str) -> Problem:
    return _wrong(Code.USAGE, "wrong usage", note, "`gpuinfra attach --help` shows how")
