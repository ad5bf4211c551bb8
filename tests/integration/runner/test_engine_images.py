"""Images that a real engine pulls from a test registry, and short-lived containers of images."""

import base64
import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.docker.images import ensure_image, find_image, pull
from gpuinfra.runner.errors import JobError, TimedOut
from gpuinfra.runner.helper_containers import LABEL, remove_old, run_once, take_ownership
from gpuinfra.runner.job_spec import Gpus
from tests.integration.runner import registry
from tests.integration.runner.conftest import eventually
from tests.lab import BUSYBOX, PYTHON, Lab
from tests.registries import serving


class Recorder:
    """Records the reported progress."""

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
def public(running_lab: Lab) -> Iterator[str]:
    """The address of a public registry."""
    with serving(running_lab) as address:
        yield address


@pytest.fixture(scope="session")
def private(running_lab: Lab) -> Iterator[str]:
    """The address of a registry that requires a login."""
    with serving(running_lab, "private") as address:
        yield address


@pytest.fixture
def engine(lab: Lab) -> Iterator[Engine]:
    """An engine over SSH, without the registries' images."""
    with (
        lab.connected() as connection,
        contextlib.closing(Engine(connection, 20, shares_credentials=True)) as engine,
    ):
        yield engine


def settings(home: Path, **content: object) -> None:
    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_text(json.dumps(content))


def login(address: str, password: str) -> dict[str, dict[str, str]]:
    return {address: {"auth": base64.b64encode(f"{registry.USER}:{password}".encode()).decode()}}


def test_image_is_pulled_once_with_progress(engine: Engine, public: str) -> None:
    name, seen = f"{public}/{registry.TOOL}", Recorder()
    assert find_image(engine, name) is None
    facts = ensure_image(engine, name, seen)
    assert facts == find_image(engine, name)
    assert (facts.platform, facts.environment) == ("linux/amd64", {"PATH": "/tools"})
    assert [what for what, _ in seen.steps] == ["begin", "end"]
    done, total = seen.amounts[-1]
    assert done == total
    assert done >= registry.LAYER_SIZE
    assert not seen.notes
    again = Recorder()
    assert ensure_image(engine, name, again) == facts
    assert not again.steps


def test_image_for_another_processor_is_reported(engine: Engine, public: str) -> None:
    seen = Recorder()
    facts = pull(engine, f"{public}/{registry.FOREIGN}", seen)
    assert facts.platform == "linux/s390x"
    assert "linux/s390x" in seen.notes[0]


def test_private_image_is_pulled_with_local_credentials(engine: Engine, private: str, home: Path) -> None:
    settings(home, auths=login(private, registry.PASSWORD))
    assert pull(engine, f"{private}/{registry.TOOL}", Recorder()).id


def test_credential_helpers_are_used(
    engine: Engine, private: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(home, credHelpers={private: "lab"})
    answer = json.dumps({"ServerURL": private, "Username": registry.USER, "Secret": registry.PASSWORD})
    helper = tmp_path / "docker-credential-lab"
    helper.write_text(f"#!/bin/sh\necho '{answer}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert pull(engine, f"{private}/{registry.TOOL}", Recorder()).id


def test_missing_helper_does_not_prevent_a_pull_of_a_public_image(engine: Engine, public: str, home: Path) -> None:
    settings(home, credHelpers={public: "nowhere"})
    seen = Recorder()
    assert pull(engine, f"{public}/{registry.TOOL}", seen).id
    assert "cannot be read" in seen.notes[0]


@pytest.mark.parametrize("password", [None, "wrong"])
def test_refused_login_is_reported_with_a_fix(engine: Engine, private: str, home: Path, password: str | None) -> None:
    settings(home, auths=login(private, password) if password else {})
    seen = Recorder()
    with pytest.raises(JobError) as caught:
        pull(engine, f"{private}/{registry.TOOL}", seen)
    assert caught.value.code == "registry-login"
    assert "docker login" in str(caught.value.help)
    assert seen.steps[-1][0] == "fail"
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("name", ["{address}/lab/tool:2", "{address}/missing/image:1", "missing-image", "Not A Name"])
def test_unknown_image_is_reported(engine: Engine, public: str, name: str) -> None:
    with pytest.raises(JobError) as caught:
        ensure_image(engine, name.format(address=public), Recorder())
    assert caught.value.code == "no-image"
    assert caught.value.help
    assert name.format(address=public) in str(caught.value)


def test_command_in_an_image_leaves_no_container(engine: Engine, lab: Lab, tmp_path: Path) -> None:
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


def test_long_output_is_cut(engine: Engine) -> None:
    done = run_once(engine, BUSYBOX, ["sh", "-c", "busybox head -c 3000000 /dev/zero"])
    assert len(done.stdout) == 1 << 20


def test_command_that_does_not_end_is_stopped(engine: Engine, lab: Lab) -> None:
    with pytest.raises(TimedOut, match="`sleep` in the image did not end within 1 s"):
        run_once(engine, BUSYBOX, ["sleep", "60"], timeout=1)
    assert lab.engine.containers() == []
    assert run_once(engine, BUSYBOX, ["true"]).exit_code == 0


def test_old_containers_of_killed_clients_are_removed(engine: Engine, lab: Lab, tmp_path: Path) -> None:
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


def test_command_sees_only_requested_gpus(engine: Engine) -> None:
    assert "simulated" in run_once(engine, BUSYBOX, ["nvidia-smi", "-L"], gpus=Gpus()).stdout.casefold()
    assert run_once(engine, BUSYBOX, ["nvidia-smi", "-L"]).exit_code == 127


@pytest.mark.parametrize("image", [BUSYBOX, PYTHON])
def test_files_of_root_are_given_to_the_user(engine: Engine, tmp_path: Path, image: str) -> None:
    inner = tmp_path / "outputs" / "deep"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    (inner / "link").symlink_to("/etc/passwd")
    take_ownership(engine, image, str(tmp_path / "outputs"), 1234, 2345)
    for each in (tmp_path / "outputs", inner, inner / "file", inner / "link"):
        assert (each.lstat().st_uid, each.lstat().st_gid) == (1234, 2345)
    assert Path("/etc/passwd").stat().st_uid == 0


def test_image_without_tools_is_reported(engine: Engine, public: str, tmp_path: Path) -> None:
    pull(engine, f"{public}/{registry.TOOL}", Recorder())
    with pytest.raises(JobError, match="root still owns"):
        take_ownership(engine, f"{public}/{registry.TOOL}", str(tmp_path), 1234, 2345)
