"""When the lease of a machine is renewed for a followed job, with a fake cloud and a fake clock."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from gpuinfra.app import lease_renewal as module
from gpuinfra.app.lease_renewal import LeaseRenewal
from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Kind
from gpuinfra.models.stay import Purpose, Reason
from gpuinfra.provision import tags
from gpuinfra.provision.agent_role import AgentRole, RoleState
from gpuinfra.provision.purpose import purpose_of
from gpuinfra.provision.renew import renew
from gpuinfra.provision.waiting import Deadline
from tests.unit.provision_help import DENIED, FakeCloud, made, spec

LEASE = timedelta(hours=4)


class Job:
    """A followed job, on a machine whose lease of four hours began this long ago."""

    def __init__(self, hours_ago: float, lease: timedelta = LEASE) -> None:
        self.spec = spec(lifecycle={"lease": lease, "idle": timedelta(minutes=20)})
        self.cloud = made(self.spec)
        self.without_work = 0.0
        self.wall = 0.0
        self.notes: list[str] = []
        self.later(hours=hours_ago)
        self.renewing = LeaseRenewal(
            self.spec, lambda: self.cloud, self.notes.append, lambda: self.without_work, lambda: self.wall
        )

    def later(self, wall: float = 0.0, **time: float) -> None:
        self.cloud.moment += timedelta(**time)
        self.wall += wall

    @property
    def left(self) -> timedelta:
        until = tags.moment(self.cloud.body(Kind.VM)["tags"], tags.LEASE_UNTIL)
        assert until is not None
        return until - self.cloud.now()


def test_lease_with_enough_time_is_not_renewed() -> None:
    job = Job(1.9)
    writes = len(job.cloud.writes)
    assert job.renewing.look() == module.LONGEST_SECONDS
    assert len(job.cloud.writes) == writes


def test_lease_below_half_is_renewed_for_a_working_job() -> None:
    job = Job(2.1)
    job.renewing.look()
    assert job.left >= LEASE
    assert job.notes == []


@pytest.mark.parametrize(("silent", "is_renewed"), [(19, True), (21, False)])
def test_lease_is_not_renewed_for_an_idle_job(silent: float, is_renewed: bool) -> None:
    job = Job(3)
    job.without_work = silent * 60
    for _ in range(2):
        job.renewing.look()
    assert (job.left >= LEASE) is is_renewed
    assert len(job.notes) == (0 if is_renewed else 1)
    if not is_renewed:
        assert "its GPU is idle: the lease of my-dsvm is not renewed" in job.notes[0]


def test_released_lease_is_not_renewed() -> None:
    job = Job(1)
    job.renewing.look()
    renew(job.cloud, job.spec.name, job.spec.group_name, release=True, deadline=Deadline.after(60))
    for _ in range(2):
        job.later(seconds=5)
        job.renewing.look()
    assert job.left < timedelta(minutes=1)
    (note,) = job.notes
    assert note.startswith("someone released the lease of my-dsvm: it ends at ")
    # An extension after the release counts again.
    renew(job.cloud, job.spec.name, job.spec.group_name, extend=LEASE / 4, deadline=Deadline.after(60))
    job.renewing.look()
    assert job.left >= LEASE


def test_long_lease_that_only_the_schedule_ends_is_not_renewed_at_every_look() -> None:
    job = Job(47, lease=timedelta(hours=48))
    job.cloud.body(Kind.SHUTDOWN_SCHEDULE)["properties"]["status"] = "Enabled"
    job.cloud.rights = [AgentRole(RoleState.REFUSED)] * 2
    job.renewing.look()
    assert timedelta(hours=23) < job.left < timedelta(days=1)
    writes = len(job.cloud.writes)
    job.later(minutes=5)
    job.renewing.look()
    assert len(job.cloud.writes) == writes
    (note,) = job.notes
    assert "the guest agent cannot switch my-dsvm off" in note


def test_shortened_lease_is_renewed() -> None:
    job = Job(0)
    job.renewing.look()
    job.cloud.body(Kind.VM)["tags"][tags.LEASE_UNTIL] = stamp(job.cloud.now() + LEASE / 8)
    job.renewing.look()
    assert job.left >= LEASE


def test_idle_time_is_measured_by_the_clouds_clock() -> None:
    job = Job(3)
    job.without_work = 25 * 60
    job.renewing.look()
    assert job.left < LEASE
    job.later(wall=10, minutes=10)  # sixty times as fast
    job.without_work = 5  # five minutes of the cloud's time
    pause = job.renewing.look()
    assert job.left >= LEASE
    assert pause == pytest.approx(30)  # an eighth of the lease in the cloud's time
    job.later(wall=100, hours=3)
    job.without_work = 60
    job.renewing.look()
    assert job.left < LEASE


def test_short_lease_is_checked_more_often() -> None:
    job = Job(0, timedelta(minutes=4))
    assert job.renewing.look() == 30.0


def test_cap_is_reported_once_and_requested_once() -> None:
    job = Job(2.1)
    job.cloud.body(Kind.VM)["tags"][tags.TERMS] = "lease=4h idle=20m cap=4h30m"
    job.renewing.look()
    until = job.left
    assert until < LEASE / 2 + timedelta(minutes=30)
    calls = len(job.cloud.calls)
    job.renewing.look()
    assert (job.left, len(job.cloud.calls)) == (until, calls + 1)
    assert len(job.notes) == 1
    assert "its cost cap" in job.notes[0]


def test_deleted_machine_has_no_lease() -> None:
    job = Job(3)
    job.cloud.remove(Kind.VM)
    assert job.renewing.look() == module.LONGEST_SECONDS


def test_refused_renewal_is_reported_once_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(3)
    job.cloud.fail("look", DENIED, times=2)
    pauses: list[float] = []

    class Over:
        """Ends after three looks."""

        def wait(self, seconds: float) -> bool:
            pauses.append(seconds)
            return len(pauses) > 3

        def is_set(self) -> bool:
            return False

    monkeypatch.setattr(job.renewing, "_over", Over())
    job.renewing._watch()
    assert pauses[0] == module.FIRST_SECONDS
    assert len(job.notes) == 1
    assert "the lease of my-dsvm cannot be renewed" in job.notes[0]
    assert job.left >= LEASE


def test_renewal_stops_when_the_client_leaves() -> None:
    job = Job(3)
    with job.renewing:
        pass
    job.renewing.look()
    assert job.left < LEASE


# Detached jobs


class Notes:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, LEASE), (60.0, LEASE), (6 * 3600.0, timedelta(hours=6, minutes=10))],
)
def test_detached_job_gets_the_time_of_its_timeout(
    seconds: float | None, expected: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, notes = Job(1), Notes()
    monkeypatch.setattr(module, "_open", _returning(job.cloud))
    module.renew_for(None, job.spec, "r1", seconds, notes)  # type: ignore[arg-type]
    assert expected <= job.left <= expected + timedelta(minutes=1)
    assert notes.texts == []
    assert purpose_of(job.cloud.body(Kind.VM)["tags"]) == Purpose(Reason.JOB, "r1")


def test_failed_renewal_does_not_fail_a_detached_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job, notes = Job(1), Notes()
    job.cloud.fail("look", DENIED)
    monkeypatch.setattr(module, "_open", _returning(job.cloud))
    module.renew_for(None, job.spec, "r1", None, notes)  # type: ignore[arg-type]
    assert len(notes.texts) == 1


def _returning(cloud: FakeCloud) -> Callable[..., FakeCloud]:
    return lambda *_: cloud
