"""Choose the SSH key for new machines: the spec's, the user's, or one that gpuinfra creates after asking."""

from __future__ import annotations

from pathlib import Path

from gpuinfra.app.frontend import Frontend
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Problem, problem
from gpuinfra.models.events import Question
from gpuinfra.models.keys import OWN_KEY, lacks_key, own_private_key
from gpuinfra.models.spec import Spec
from gpuinfra.provision.login.keys import create_own_key, new_host_key, read_public_key


def public_key_for(settings: Settings, spec: Spec, frontend: Frontend, *, creates: bool) -> str:
    """Return the administrator's public key. With `creates`, offer to create a missing one."""
    text = spec.admin.key()
    if lacks_key(text):
        if not creates:
            frontend.note(f"there is no SSH key yet: `up` creates {OWN_KEY.removesuffix('.pub')}")
            return new_host_key().public  # used only for the plan
        _create(settings, frontend)
    return read_public_key(spec.admin.key(), settings.folder)


def _create(settings: Settings, frontend: Frontend) -> None:
    is_new = own_private_key() is None
    private = Path(OWN_KEY).expanduser().with_suffix("")
    if is_new and not _consents(settings, frontend, private):
        raise _no_key(private)
    try:
        create_own_key()
    except (OSError, ValueError, TypeError) as error:
        note = f"`{private}`: {error.strerror if isinstance(error, OSError) else 'not a private key that can be used'}"
        help_line = "name a key of your own in `admin.sshPublicKey`"
        raise problem(Code.NO_PUBLIC_KEY, "no SSH key", note, help_line) from error
    if is_new:
        frontend.note(f"created an SSH key for gpuinfra: {private}")


def _consents(settings: Settings, frontend: Frontend, private: Path) -> bool:
    if settings.yes or settings.cloud == "sandbox":
        return True
    text = f"You have no SSH key ({private} and ~/.ssh/id_ed25519 are missing). Create one for gpuinfra?"
    return frontend.can_ask and frontend.confirm(Question(text, default=True))


def _no_key(private: Path) -> Problem:
    return problem(
        Code.NO_PUBLIC_KEY,
        "no SSH key",
        "`~/.ssh/id_ed25519.pub` is missing; nothing was created",
        f"`--yes` creates one for gpuinfra, `{private}`; or name a key of your own in `admin.sshPublicKey`",
    )
