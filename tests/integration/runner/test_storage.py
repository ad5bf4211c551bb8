"""What `prune TARGET` finds on a real machine and deletes: files over SSH and here, and images of a real engine."""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuinfra.remote import environments
from gpuinfra.remote import storage as remote_storage
from gpuinfra.runner import storage as runner_storage
from gpuinfra.runner.connection.local import LocalConnection
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.docker import images
from gpuinfra.runner.docker.images import find_image
from gpuinfra.runner.environment.dockerfile_build import ensure_dockerfile
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.job_spec import StartRequest
from gpuinfra.runner.link import Link
from gpuinfra.runner.process import ProcessJob, start_process
from gpuinfra.runner.progress import Silent
from gpuinfra.runner.sources.dockerfile import Dockerfile
from gpuinfra.runner.storage import Storage
from tests.lab import BUSYBOX, LOCAL, REMOTE, Lab
from tests.sshd import eventually

DAY = 24 * 3600.0
USER = 65534


@pytest.fixture
def link(lab: Lab) -> Iterator[Link]:
    made = Link(lab.target, lambda: SshConnection.open(lab.target, 20))
    yield made
    made.drop()


@pytest.fixture
def nothing_is_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_storage, "RECENT_SECONDS", 0.0)


def build(link: Link, folder: Path, text: str) -> str:
    """Build the image of a Dockerfile as for a job, and return its name."""
    dockerfile = Dockerfile("Dockerfile", ".", f"FROM {BUSYBOX}\nRUN {text}\n")
    return ensure_dockerfile(link.engine, dockerfile, folder, Silent(), lambda _: None).tag


def images_of(link: Link) -> dict[str, str]:
    """Return why each image stays."""
    return {each.name: each.kept for each in Storage(link, 0.0, (), ()).items() if each.kind == "image"}


@pytest.mark.usefixtures("nothing_is_recent")
def test_only_unused_images_that_gpuinfra_built_are_removed(lab: Lab, link: Link, tmp_path: Path) -> None:
    docker = lab.engine.docker
    names = [build(link, tmp_path, f"head -c 2000000 /dev/urandom > /{name}") for name in ("a", "b", "c", "d")]
    free, used, named, base = names
    docker("build", "-t", "mine", str(write_dockerfile(tmp_path / "mine", f"FROM {base}\nRUN echo x > /x\n")))
    docker("build", "-t", "gpuinfra/other", str(tmp_path / "mine"))
    docker("run", "--name", "ended", used, "true")
    storage = Storage(link, 0.0, (), ())
    found = {each.name: each for each in storage.items() if each.kind == "image"}
    reasons = {free: "", used: "a container uses it", named: "", base: ""}
    assert {name: each.kept for name, each in found.items()} == reasons
    assert 2_000_000 <= found[named].size < 3_000_000, "without the layers of its base"
    docker("tag", named, "mine-too")
    (lab.home / ".gpuinfra/runs/new").mkdir(parents=True)
    assert [each.kept for each in storage.remove([found[free]])] == ["a job is being prepared"]
    (lab.home / ".gpuinfra/runs/new").rmdir()
    removed = {each.name: each.kept for each in storage.remove(list(found.values()))}
    other = "a container, a name or an image of others uses it"
    assert removed == {free: "", used: "a container uses it", named: other, base: other}
    docker("rm", "ended")
    left = docker("images", "--format", "{{.Repository}}").stdout.split()
    assert free not in left
    assert {"mine", "gpuinfra/other", used, named, "mine-too", base} <= set(left)
    assert docker("run", "--rm", "mine", "cat", "/x").stdout == "x\n"


def write_dockerfile(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "Dockerfile").write_text(text)
    return folder


def test_image_counts_as_used_when_a_job_finds_it(link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = build(link, tmp_path, "true")
    assert images_of(link) == {name: "used recently"}
    first = find_image(link.engine, name)
    build(link, tmp_path, "true")
    assert find_image(link.engine, name) == first, "at most once an hour"
    monkeypatch.setattr(images, "NOTE_SECONDS", 0.0)
    build(link, tmp_path, "true")
    second = find_image(link.engine, name)
    assert first is not None
    assert second is not None
    assert (second.id, second.used > first.used) == (first.id, True)


def make_old(*folders: Path) -> None:
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            os.utime(path, (0, time.time() - 40 * DAY), follow_symlinks=False)


def test_machine_keeps_what_others_have_not_fetched(lab: Lab) -> None:
    user = lab.user()
    user.script("open('outputs/a', 'w').write('x')")
    assert user("submit", "-c", REMOTE, "train.py").returncode == 0
    other = lab.home / ".gpuinfra/runs/20260101-000000-other"
    (other / "outputs").mkdir(parents=True)
    (other / "outputs/model").write_text("m")
    (other / "state.json").write_text('{"kind": "process", "started": 1, "ended": 2}')
    (mine,) = user.does("runs")["runs"]
    again = other.with_name(mine["id"])
    (again / "outputs").mkdir(parents=True)
    (again / "outputs/a").write_text("x")
    make_old(lab.home / ".gpuinfra")
    refused = user.fails("prune", REMOTE, code="needs-consent", exit_code=2)
    assert "on `bare`: 1 run, 1 copy; nothing was deleted" in refused["note"]
    shown = user("prune", REMOTE, "--dry-run").stdout
    assert "its outputs were not fetched" in shown
    assert len(list(lab.home.glob(".gpuinfra/projects/*/slot-1/tree"))) == 1

    found = user.does("prune", REMOTE, "--yes")
    kept = {(each["kind"], each["name"].partition("/")[2] or each["name"]): each["kept"] for each in found["items"]}
    expected = {("run", other.name): "its outputs were not fetched", ("run", mine["id"]): None}
    assert kept == {**expected, ("copy", "slot-1"): None}
    assert (found["deleted"], found["target"], found["size"] > 0) == (True, REMOTE, True)
    assert (other / "outputs/model").exists()
    assert not list(lab.home.glob(".gpuinfra/projects/*/slot-1/tree"))
    again.mkdir()
    (again / "log").write_text("x")
    make_old(again)
    shutil.rmtree(user.workspace / ".gpuinfra/runs" / mine["id"])
    assert "nothing can be deleted" in user("prune", REMOTE, "--yes").stderr, "there may be no other copy of the log"
    assert user("submit", "-c", REMOTE, "train.py").returncode == 0
    assert user.does("prune", REMOTE, "--yes", "--older-than", "1m")["deleted"] is False, "it was just used"


class OtherUser(LocalConnection):
    """This computer, as an unprivileged user."""

    def start(self, command, *, timeout, idle=None):  # type: ignore[no-untyped-def]
        return super().start(["setpriv", f"--reuid={USER}", "--clear-groups", *command], timeout=timeout, idle=idle)


def test_files_of_a_containers_root_are_removed_with_their_copy(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    monkeypatch.setenv("HOME", str(lab.home))
    monkeypatch.setenv("DOCKER_HOST", lab.engine.address)
    slot = lab.home / ".gpuinfra/projects/demo/slot-1"
    (slot / "tree").mkdir(parents=True)
    (slot / "holder").write_text("")
    make_old(slot)
    for each in (lab.home, *lab.home.rglob("*")):
        os.chown(each, USER, -1)
    (slot / "tree/__pycache__").mkdir()
    (slot / "tree/__pycache__/a.pyc").write_text("x")
    link = Link(replace(lab.target, address=""), OtherUser)
    storage = Storage(link, DAY, (), ())
    found = storage.items()
    assert [(each.kind, each.name, each.kept) for each in found] == [("copy", "demo/slot-1", "")]
    with monkeypatch.context() as patched:
        patched.setattr(runner_storage, "MAX_IMAGES", 0)
        (kept,) = (each.kept for each in storage.remove(found))
        assert kept == f"root owns files in it; run on the machine: `sudo chown -R $USER {slot}/.gone-tree-1`"
    left = storage.items()
    assert [(each.kind, each.name) for each in left] == [("leftover", "projects/demo/slot-1/.gone-tree-1")]
    assert [each.kept for each in storage.remove(left)] == [""]
    assert storage.items() == []
    assert not list(slot.glob(".gone*"))
    link.drop()


def test_container_of_a_run_is_removed_with_it(lab: Lab, link: Link) -> None:
    for run in ("r1", "r2"):
        lab.engine.docker("run", "--name", f"gpuinfra-{run}", "--label", f"gpuinfra.run={run}", BUSYBOX, "true")
    folder = lab.home / ".gpuinfra/runs/r1"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text('{"kind": "container", "container": "c", "started": 1, "ended": 2}')
    storage = Storage(link, DAY, ("r1",), ())
    (found,) = storage.items()
    assert storage.remove([found])[0].kept == ""
    assert not folder.exists()
    assert lab.engine.docker("ps", "--all", "--format", "{{.Names}}").stdout.split() == ["gpuinfra-r2"]


def test_this_computer_needs_no_engine(lab: Lab) -> None:
    user = lab.user()
    user.script("print('done')")
    assert user("submit", "-c", LOCAL, "train.py").returncode == 0
    make_old(user.home / ".gpuinfra")
    done = user("prune", LOCAL, "--yes", DOCKER_HOST=f"unix://{user.home}/nothing")
    assert done.returncode == 0, done.stderr
    assert "deleted 1 item" in done.stderr
    assert not list(user.home.glob(".gpuinfra/projects/*/slot-1/tree"))


def test_running_job_keeps_its_environment(lab: Lab, link: Link) -> None:
    folder = lab.home / ".gpuinfra/environments/abc"
    (folder / "bin").mkdir(parents=True)
    (folder / environments.MARKER).touch()
    make_old(folder)
    storage = Storage(link, DAY, (), ())

    def reason() -> str:
        return next(each.kept for each in storage.items() if each.kind == "environment")

    start_process(link.remote, StartRequest("r1", ("sleep", "600"), str(lab.home), {}, environment_folder=str(folder)))
    assert reason() == "a job uses it"
    ProcessJob(link.remote, "r1").cancel(0)
    assert eventually(lambda: reason() == "")


def test_job_ends_before_its_start_if_its_environment_was_removed(lab: Lab, link: Link) -> None:
    request = StartRequest("r1", ("true",), str(lab.home), {}, environment_folder=str(lab.home / "gone"))
    with pytest.raises(JobError, match="the job's environment was removed"):
        start_process(link.remote, request)
    assert not (lab.home / ".gpuinfra/runs/r1/state.json").exists()
