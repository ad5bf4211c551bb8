"""What a login needs: host keys for new machines, the user's public key and own address."""

import contextlib
import errno
import http.client
import ipaddress
import os
import re
import ssl
import stat
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.plan import Action, Kind, Plan
from gpuinfra.models.ssh import DEFAULT_KEY, ED25519, OWN_KEY, PATH, RSA
from gpuinfra.provision import tags
from gpuinfra.provision.observed_resource import ObservedResource

LARGEST = 64 << 10


@dataclass(frozen=True)
class HostKey:
    """A machine's SSH host key, generated here so that the first connection can be verified."""

    public: str
    private: str = field(repr=False)


def new_host_key() -> HostKey:
    """Return a new Ed25519 key. The private half exists only in memory until Azure has it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return HostKey(public.decode("ascii"), private.decode("ascii"))


def create_own_key() -> Path:
    """Create the key pair, mode 0600 in a folder of mode 0700, unless it exists. Return the private key's path."""
    public = Path(OWN_KEY).expanduser()
    private = public.with_suffix("")
    private.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private.parent.mkdir(mode=0o700, exist_ok=True)
    private.parent.chmod(0o700)
    _write_new(private, new_host_key().private.encode("ascii"))
    _write_new(public, f"{_public_half(private)} gpuinfra\n".encode("ascii"))
    return private


def _public_half(private: Path) -> str:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_ssh_private_key(private.read_bytes(), None).public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode("ascii")


def _write_new(path: Path, content: bytes) -> None:
    """Write a complete file that only the user can read, unless it exists."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        # Unlike a rename, a link never replaces a file that another process has just created.
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        Path(name).unlink()


def read_public_key(text: str, folder: Path) -> str:
    """Return the key itself. A path is relative to the project folder, or to the user's home with `~`."""
    if not re.fullmatch(PATH, text):
        return text
    path = folder / text
    try:
        path = folder / Path(text).expanduser()
        content = _content(path).decode("utf-8").strip()
    except RuntimeError:  # `~NAME` with an unknown name
        raise _problem(f"`{text}`: there is no such home folder", _make(Path(DEFAULT_KEY))) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise _problem(f"`{path}`: {reason}", _make(path)) from None
    if not re.fullmatch(f"{ED25519}|{RSA}", content):
        raise _problem(f"`{path}` does not hold one Ed25519 or RSA public key", _make(path))
    return content


def _content(path: Path) -> bytes:
    """Return the content of a plain file. The path may come from a foreign project and name an endless file."""
    # Check before opening: opening a pipe waits for a writer.
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a plain file")
    with path.open("rb") as stream:
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(errno.EFBIG, "larger than a public key")
    return content


def _make(path: Path) -> str:
    private = path.with_suffix("")
    make = f"-y -f {private} > {path}" if private.is_file() else f"-t ed25519 -f {private}"
    return f"`ssh-keygen {make}` creates one; or name another in `admin.sshPublicKey`"


def _problem(note: str, help_line: str) -> Problem:
    return Problem(Diagnostic(Code.NO_PUBLIC_KEY, "no public key", note=note, help=help_line))


# Plain-text services; the second is used if the first does not answer.
SERVICES = (("checkip.amazonaws.com", "/"), ("api.ipify.org", "/"))
SECONDS = 5.0


def own_address() -> str:
    """Return the public IPv4 address of this computer. Raise Problem if no service answers."""
    for host, path in SERVICES:
        found = _ask(host, path)
        if found:
            return found
    raise Problem(
        Diagnostic(
            Code.NO_OWN_ADDRESS,
            "own address is not known",
            note="`allowSshFrom: auto` needs it, and no service would tell",
            help="name the addresses: `network: {allowSshFrom: [203.0.113.7/32]}`",
        )
    )


def _ask(host: str, path: str) -> str | None:
    connection = http.client.HTTPSConnection(host, timeout=SECONDS, context=ssl.create_default_context())
    try:
        connection.request("GET", path, headers={"User-Agent": "gpuinfra"})
        text = connection.getresponse().read(64).decode("ascii").strip()
        return str(ipaddress.IPv4Address(text))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


# cloud-init may not have written the administrator's key yet.
FIRST_BOOT = 180.0
# The keys are on the disk, but PAM refuses users until the boot has finished.
RESTART = 30.0
# The machine has booted: a refusal is final.
BOOTED = 5.0
# A machine that has been on for this long has finished booting.
MAX_BOOT = timedelta(minutes=10)


def is_created_with(machine: ObservedResource, public_key: str) -> bool:
    """Return whether the machine got this key when it was created. A user can have added more keys since."""
    linux = (machine.properties.get("osProfile") or {}).get("linuxConfiguration") or {}
    keys = (linux.get("ssh") or {}).get("publicKeys") or []
    return public_key.split()[:2] in [str(key.get("keyData", "")).split()[:2] for key in keys]


def login_seconds(plan: Plan, machine: ObservedResource, public_key: str, now: datetime) -> float:
    """Return how many seconds the machine may refuse the login after `up` executed this plan."""
    changes = [change for change in plan.changes if change.ref.kind is Kind.VM]
    if any(change.action in {Action.ADD, Action.REPLACE} for change in changes):
        return FIRST_BOOT
    has_key = is_created_with(machine, public_key)
    if plan.switches_on:
        # The first boot may not have finished.
        return FIRST_BOOT if has_key else RESTART
    since = tags.moment(machine.tags, tags.ON_SINCE)
    may_boot = since is None or now - since < MAX_BOOT
    return FIRST_BOOT if has_key and may_boot else BOOTED
