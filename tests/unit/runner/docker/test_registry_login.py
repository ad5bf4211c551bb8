"""Whose credentials a pull uses, and what is said if a registry refuses the machine's identity."""

import base64
import json
from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.runner.docker.registry_login import HEADER, USER, RegistryLogin, explain_refusal, log_in
from gpuinfra.runner.errors import JobError, RemoteError

ACR = "contoso.azurecr.io"
PRINCIPAL = "11111111-2222-4333-8444-555555555555"
OWN = {ACR: {"username": "me", "password": "mine"}}
ANSWER = {"password": "of the machine", "principal": PRINCIPAL}
REFUSAL = JobError("the registry refuses the login", "pulling x: unauthorized", "log in", Code.REGISTRY_LOGIN)


class FakeEngine:
    """An engine on a machine with an identity, and a user's Docker settings."""

    where = "my_dsvm"

    def __init__(self, answer: Any = ANSWER, auths: Any = None, *, shares: bool = True) -> None:
        from docker import auth  # type: ignore[import-untyped]

        self.api = SimpleNamespace(_auth_configs=auth.AuthConfig({"auths": auths or {}}), credstore_env=None)
        self.shares_credentials = shares
        self.asked: list[str] = []
        self.answer = answer
        self.machine_login: Any = self._log_in if answer else None

    def _log_in(self, registry: str) -> Any:
        self.asked.append(registry)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def withheld(self, what: str) -> str:
        return f"{what} not sent"


def login_of(engine: Any, repository: str) -> tuple[RegistryLogin, dict[str, Any], list[str]]:
    notes: list[str] = []
    progress: Any = SimpleNamespace(note=notes.append)
    login = log_in(engine, repository, progress)
    header = login.headers.get(HEADER)
    return login, json.loads(base64.urlsafe_b64decode(header)) if header else {}, notes


def test_identity_of_the_machine_logs_in() -> None:
    engine = FakeEngine()
    login, sent, notes = login_of(engine, f"{ACR}/team/image")
    assert sent == {"username": USER, "password": "of the machine", "serveraddress": ACR}
    assert (engine.asked, login.principal, notes) == (
        [ACR],
        PRINCIPAL,
        [f"login to {ACR} with the identity of my_dsvm"],
    )
    assert login.headers[HEADER] not in repr(login)


def test_own_credentials_come_first() -> None:
    engine = FakeEngine(auths=OWN)
    _, sent, _ = login_of(engine, f"{ACR}/image")
    assert (sent, engine.asked) == ({"username": "me", "password": "mine"}, [])


def test_identity_logs_in_where_own_credentials_are_withheld() -> None:
    engine = FakeEngine(auths=OWN, shares=False)
    _, sent, notes = login_of(engine, f"{ACR}/image")
    assert (sent["password"], "not sent" in notes[0]) == ("of the machine", True)


@pytest.mark.parametrize("principal", [f"{PRINCIPAL} --role Owner $(id)", "", None, 7])
def test_command_has_no_other_text_of_the_machine(principal: Any) -> None:
    engine = FakeEngine({"problem": "refused", "detail": "401", "principal": principal})
    login, _, _ = login_of(engine, f"{ACR}/image")
    assert login.principal == ""
    assert "--assignee-object-id PRINCIPAL " in str(explain_refusal(REFUSAL, login, "my_dsvm").help)


@pytest.mark.parametrize(("repository", "is_sent"), [("LOCALHOST/x", False), ("evilHost/x", False), ("user/x", True)])
def test_credentials_for_docker_hub_go_to_no_registry_with_capitals(repository: str, is_sent: bool) -> None:
    engine = FakeEngine(None, {"https://index.docker.io/v1/": {"username": "me", "password": "mine"}})
    _, sent, _ = login_of(engine, repository)
    assert bool(sent) == is_sent


@pytest.mark.parametrize(
    "repository", ["busybox", f"{ACR}.evil.example/image", "evil.example/contoso.azurecr.io/image"]
)
def test_identity_is_not_used_for_other_registries(repository: str) -> None:
    engine = FakeEngine()
    login, sent, _ = login_of(engine, repository)
    assert (login, sent, engine.asked) == (RegistryLogin(), {}, [])


def test_engine_of_this_computer_uses_only_own_credentials() -> None:
    assert login_of(FakeEngine(None), f"{ACR}/image")[0] == RegistryLogin()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"problem": "no-identity", "detail": "x"}, "no-identity"),
        (RemoteError("no-python", "x"), "failed"),
        ({"password": 1}, "failed"),
        ({"password": "x" * 70_000}, "failed"),
        ({}, "failed"),
    ],
)
def test_pull_continues_without_a_login(answer: Any, problem: str) -> None:
    login, sent, notes = login_of(FakeEngine(answer or {"": ""}), f"{ACR}/image")
    assert (login.registry, login.problem, sent, notes) == (ACR, problem, {}, [])


@pytest.mark.parametrize(
    ("problem", "summary", "note", "help_line"),
    [
        (
            "",
            "refuses the machine's identity",
            f"the identity {PRINCIPAL} of my_dsvm may not pull it",
            "--role AcrPull",
        ),
        ("refused", "refuses the machine's identity", "has no role there: said", f"--assignee-object-id {PRINCIPAL} "),
        ("no-identity", "refuses the login", "has no identity that it could use: said", "az vm identity assign"),
        ("no-metadata", "refuses the login", "is not a VM in Azure: said", "log in on this computer"),
        ("unreachable", "refuses the login", f"cannot reach https://{ACR}/oauth2/exchange: said", "DNS and proxy"),
        ("failed", "refuses the login", "could not log in with its identity: said", "log in on this computer"),
        ("of a later version", "refuses the login", "could not log in with its identity", "log in on this computer"),
    ],
)
def test_refused_pull_is_explained(problem: str, summary: str, note: str, help_line: str) -> None:
    found = explain_refusal(REFUSAL, RegistryLogin({}, ACR, problem, "said", PRINCIPAL), "my_dsvm")
    assert found.code == Code.REGISTRY_LOGIN
    assert summary in found.summary
    assert found.note.startswith("pulling x: unauthorized; ")
    assert note in found.note
    assert help_line in str(found.help)
    assert "`az acr login --name contoso`" in str(found.help)


def test_other_errors_stay() -> None:
    login = RegistryLogin({}, ACR, "refused", "said", PRINCIPAL)
    missing = JobError("no such image", "pulling x: manifest unknown", None, Code.NO_IMAGE)
    assert explain_refusal(missing, login, "my_dsvm") is missing
    full = JobError("the target's disk is full", "denied", None, Code.DISK_FULL)
    assert explain_refusal(full, login, "my_dsvm") is full
    assert explain_refusal(REFUSAL, RegistryLogin(), "my_dsvm") is REFUSAL
    denied = JobError("no such image", "pulling x: pull access denied for x", None, Code.NO_IMAGE)
    assert explain_refusal(denied, login, "my_dsvm").code == Code.REGISTRY_LOGIN
