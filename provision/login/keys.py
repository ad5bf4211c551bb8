"""SSH keys: host keys for new machines, the user's own key, and the public key in a spec."""

import contextlib
import errno
import os
import re
import stat
import tempfile
from pathlib import Path

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.keys import DEFAULT_KEY, ED25519, OWN_KEY, PATH, RSA
from gpuinfra.provision.plan_input import HostKey

LARGEST = 64 << 10


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
