"""A team and its machines in a simulated month: repositories, people, CI, and an oracle that knows what must be off.

The oracle shares no code with the product. It reads the sandbox's meter, knows each spec as plain data, and calculates
from the documented rules when each machine must be off. The clock stands still between two steps, so that nothing
depends on how fast the computer is.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from tests.e2e.azure import Azure
from tests.e2e.repository import git
from tests.e2e.run_help import QUICK, wait_until
from tests.e2e.user import SPEC, User

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
STILL = 0.0001
"""Seconds of the sandbox in one second: its clock moves only when a test moves it."""
ROUNDING = 61.0
"""An end is rounded to a whole minute."""
BACKSTOP = 36 * MINUTE
"""Azure's schedule stops a machine 35 minutes after its end, at a whole minute."""
LONGEST_SCHEDULED = 23 * HOUR + 25 * MINUTE
GRACE = 24 * HOUR
CENT = 0.005
BILLED = frozenset({"starting", "running", "stopping", "stopped"})
MACHINES = "Microsoft.Compute/virtualMachines"
DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


def moment(text: str) -> float:
    """Return the seconds since 1970 of a time in UTC, such as `2027-03-14 07:30`."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def shown(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%a %Y-%m-%d %H:%M:%SZ}"


@dataclass(frozen=True)
class Hours:
    """Local hours of each of some weekdays. If the end is before the start, it is on the next day."""

    zone: str
    first: str
    last: str
    start: time
    end: time
    holidays: tuple[str, ...] = ()

    def as_spec(self) -> dict[str, Any]:
        holidays = {"holidays": list(self.holidays)} if self.holidays else {}
        on = f"{self.first}-{self.last} {self.start:%H:%M}-{self.end:%H:%M}"
        return {"timezone": self.zone, "on": on, **holidays}

    def around(self, now: float) -> tuple[float, float] | None:
        """Return start and end of the hours that are open at this time."""
        zone = ZoneInfo(self.zone)
        today = datetime.fromtimestamp(now, UTC).astimezone(zone).date()
        for day in (today - timedelta(days=1), today):
            begins, ends = self._on(day, zone)
            if self._is_open(day) and begins <= now < ends:
                return begins, ends
        return None

    def _is_open(self, day: date) -> bool:
        return DAYS.index(self.first) <= day.weekday() <= DAYS.index(self.last) and str(day) not in self.holidays

    def _on(self, day: date, zone: ZoneInfo) -> tuple[float, float]:
        next_day = day + timedelta(days=self.end <= self.start)
        return tuple(datetime.combine(*each, zone).timestamp() for each in ((day, self.start), (next_day, self.end)))  # type: ignore[return-value]


@dataclass
class Machine:
    """A machine as its team thinks of it: a spec, and what has happened to it."""

    name: str
    lease: float
    region: str = "southcentralus"
    size: str = "Standard_NC4as_T4_v3"
    price: float = 0.631
    spot: bool = False
    group: str = ""
    hours: Hours | None = None
    idle: float = 25 * DAY
    """Never reached: while the clock stands still, an agent does not see that a login is over."""
    cap_usd: float | None = None
    is_kept_off: bool = False
    repository: str = ""
    on_since: float = 0.0
    until: float = 0.0
    """When its lease ends, with hours and cost cap."""
    off_since: float = 0.0
    """When a person, Azure or the lease switched it off: in the hours of that time it stays off."""
    removed: float | None = None
    """When its spec was removed from the main branch, or began to say `power: deallocated`."""
    has_agent: bool = False
    scheduled: bool = False
    """Whether Azure's schedule can express the end."""

    @property
    def resource_group(self) -> str:
        return self.group or f"gpuinfra-{self.name}"

    def spec(self, public_key: str) -> dict[str, Any]:
        """Return the document in git."""
        lifecycle: dict[str, Any] = {"lease": duration(self.lease), "idle": duration(self.idle)}
        lifecycle |= {"hours": self.hours.as_spec()} if self.hours else {}
        lifecycle |= {"maxCost": f"{self.cap_usd:g} USD"} if self.cap_usd else {}
        document = {**SPEC, "name": self.name, "region": self.region, "size": self.size, "lifecycle": lifecycle}
        document |= {"target": {"type": "remote"}, "admin": {"sshPublicKey": public_key}}
        document |= {"resourceGroup": self.group} if self.group else {}
        document |= {"priority": "spot"} if self.spot else {}
        document |= {"power": "deallocated"} if self.is_kept_off else {}
        return document

    def start(self, now: float) -> None:
        """Count lease, hours and cost cap from this power-on."""
        self.on_since = now
        self.set_end(now + self.lease, now)

    def set_end(self, end: float, now: float) -> None:
        """Set the end of the lease by the documented rules: later with the hours, never later than the cost cap."""
        opened = self.hours.around(end) if self.hours else None
        end = opened[1] if opened else end
        self.until = end if self.cap_usd is None else min(end, self.on_since + self.cap_usd / self.price * HOUR)
        self.scheduled = self.until - now < LONGEST_SCHEDULED

    def due(self, *, by_spec: bool) -> float:
        """Return when the machine must be off for a `reap`, with or without the specs of its repository."""
        return min(self.until, self.removed) if by_spec and self.removed is not None else self.until


def duration(seconds: float) -> str:
    minutes = round(seconds / MINUTE)
    return f"{minutes // 60}h{minutes % 60}m" if minutes % 60 else f"{minutes // 60}h"


@dataclass(frozen=True)
class Stretch:
    """A time for which the meter billed a VM."""

    name: str
    group: str
    start: float
    end: float | None


@dataclass
class Repository:
    """Specs in git: a bare repository, and the clone in which its owner works."""

    name: str
    owner: User
    origin: Path
    files: dict[str, list[Machine]]

    @property
    def machines(self) -> list[Machine]:
        return [machine for group in self.files.values() for machine in group]


class Team:
    """Everyone who touches the machines, the clock, and what the oracle knows."""

    def __init__(self, azure: Azure, folder: Path, start: str) -> None:
        self.azure, self.folder = azure, folder
        self.first = datetime.fromisoformat(start).replace(tzinfo=UTC)
        self.now = self.first.timestamp()
        azure.control("POST", "reset", {"now": self.now})
        azure.control("POST", "clock", {"speed": STILL})
        self.ci = User(azure, folder / "ci", folder / "runner")
        self.repositories: list[Repository] = []
        self.machines: dict[str, Machine] = {}
        """By name, also those that were deleted."""
        self.receipts: dict[tuple[str, int], dict[str, Any]] = {}
        """By machine and the second of its power-on."""
        self.last_receipts: list[dict[str, Any]] = []
        self.ended: set[tuple[str, float]] = set()
        """Times on that have ended, and whose reason was checked."""
        self.expected: set[str] = set()
        """Machines that the current step switches off."""
        self.foreign: dict[str, dict[str, Any]] = {}
        """What belongs to others, as it was."""
        self.without_spec: list[str] = []
        """Machines that the last pull request leaves without a spec, as its plan says."""
        self.step = "the beginning"
        self.clones = 0
        self.read_requests = 0
        self.is_identity_broken = False
        self.set_faults()

    # Steps

    @contextmanager
    def at(self, when: str, what: str) -> Iterator[None]:
        """Move the clock to this time, and do one step. A failure names it."""
        self.step = f"{when} UTC: {what}"
        try:
            self.move_to(moment(when))
            yield
            self.check_ended()
            self.check_writes()
            self.expected.clear()
        except BaseException as error:
            error.add_note(f"In the simulated month: {self.step}; the clock says {shown(self.now)}")
            error.add_note("To replay: .venv/bin/pytest tests/e2e/test_month.py; its times and events are fixed.")
            raise

    def move_to(self, when: float) -> None:
        """Move the clock, with a stop wherever a guest agent ends its machine."""
        while True:
            with_agents = [each for each in self.on() if each.has_agent and not self.is_identity_broken]
            first = min(with_agents, default=None, key=lambda each: each.until)
            if first is None or first.until + ROUNDING > when:
                break
            self.advance(max(0.0, first.until + ROUNDING - self.now))
            self.wait_until_off(first)
        assert when >= self.now, f"the month is not in order: {shown(when)} is before {shown(self.now)}"
        races = [each.name for each in with_agents if abs(each.until - when) <= ROUNDING]
        assert not races, f"choose another time: the agents of {races} act at the same time"
        self.advance(when - self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.azure.control("POST", "clock", {"advance": seconds})
        self.check_ended()

    def wait_until_off(self, machine: Machine) -> None:
        """Wait until the machine's agent or Azure has switched it off."""
        wait_until(lambda: machine not in self.on(), f"{machine.name} off at {shown(self.now)}")
        self.check_ended()

    # The meter

    def stretches(self) -> list[Stretch]:
        """Return all times on, of the team's machines."""
        found = []
        for entry in self.azure.bill():
            if not self.is_ours(entry["id"]):
                continue
            group = entry["id"].split("/")[4]
            start: float | None = None
            for part in entry["timeline"]:
                is_billed, begins = part["state"] in BILLED, datetime.fromisoformat(part["from"]).timestamp()
                if is_billed and start is None:
                    start = begins
                elif not is_billed and start is not None:
                    found.append(Stretch(entry["name"], group, start, begins))
                    start = None
            if start is not None:
                found.append(Stretch(entry["name"], group, start, None))
        return found

    def is_ours(self, resource_id: str) -> bool:
        words = resource_id.casefold().split("/")
        machine = self.machines.get(words[8])
        return machine is not None and machine.resource_group.casefold() == words[4]

    def on(self) -> list[Machine]:
        return [self.machines[each.name] for each in self.stretches() if each.end is None]

    def check_ended(self) -> None:
        """Check every time on that has ended since the last check: not too early, and not too late."""
        for each in self.stretches():
            machine = self.machines[each.name]
            if each.end is None:
                late = machine.until + BACKSTOP
                assert not machine.scheduled or self.now < late, f"{each.name} is on after its schedule"
                continue
            if (each.name, each.start) in self.ended:
                continue
            self.ended.add((each.name, each.start))
            due = machine.due(by_spec=True)
            machine.has_agent, machine.off_since = False, each.end
            what = f"{each.name} was off at {shown(each.end)}; its end is {shown(due)}"
            assert each.name in self.expected or each.end >= due - ROUNDING, f"too early: {what}"
            assert not machine.scheduled or each.end <= machine.until + BACKSTOP, f"too late: {what}"

    def check_all_off(self, repository: Repository) -> None:
        """Check after a `reap` that everything is off that must be: nothing waits for the next one."""
        for machine in self.on():
            due = machine.due(by_spec=machine.repository == repository.name)
            assert self.now < due + ROUNDING, f"{machine.name} is on after `reap`; its end was {shown(due)}"
            machine.scheduled = machine.until - self.now < LONGEST_SCHEDULED

    def check_all_on(self, repository: Repository) -> None:
        """Check after `reap --start` that every machine is on whose hours began after it was switched off."""
        on, there = self.on(), {each["name"] for each in self.azure.bill() if each["powerState"] != "deleted"}
        for machine in (each for file, own in repository.files.items() if file.startswith("specs/") for each in own):
            opened = machine.hours.around(self.now) if machine.hours and not machine.is_kept_off else None
            if opened and machine.name in there and machine.off_since <= opened[0] + ROUNDING:
                assert machine in on, f"{machine.name} is off in its hours, which began at {shown(opened[0])}"

    # People

    def repository(self, name: str, owner: str, files: dict[str, list[Machine]]) -> Repository:
        """Create a repository with these specs, and its owner's clone of it."""
        origin, workspace = self.folder / f"{name}.git", self.folder / owner / name
        user = User(self.azure, self.folder / owner / "home", workspace)
        shutil.rmtree(workspace)
        git(user, "init", "-q", "--bare", "-b", "main", str(origin), folder=self.folder)
        git(user, "clone", "-q", str(origin), str(workspace), folder=self.folder)
        made = Repository(name, user, origin, files)
        self.repositories.append(made)
        self.know(made)
        (workspace / "quick.py").write_text(QUICK)
        self.write(made, workspace)
        (workspace / ".gitignore").write_text("aml_config/\n.gpuinfra/\n")
        self.commit(made, workspace, "the first specs")
        return made

    def know(self, repository: Repository) -> None:
        for machine in repository.machines:
            self.machines[machine.name], machine.repository = machine, repository.name

    def write(self, repository: Repository, folder: Path) -> None:
        """Write all specs, and nothing else."""
        for name in ("specs", "archive"):
            shutil.rmtree(folder / name, ignore_errors=True)
        key = repository.owner.private_key.with_suffix(".pub").read_text().strip()
        for file, machines in repository.files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text("\n---\n".join(json.dumps(each.spec(key)) for each in machines) + "\n")

    def commit(self, repository: Repository, folder: Path, message: str, branch: str = "main") -> None:
        git(repository.owner, "add", "-A", folder=folder)
        git(repository.owner, "commit", "-q", "-m", message, folder=folder)
        git(repository.owner, "push", "-q", "origin", branch, folder=folder)

    def clone(self, repository: Repository, branch: str = "main") -> Path:
        """Return a fresh clone, as a CI runner makes it."""
        self.clones += 1
        folder = self.folder / f"clone-{self.clones}"
        git(self.ci, "clone", "-q", "-b", branch, str(repository.origin), str(folder), folder=self.folder)
        return folder

    def as_ci(self, folder: Path) -> User:
        self.ci.workspace = folder
        return self.ci

    def pull_request(
        self, repository: Repository, title: str, files: dict[str, list[Machine]]
    ) -> dict[str, dict[str, Any]]:
        """Change the specs on a branch, plan it in a clone of the branch as CI does, and return the plans by name.

        `files` are the files to replace, or to remove if they are empty.
        """
        clone = self.clone(repository)
        git(repository.owner, "checkout", "-q", "-b", "change", folder=clone)
        repository.files = {file: own for file, own in {**repository.files, **files}.items() if own}
        self.know(repository)
        self.write(repository, clone)
        self.commit(repository, clone, title, "change")
        before = self.azure.last_request()
        answer = self.as_ci(self.clone(repository, "change")).does("plan", ".")
        plans = answer["plans"]
        self.without_spec = [each["name"] for each in answer["unmanaged"] if each["reason"] == "no-spec"]
        assert self.azure.writes(before) == [], "a plan changes nothing"
        names = [each.name for _, machines in sorted(repository.files.items()) for each in machines]
        assert [each["name"] for each in plans] == names
        return {each["name"]: each for each in plans}

    def merge(self, repository: Repository, title: str) -> None:
        """Merge the branch into main, and update the owner's clone."""
        clone = self.clone(repository)
        git(repository.owner, "merge", "-q", "--no-ff", "-m", title, "origin/change", folder=clone)
        git(repository.owner, "push", "-q", "origin", "main", ":change", folder=clone)
        git(repository.owner, "pull", "-q", folder=repository.owner.workspace)
        for machine in self.machines.values():
            is_gone = machine.repository == repository.name and machine not in repository.machines
            if not (is_gone or machine.is_kept_off):
                machine.removed = None
            elif machine.removed is None:
                machine.removed = self.now + (GRACE if is_gone else 0)

    def up(self, repository: Repository, *words: str, machines: Iterable[Machine]) -> None:
        """Run `up` in the owner's clone. Its machines are off, or have guests: it waits for SSH."""
        self.fetch_receipts()
        was_on = self.on()
        self.set_faults(no_boot=False)
        repository.owner.does("up", *words)
        self.set_faults()
        wanted = [machine for machine in machines if not machine.is_kept_off]
        for machine in wanted:
            if machine not in was_on:
                machine.start(self.now)
            machine.has_agent = True
        assert {each.name for each in wanted} <= {each.name for each in self.on()}

    def delete_in_portal(self, path: str, machine: Machine) -> None:
        """Delete a VM or a resource group, as someone does in the portal."""
        self.expected.add(machine.name)
        status, answer = self.azure.send("DELETE", path)
        assert status in {200, 202}, answer
        self.wait_until_off(machine)

    def start_in_portal(self, machine: Machine) -> None:
        """Start a machine as in the portal. If its lease is over, the next `reap` ends it."""
        self.fetch_receipts()
        status, answer = self.azure.send("POST", f"{self.vm(machine)}/start")
        assert status in {200, 202}, answer
        machine.on_since = self.now
        machine.until, machine.scheduled = max(machine.until, self.now), False

    def evict(self, machine: Machine) -> None:
        """Let Azure evict a spot machine, half a minute after its notice."""
        self.expected.add(machine.name)
        self.azure.fault("evict", resource=machine.name)
        self.advance(MINUTE)
        self.wait_until_off(machine)

    def extend(self, repository: Repository, machine: Machine, seconds: float) -> None:
        """Extend a lease, and compare its end with the oracle's."""
        found = repository.owner.does("lease", machine.name, "--extend", duration(seconds))
        machine.set_end(max(machine.until, self.now) + seconds, self.now)
        assert abs(datetime.fromisoformat(found["leaseUntil"]).timestamp() - machine.until) < ROUNDING, found

    def vm(self, machine: Machine) -> str:
        return self.azure.id(MACHINES, machine.name, machine.resource_group)

    def set_faults(self, *more: dict[str, Any], no_boot: bool = True) -> None:
        """Arm these faults only. Unless a person needs the guests, machines start without one, which costs little."""
        self.azure.clear_faults()
        lasting = {"no-boot": no_boot, "identity-refused": self.is_identity_broken}
        for fault in (*more, *({"name": name, "count": 0} for name, is_armed in lasting.items() if is_armed)):
            self.azure.fault(**fault)

    # CI and receipts

    def reap(self, repository: Repository, *words: str) -> dict[str, Any]:
        """Run `reap` in a fresh clone, as CI does, and check that nothing is left for the next one.

        Its exit code is 4 if a machine could not be deleted, and 0 otherwise.
        """
        ci, before = self.as_ci(self.clone(repository)), self.on()
        self.expected |= {each.name for each in before if self.now >= each.due(by_spec=True) - ROUNDING}
        done = ci("reap", "--specs", "specs", "--start", "--require-clean", *words, "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        kept = [each["name"] for part in ("stopped", "kept", "orphans") for each in found[part] if "notDeleted" in each]
        found["notDeleted"] = kept
        assert done.returncode == (4 if kept else 0), done.stdout + done.stderr
        for each in found["started"]:
            self.machines[each["name"]].start(self.now)
        self.keep_receipts([*found["stopped"], *found["deleted"]])
        self.check_all_off(repository)
        self.check_all_on(repository)
        shutil.rmtree(ci.workspace)
        return found

    def down(self, repository: Repository, *words: str, machines: Iterable[Machine], code: int = 0) -> dict[str, Any]:
        """Run `down` in the owner's clone, and keep its receipts."""
        self.expected |= {each.name for each in machines}
        done = repository.owner("down", *words, "--json")
        assert done.returncode == code, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        self.keep_receipts(found["receipts"])
        return found

    def keep_receipts(self, receipts: Sequence[dict[str, Any]]) -> None:
        """Keep the receipts, and compare each with the meter."""
        times = self.stretches()
        self.last_receipts += receipts
        for receipt in receipts:
            if not receipt["off"] or receipt["billedFrom"] is None:
                continue
            begins = datetime.fromisoformat(receipt["billedFrom"]).timestamp()
            own = [each for each in times if each.name == receipt["name"]]
            metered = min(own, key=lambda each: abs(each.start - begins))
            assert metered.end is not None, receipt
            assert abs(metered.start - begins) <= 1, f"receipt {receipt} for {metered}"
            assert abs(receipt["billedSeconds"] - (metered.end - metered.start)) <= 1, (
                f"receipt {receipt} for {metered}"
            )
            self.receipts[metered.name, round(metered.start)] = receipt

    def fetch_receipts(self) -> None:
        """Ask for the receipts of machines that their agent, Azure or others switched off.

        `down` has them only for the last time on, so ask before the next start.
        """
        last = {each.name: each for each in self.stretches()}
        stuck = {each["name"] for each in self.azure.bill() if each["powerState"] == "deallocating"}
        wanted = [
            self.machines[name]
            for name, each in last.items()
            if each.end is not None and name not in stuck and (name, round(each.start)) not in self.receipts
        ]
        for repository in self.repositories:
            if names := [each.name for each in wanted if each.repository == repository.name]:
                self.down(repository, *names, machines=[])

    def check_left(self) -> None:
        """Check that what is left of our machines belongs to a spec, and is listed if it is billed."""
        self.last_receipts.clear()
        for each in self.repositories:
            self.down(each, "specs", machines=[])
        listed = {each["name"] for receipt in self.last_receipts for each in receipt["residue"]}
        described = {each.name for repository in self.repositories for each in repository.machines}
        for body in self.azure.bodies():
            name = (body.get("tags") or {}).get("gpuinfra:name")
            if name is None or body["id"] in self.foreign:
                continue
            assert name in described, f"{body['id']} is left of a machine without a spec"
            is_billed = body["type"].rpartition("/")[2] in {"disks", "publicIPAddresses"}
            assert not is_billed or body["name"] in listed, f"{body['id']} is billed, and no receipt lists it"

    def check_money(self) -> None:
        """Compare receipts and `cost`, from each workspace and a fresh clone, with the meter: for each machine."""
        meter: dict[str, float] = defaultdict(float)
        for entry in (each for each in self.azure.bill() if self.is_ours(each["id"])):
            meter[entry["name"]] += entry["costUsd"]
        for name, cost in meter.items():
            own = [receipt["costUsd"] for (machine, _), receipt in self.receipts.items() if machine == name]
            times = [each for each in self.stretches() if each.name == name and each.end is not None]
            without = [each for each in times if (name, round(each.start)) not in self.receipts]
            assert not without, f"{name} has no receipts for {without}"
            assert abs(sum(own) - cost) < CENT, f"{name}: receipts {sum(own)}, bill {cost}"
        total, all_receipts = sum(meter.values()), sum(each["costUsd"] for each in self.receipts.values())
        assert abs(all_receipts - total) < CENT, f"all receipts {all_receipts}, bill {total}"
        for each in self.repositories:
            for user in (each.owner, self.as_ci(self.clone(each))):
                found = user.does("cost", "--since", f"{self.first:%Y-%m-%d}")["cost"]
                assert {row["label"] for row in found["rows"]} == set(meter), user.workspace
                for row in found["rows"]:
                    what = f"{row['label']} in {user.workspace}: {row}"
                    assert abs(row["computeUsd"] - meter[row["label"]]) < CENT, f"billed {meter[row['label']]}: {what}"
                    assert row["range"]["computeUsd"] == {"min": row["computeUsd"], "max": row["computeUsd"]}, what
                    assert row["unpricedSeconds"] == 0, what
                amount = found["total"]["computeUsd"]
                assert abs(amount - total) < CENT, f"cost {amount} in {user.workspace}, bill {total}"

    # Others

    def note_foreign(self) -> None:
        """Remember everything that exists so far as the property of others."""
        self.foreign = {each["id"]: each for each in self.azure.bodies()}
        self.read_requests = self.azure.last_request()

    def check_writes(self) -> None:
        """Check that no request has tried to change what belongs to others."""
        for each in self.azure.requests(self.read_requests):
            self.read_requests = max(self.read_requests, int(each["number"]))
            path = each["path"].casefold()
            is_theirs = any(path == one.casefold() or path.startswith(f"{one.casefold()}/") for one in self.foreign)
            assert each["method"] in {"GET", "HEAD"} or not is_theirs, f"{each['method']} {path} belongs to others"

    def check_foreign(self) -> None:
        """Check that what belongs to others is as it was, and was billed all the time."""
        for each, before in self.foreign.items():
            assert self.azure.get(each) == before, f"{each} belongs to others"
        theirs = [each for each in self.azure.bill() if not self.is_ours(each["id"])]
        assert all(each["powerState"] == "running" for each in theirs), theirs
