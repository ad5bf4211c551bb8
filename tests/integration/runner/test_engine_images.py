"""Images that a real engine pulls from a registry of the test's own, and the short-lived containers made of images."""

import base64
import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuinfra.runner.docker.client import Engine, open_engine
from gpuinfra.runner.docker.images import ensure_image, find_image, pull
from gpuinfra.runner.errors import JobError, TimedOut
from gpuinfra.runner.job_spec import Gpus
from gpuinfra.runner.jobs.helper_containers import LABEL, remove_old, run_once, take_ownership
from tests.integration.runner import registry
from tests.integration.runner.conftest import eventually
from tests.lab import BUSYBOX, PYTHON, Lab
from tests.registries import serving


class Heard:
    """All that was told."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        self.amounts: list[tuple[int, int | None]] = []
        self.notes: list[str] = []

    def begin(self, step: str, doing: str) -> None:
        self.steps.append(("begin", doing))

    def amount(self, step: str, done: int, total: int | None) -> None:
        self.amounts.append((done, total))

    def end(self, step: str, outcome: str) -> None:
        self.steps.append(("end", outcome))

    def fail(self, step: str, reason: str) -> None:
        self.steps.append(("fail", reason))

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="session")
def everybodys(running_lab: Lab) -> Iterator[str]:
    """The address of a registry that gives to everybody."""
    with serving(running_lab) as address:
        yield address


@pytest.fixture(scope="session")
def private(running_lab: Lab) -> Iterator[str]:
    """The address of a registry that gives only to those who log in."""
    with serving(running_lab, "private") as address:
        yield address


@pytest.fixture
def engine(lab: Lab) -> Iterator[Engine]:
    """Over SSH. It has none of the registries' images."""
    with (
        lab.connected() as connection,
        contextlib.closing(open_engine(connection, 20, shares_credentials=True)) as engine,
    ):
        yield engine


def settings(home: Path, **content: object) -> None:
    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_text(json.dumps(content))


def login(address: str, password: str) -> dict[str, dict[str, str]]:
    return {address: {"auth": base64.b64encode(f"{registry.USER}:{password}".encode()).decode()}}


def test_an_image_is_pulled_once_and_tells_how_far_it_is(engine: Engine, everybodys: str) -> None:
    name, heard = f"{everybodys}/{registry.TOOL}", Heard()
    assert find_image(engine, name) is None
    facts = ensure_image(engine, name, heard)
    assert facts == find_image(engine, name)
    assert (facts.platform, facts.entrypoint, facts.environment) == ("linux/amd64", ("/entry",), {"PATH": "/tools"})
    assert facts.digests[0].startswith(f"{everybodys}/{registry.TOOL[:-2]}@sha256:")
    assert facts.size >= registry.LAYER_SIZE
    assert [what for what, _ in heard.steps] == ["begin", "end"]
    done, total = heard.amounts[-1]
    assert done == total
    assert done >= registry.LAYER_SIZE
    assert not heard.notes
    again = Heard()
    assert ensure_image(engine, name, again) == facts
    assert not again.steps


def test_an_image_for_another_processor_is_noted(engine: Engine, everybodys: str) -> None:
    heard = Heard()
    facts = pull(engine, f"{everybodys}/{registry.FOREIGN}", heard)
    assert facts.platform == "linux/s390x"
    assert "linux/s390x" in heard.notes[0]


def test_a_private_image_is_pulled_by_this_computers_credentials(engine: Engine, private: str, home: Path) -> None:
    settings(home, auths=login(private, registry.PASSWORD))
    assert pull(engine, f"{private}/{registry.TOOL}", Heard()).id


def test_credentials_come_from_helpers_as_well(
    engine: Engine, private: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(home, credHelpers={private: "lab"})
    answer = json.dumps({"ServerURL": private, "Username": registry.USER, "Secret": registry.PASSWORD})
    helper = tmp_path / "docker-credential-lab"
    helper.write_text(f"#!/bin/sh\necho '{answer}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert pull(engine, f"{private}/{registry.TOOL}", Heard()).id


def test_a_helper_that_is_missing_does_not_keep_anybody_from_what_is_open(
    engine: Engine, everybodys: str, home: Path
) -> None:
    settings(home, credHelpers={everybodys: "nowhere"})
    heard = Heard()
    assert pull(engine, f"{everybodys}/{registry.TOOL}", heard).id
    assert "cannot be read" in heard.notes[0]


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_registry_that_refuses_says_how_to_log_in(
    engine: Engine, private: str, home: Path, password: str | None
) -> None:
    settings(home, auths=login(private, password) if password else {})
    heard = Heard()
    with pytest.raises(JobError) as caught:
        pull(engine, f"{private}/{registry.TOOL}", heard)
    assert caught.value.code == "registry-login"
    assert "docker login" in str(caught.value.help)
    assert heard.steps[-1][0] == "fail"
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("name", ["{address}/lab/tool:2", "{address}/nobody/has:1", "nobody-has-this", "Not A Name"])
def test_an_image_that_is_nowhere_is_told(engine: Engine, everybodys: str, name: str) -> None:
    with pytest.raises(JobError) as caught:
        ensure_image(engine, name.format(address=everybodys), Heard())
    assert caught.value.code == "no-image"
    assert caught.value.help
    assert name.format(address=everybodys) in str(caught.value)


def test_a_question_to_an_image_has_an_answer_and_leaves_nothing(engine: Engine, lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("seen ")
    done = run_once(
        engine,
        BUSYBOX,
        ["sh", "-c", "cat /in/in; echo $A; echo wrong >&2; exit 3"],
        mounts=[(str(tmp_path), "/in")],
        environment={"A": "b"},
    )
    assert (done.exit_code, done.stdout, done.stderr) == (3, "seen b\n", "wrong\n")
    assert lab.engine.containers() == []


def test_of_a_long_answer_the_beginning_is_kept(engine: Engine) -> None:
    done = run_once(engine, BUSYBOX, ["sh", "-c", "busybox head -c 3000000 /dev/zero"])
    assert len(done.stdout) == 1 << 20


def test_a_question_without_an_answer_is_given_up(engine: Engine, lab: Lab) -> None:
    with pytest.raises(TimedOut, match="`sleep` in the image did not end within 1 s"):
        run_once(engine, BUSYBOX, ["sleep", "60"], timeout=1)
    assert lab.engine.containers() == []
    assert run_once(engine, BUSYBOX, ["true"]).exit_code == 0


def test_helpers_of_killed_clients_are_removed_when_they_are_old(engine: Engine, lab: Lab, tmp_path: Path) -> None:
    words, mounts = ["sh", "-c", "until [ -e /in/over ]; do sleep 0.05; done"], [(str(tmp_path), "/in")]
    asking = threading.Thread(target=run_once, args=(engine, BUSYBOX, words), kwargs={"mounts": mounts}, daemon=True)
    asking.start()
    assert eventually(lambda: lab.engine.containers(running=True, label=LABEL) != [])
    job = lab.engine.docker("run", "-d", BUSYBOX, "true").stdout.strip()
    remove_old(engine)
    assert len(lab.engine.containers()) == 2
    (tmp_path / "over").touch()
    asking.join(60)
    left = lab.engine.docker("run", "-d", "--label", f"{LABEL}=1", BUSYBOX, "sleep", "60").stdout.strip()
    remove_old(engine, seconds=-60)
    assert lab.engine.containers() == [job], left


def test_gpus_are_the_jobs_own(engine: Engine) -> None:
    assert "simulated" in run_once(engine, BUSYBOX, ["nvidia-smi", "-L"], gpus=Gpus()).stdout.casefold()
    assert run_once(engine, BUSYBOX, ["nvidia-smi", "-L"]).exit_code == 127


@pytest.mark.parametrize("image", [BUSYBOX, PYTHON])
def test_what_root_wrote_is_given_to_the_user(engine: Engine, tmp_path: Path, image: str) -> None:
    inner = tmp_path / "outputs" / "deep"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    (inner / "link").symlink_to("/etc/passwd")
    take_ownership(engine, image, str(tmp_path / "outputs"), 1234, 2345)
    for each in (tmp_path / "outputs", inner, inner / "file", inner / "link"):
        assert (each.lstat().st_uid, each.lstat().st_gid) == (1234, 2345)
    assert Path("/etc/passwd").stat().st_uid == 0


def test_an_image_that_has_nothing_to_do_it_with_says_so(engine: Engine, everybodys: str, tmp_path: Path) -> None:
    pull(engine, f"{everybodys}/{registry.TOOL}", Heard())
    with pytest.raises(JobError, match="root still owns"):
        take_ownership(engine, f"{everybodys}/{registry.TOOL}", str(tmp_path), 1234, 2345)
