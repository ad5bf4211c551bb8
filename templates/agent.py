"""The guest agent: deallocates its own VM when nothing needs it.

It runs as a service on the machine: Python 3.8, the standard library, one file. Every tick it reads the VM's tags from
instance metadata, looks for activity, and decides from the current state alone, so a missed tick does no harm. It
deallocates with the VM's own identity. It never shuts the guest down, because a stopped VM is billed. Times are seconds
since 1970 by Azure's clock; files and jobs use the guest's clock.
"""

from __future__ import annotations

import argparse
import calendar
import contextlib
import dataclasses
import email.utils
import fcntl
import json
import os
import re
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEASE_OVER, COST_CAP, IDLE, FINISHED, EVICTED = "lease over", "cost cap", "idle", "job finished", "evicted"
WATCHING, WARNING, STOPPING, DEALLOCATING = "watching", "warning", "stopping-jobs", "deallocating"

TICK = 5.0
# Azure recommends polling scheduled events once a second; changed tags are seen as fast.
LONGEST_PAUSE, SHORTEST_PAUSE = 1.0, 0.1
# Run programs less often than files are read: with an accelerated Azure clock they would use all the time.
SHORTEST_LOOK = 0.3
BUSY_PERCENT = 5
WARN_SECONDS = 300.0
# A connected client sends a heartbeat every ten seconds.
HEARTBEAT_SECONDS = 45.0
GRACE_SECONDS, STOP_SECONDS = 20.0, 30.0
EVICTION_GRACE_SECONDS, EVICTION_STOP_SECONDS = 15.0, 20.0
# A job needs some of the guest's own time to end, however fast Azure's clock runs.
SHORTEST_GRACE = 2.0
FIRST_BACK_OFF, LONGEST_BACK_OFF = 1.0, 60.0
ACCEPTED_SECONDS = 600.0
METADATA_SECONDS, ARM_SECONDS, PROGRAM_SECONDS = 3.0, 20.0, 5.0
KILL_SECONDS = 1.0
MEETING_SECONDS = 30.0
# After a gap this long between samples, idle time is unknown and starts from zero.
LONGEST_BLINDNESS = 120.0
LARGEST_FILE = 64 * 1024
NEVER = (-1e12, -1e12)

METADATA_VERSION, EVENTS_VERSION, TOKEN_VERSION = "2021-02-01", "2020-07-01", "2018-02-01"
COMPUTE_VERSION = "2024-11-01"
PUBLIC = "https://management.azure.com"
# By `azEnvironment` in instance metadata. A token is valid only for Resource Manager of its own cloud.
MANAGERS = {
    "azurepubliccloud": PUBLIC,
    "azureusgovernmentcloud": "https://management.usgovcloudapi.net",
    "azurechinacloud": "https://management.chinacloudapi.cn",
}


# State


@dataclass(frozen=True)
class Terms:
    """How long the machine may be on, in seconds."""

    lease: float = 4 * 3600.0
    idle: float = 20 * 60.0
    cap: float | None = None


@dataclass(frozen=True)
class Run:
    """One run, from its folder. Ages use the guest's clock."""

    id: str
    alive: bool = False
    """Whether its job runs."""
    container: bool = False
    after_run: str | None = None
    heartbeat_age: float | None = None
    """Seconds since the last heartbeat of a client; None if there was none."""
    detached: bool = False
    ended_age: float | None = None
    """Seconds since its job ended; None if it runs or never began."""
    of_this_boot: bool = True

    @property
    def attended(self) -> bool:
        """Whether its client is connected. After a clock change, the last heartbeat may be in the future.

        A client that will detach says so from the beginning, but is connected until the job has begun.
        """
        if self.heartbeat_age is None or abs(self.heartbeat_age) >= HEARTBEAT_SECONDS:
            return False
        return not self.detached or not (self.alive or self.ended_age is not None)

    @property
    def needs_machine(self) -> bool:
        """Whether its job runs, or a client is connected for it."""
        return self.alive or self.attended

    @property
    def ends_machine(self) -> bool:
        """Whether the machine goes off after this run."""
        return self.of_this_boot and self.after_run in {"deallocate", "delete"}

    @property
    def seconds_to_finish(self) -> float | None:
        """Seconds until the machine may go off without a client; None while the job runs or other rules decide."""
        return None if self.alive or not self.ends_machine or self.heartbeat_age is None else self.seconds_to_wait

    @property
    def seconds_to_wait(self) -> float:
        """Seconds for which a client may still reconnect, after its last heartbeat and after the end of the job."""
        ages = (self.heartbeat_age, self.ended_age)
        return max(0.0 if age is None else _rest_of_window(age) for age in ages)


def _rest_of_window(age: float) -> float:
    """Return for how many seconds a sign of this age still counts. After a clock change, it may be in the future."""
    return 0.0 if abs(age) >= HEARTBEAT_SECONDS else HEARTBEAT_SECONDS - age


@dataclass(frozen=True)
class Facts:
    """All inputs of a decision."""

    now: float
    power_on: float
    terms: Terms = Terms()
    lease_until: float | None = None
    on_since: float | None = None
    runs: tuple[Run, ...] = ()
    sessions: int = 0
    gpu: int | None = None
    """Utilization of the busiest GPU in percent; None if unknown."""
    notice: str | None = None
    """The ID of the event with which Azure announces the eviction of this spot VM."""
    rate: float = 1.0
    """Azure's seconds per second of the guest."""

    @property
    def needed(self) -> bool:
        """Whether a job runs, or a client is connected for one."""
        return any(run.needs_machine for run in self.runs)

    @property
    def shows_life(self) -> bool:
        """Whether something needs the machine right now."""
        return bool(self.sessions) or (self.gpu or 0) >= BUSY_PERCENT or self.needed


@dataclass(frozen=True)
class Memory:
    """What one decision passes to the next."""

    idle_since: float | None = None
    warned: tuple[tuple[str, float], ...] = ()
    begun: float | None = None
    """The end of lease or cost cap for which jobs were asked to end. It stays in force after they have ended."""


@dataclass(frozen=True)
class Decision:
    """What to do now."""

    until: float
    limit: str
    """What ends the machine at that time: its lease or its cost cap."""
    cause: str | None
    """Why it ends now; None while it stays on."""
    detail: str
    warnings: tuple[tuple[str, float], ...]
    is_warning: bool
    memory: Memory
    idle_until: float | None
    ends_with: tuple[str, ...] = ()
    """Runs that need the machine now, if it goes off after the last of them."""
    finished_until: float | None = None
    """When the machine goes off because these runs have ended; None while something needs it."""


# The decision: no clock, no files, no network


def decide(facts: Facts, memory: Memory) -> Decision:
    """Return whether the machine goes off now and why, and until when it may be on."""
    until, limit = end_of(facts)
    idle_since = idle_from(facts, memory)
    idle_until = None if idle_since is None else idle_since + facts.terms.idle
    cause, detail = _cause(facts, until, limit, idle_until, memory.begun)
    near = [] if cause else list(_near(facts, until, limit, idle_until))
    warnings = tuple(each for each in near if each not in memory.warned)
    begun = until if cause in {LEASE_OVER, COST_CAP} else None
    # An end that was moved away is warned of again when it is near.
    left = Memory(idle_since, tuple(near) if cause is None else memory.warned, begun)
    needing = tuple(run.id for run in facts.runs if run.needs_machine)
    ends_with = needing if any(run.ends_machine for run in facts.runs) else ()
    finish = _finish(facts)
    finished_until = finish[0] if finish else None
    return Decision(until, limit, cause, detail, warnings, bool(near), left, idle_until, ends_with, finished_until)


def end_of(facts: Facts) -> tuple[float, str]:
    """Return when the machine goes off at the latest, and why.

    A tag with an end before this power-on belongs to an earlier one: a machine started in the portal gets a new lease,
    and its cost counts from then. The cap ends with a whole minute, as in the tag.
    """
    until, since = facts.power_on + facts.terms.lease, facts.power_on
    if facts.lease_until is not None and facts.lease_until > facts.power_on:
        until = facts.lease_until
        since = min(since, facts.power_on if facts.on_since is None else facts.on_since)
    spent = None if facts.terms.cap is None else (since + facts.terms.cap) // 60 * 60
    if spent is not None and spent <= until:
        return spent, COST_CAP
    return until, LEASE_OVER


def idle_from(facts: Facts, memory: Memory) -> float | None:
    """Return since when there was no activity, or None while there is."""
    if facts.shows_life:
        return None
    before = facts.now if memory.idle_since is None else memory.idle_since
    # A clock that was set back must not extend the wait beyond the window.
    return min(max(before, facts.power_on), facts.now)


def _cause(
    facts: Facts, until: float, limit: str, idle_until: float | None, begun: float | None
) -> tuple[str | None, str]:
    if facts.notice is not None:
        return EVICTED, "Azure takes this spot machine away"
    # Jobs are asked a little earlier, so that the machine is not billed beyond the end.
    ahead = STOP_SECONDS if any(run.alive for run in facts.runs) else 0.0
    if facts.now >= until - ahead or begun == until:
        what = "the lease ends" if limit == LEASE_OVER else "the cost cap is reached"
        return limit, f"{what} at {stamp(until)}"
    finish = _finish(facts)
    if finish and facts.now >= finish[0]:
        return FINISHED, f"run {finish[1]} is over and its client is gone"
    if idle_until is not None and facts.now >= idle_until:
        return IDLE, f"no job, no login and an idle GPU for {facts.terms.idle / 60:.0f} minutes"
    return None, ""


def _finish(facts: Facts) -> tuple[float, str] | None:
    """Return when the machine goes off because a run has ended, and which; None while something needs it."""
    if facts.needed:
        return None
    over = [run for run in facts.runs if run.seconds_to_finish is not None]
    if not over:
        return None
    # The last run to end gets its whole window, even if that of an older one is over.
    wait = max(run.seconds_to_wait for run in facts.runs)
    return facts.now + wait * facts.rate, max(over, key=lambda run: run.seconds_to_wait).id


def _near(facts: Facts, until: float, limit: str, idle_until: float | None) -> Iterator[tuple[str, float]]:
    """Yield the ends that are so near that logged-in users should know."""
    if until - facts.now <= WARN_SECONDS:
        yield limit, until
    # A short window must not warn from its start.
    if idle_until is not None and idle_until - facts.now <= min(WARN_SECONDS, facts.terms.idle / 2):
        yield IDLE, idle_until


def pause_for(rate: float) -> float:
    """Return the pause between two ticks in the guest's seconds, if Azure's clock runs at this rate."""
    return min(LONGEST_PAUSE, max(SHORTEST_PAUSE, TICK / max(rate, 1.0)))


def back_off(failures: int) -> float:
    """Return the pause after this number of failures."""
    return min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(failures - 1, 16))


# Parsing


def stamp(moment: float) -> str:
    """Return `2026-11-16T08:00:00Z`, limited to the years that this format can show."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(max(moment, 0.0), 253402300799.0)))


_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|[+-]00:?00)?")
_SPAN = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,5})h)?(?:(\d{1,6})m)?")


def read_moment(text: Any) -> float | None:
    """Parse the text from `stamp`; return None for other text, because anyone can write a tag."""
    found = _MOMENT.fullmatch(text) if isinstance(text, str) else None
    if not found:
        return None
    try:
        return float(calendar.timegm(time.strptime(f"{found[1]} {found[2]}", "%Y-%m-%d %H:%M:%S")))
    except (ValueError, OverflowError):
        return None


def read_span(text: str) -> float | None:
    """Return the seconds in a text like `9h30m`, or None if it is not a duration."""
    found = _SPAN.fullmatch(text)
    if not found or not text:
        return None
    days, hours, minutes = (int(part or 0) for part in found.groups())
    return days * 86400.0 + hours * 3600.0 + minutes * 60.0 or None


def read_terms(tag: str, otherwise: Terms) -> Terms:
    """Parse `lease=4h idle=20m cap=9h30m`; return `otherwise` if it is invalid."""
    words = dict(word.partition("=")[::2] for word in tag.split())
    lease, idle = read_span(words.get("lease", "")), read_span(words.get("idle", ""))
    if lease is None or idle is None:
        return otherwise
    return Terms(lease, idle, read_span(words.get("cap", "")))


def read_config(text: str) -> tuple[Terms, str]:
    """Return the terms to use without metadata, and the user's home. Invalid values are ignored."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    found = found if isinstance(found, dict) else {}
    usual = Terms()
    lease, idle, cap = (_positive(found.get(name)) for name in ("lease", "idle", "cap"))
    home = found.get("home")
    return Terms(lease or usual.lease, idle or usual.idle, cap), home if isinstance(home, str) else ""


def _positive(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < 1e12 else None


def read_utilization(output: str) -> int | None:
    """Return the utilization of the busiest GPU in percent, or None if there is no number."""
    numbers = [int(line) for line in output.split() if line.isdecimal()]
    return max(numbers) if numbers else None


def read_notice(events: Any, machine: str) -> dict[str, Any] | None:
    """Return the scheduled event that evicts this spot VM, or None."""
    found = events.get("Events") if isinstance(events, dict) else None
    for event in found if isinstance(found, list) else []:
        if not isinstance(event, dict) or event.get("EventType") != "Preempt" or not event.get("EventId"):
            continue
        names = event.get("Resources")
        # Azure writes VMs of a scale set as `_name`.
        known = {str(name).lower().lstrip("_") for name in names} if isinstance(names, list) else set()
        if machine.lower() in known:
            return event
    return None


# Azure: metadata, tokens, deallocation


class Clock:
    """Azure's time, from its responses; the guest's time before the first one."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, float]] = deque(maxlen=20)

    def hear(self, date: str | None) -> None:
        """Note a response's `Date`."""
        parsed = email.utils.parsedate_tz(date) if date else None
        if parsed:
            self._heard.append((time.monotonic(), float(email.utils.mktime_tz(parsed))))

    @property
    def is_set(self) -> bool:
        """Whether a response was received."""
        return bool(self._heard)

    def now(self) -> float:
        """Return seconds since 1970."""
        if not self._heard:
            return time.time()
        at, moment = self._heard[-1]
        return moment + (time.monotonic() - at)

    def rate(self) -> float:
        """Return Azure's seconds per second of the guest: 1, except in the sandbox."""
        if len(self._heard) < 2:
            return 1.0
        (first, before), (last, after) = self._heard[0], self._heard[-1]
        # A response has whole seconds.
        return max(1.0, (after - before - 1.0) / max(last - first, 0.05))


def manager_of(cloud: str) -> str:
    """Return the Resource Manager of a cloud, by its name in instance metadata; public Azure's by default."""
    return MANAGERS.get(cloud.lower(), PUBLIC)


class AzureError(Exception):
    """Azure refused a request, or did not answer."""


class Azure:
    """The requests that this VM can send to Azure."""

    def __init__(self, clock: Clock, environment: Mapping[str, str]) -> None:
        self._clock = clock
        self._metadata = environment.get("GPUINFRA_IMDS_ENDPOINT") or "http://169.254.169.254/metadata"
        self._arm = environment.get("GPUINFRA_ARM_ENDPOINT")
        # Metadata has a link-local address and refuses requests through a proxy.
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._outward = urllib.request.build_opener()

    def compute(self) -> dict[str, Any]:
        """Return this VM's metadata, including its tags."""
        found = self._ask_metadata(f"instance/compute?api-version={METADATA_VERSION}")
        if not isinstance(found, dict):
            raise AzureError("instance metadata has no machine in it")
        return found

    def events(self) -> Any:
        """Return what Azure is about to do to this VM."""
        return self._ask_metadata(f"scheduledevents?api-version={EVENTS_VERSION}")

    def acknowledge(self, event: str) -> None:
        """Tell Azure not to wait any longer for this event."""
        body = {"StartRequests": [{"EventId": event}]}
        self._ask_metadata(f"scheduledevents?api-version={EVENTS_VERSION}", body)

    def deallocate(self, machine: str, cloud: str) -> None:
        """Deallocate this VM in this cloud. Returns when Azure has accepted the request."""
        if not machine:
            raise AzureError("instance metadata never said which machine this is")
        manager = manager_of(cloud)
        path = f"identity/oauth2/token?api-version={TOKEN_VERSION}&resource={manager}/"
        answer = self._ask_metadata(path)
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not token:
            raise AzureError("instance metadata gave no token")
        url = f"{(self._arm or manager).rstrip('/')}{machine}/deallocate?api-version={COMPUTE_VERSION}"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(url, b"", headers, method="POST")  # noqa: S310 Azure's own
        self._send(self._outward, request, ARM_SECONDS)

    def _ask_metadata(self, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Metadata": "true", **({"Content-Type": "application/json"} if content else {})}
        request = urllib.request.Request(f"{self._metadata}/{path}", content, headers)  # noqa: S310 Azure's own
        text = self._send(self._direct, request, METADATA_SECONDS)
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise AzureError("instance metadata answered no JSON") from None

    def _send(self, opener: urllib.request.OpenerDirector, request: urllib.request.Request, seconds: float) -> bytes:
        """Return the response's content. Every response has Azure's time, even an error."""
        what = f"{request.get_method()} {request.full_url.partition('?')[0]}"
        try:
            with opener.open(request, timeout=seconds) as response:
                self._clock.hear(response.headers.get("Date"))
                content: bytes = response.read(4 * 1024 * 1024)
                return content
        except urllib.error.HTTPError as error:
            with error:
                self._clock.hear(error.headers.get("Date"))
                text = error.read(1000).decode("utf-8", "replace")
            raise AzureError(f"{what}: {error.code} {' '.join(text.split())[:300]}") from None
        except (OSError, ValueError, EOFError) as error:
            raise AzureError(f"{what}: {error}") from None
        except Exception as error:  # http.client has its own exceptions
            raise AzureError(f"{what}: {type(error).__name__}: {error}") from None


# The guest: programs, and the folders of runs


class Program:
    """A program that is run repeatedly. If it hangs, it is not run again before it ends."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self._hung: subprocess.Popen[bytes] | None = None

    def ask(self) -> str | None:
        """Return its output, or None if it is missing, fails or hangs."""
        if self._hung is not None and self._hung.poll() is None:
            return None
        self._hung = None
        null = subprocess.DEVNULL
        try:
            child = subprocess.Popen(self._words, stdin=null, stdout=subprocess.PIPE, stderr=null)  # noqa: S603 constant
        except OSError:
            return None
        try:
            output, _ = child.communicate(timeout=PROGRAM_SECONDS)
        except subprocess.TimeoutExpired:
            self._give_up(child)
            return None
        return output.decode("utf-8", "replace") if child.returncode == 0 else None

    def _give_up(self, child: subprocess.Popen[bytes]) -> None:
        """Kill the child without waiting for long: a stuck driver can prevent its end."""
        child.kill()
        if child.stdout:
            child.stdout.close()
        try:
            child.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._hung = child


def read_file(path: str) -> str | None:
    """Return a small regular file's text, or None: a file in a user's folder may be a pipe or a device."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        return os.read(file, LARGEST_FILE).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(file)


def read_object(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None."""
    try:
        found = json.loads(read_file(path) or "")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write_whole(path: str, value: Any) -> None:
    """Write JSON atomically: a reader sees the old or the new content, never a part."""
    beside = f"{path}.{os.getpid()}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(beside, flags, 0o644), "wb") as output:
            os.fchmod(output.fileno(), 0o644)
            output.write(json.dumps(value).encode() + b"\n")
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def age_of(path: str) -> float | None:
    """Return the seconds since a file's last change by the guest's clock, or None if it is missing."""
    try:
        return time.time() - os.lstat(path).st_mtime
    except OSError:
        return None


def booted_at(run: str) -> float:
    """Return when this boot began by the guest's clock: from the kernel, and no file in `/run` is older."""
    moments = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        moments.append(time.time() - float((read_file("/proc/uptime") or "").split()[0]))
    with contextlib.suppress(OSError):
        beside = os.path.dirname(os.path.abspath(run))
        moments.append(min(os.lstat(os.path.join(beside, name)).st_mtime for name in os.listdir(beside)))
    return max(moments) if moments else time.time()


def _is_container(state: dict[str, Any] | None) -> bool:
    """Return whether a run has a container that is not known to have ended."""
    return state is not None and state.get("kind") == "container" and "ended" not in state


class Runs:
    """The runs that this machine knows."""

    def __init__(self, home: str, booted: float) -> None:
        self._folder = os.path.join(home, ".gpuinfra", "runs")
        self._booted = booted
        self._docker = Program(["docker", "ps", "--no-trunc", "--filter", "name=gpuinfra-", "--format", "{{.Names}}"])

    def look(self) -> tuple[Run, ...]:
        """Return all runs."""
        try:
            names = sorted(name for name in os.listdir(self._folder) if not name.startswith("."))
        except OSError:
            return ()
        states = {name: self._state(name) for name in names if os.path.isdir(self.path(name))}
        # Query the engine only if there may be a container: for a run that is not known to be over.
        containers = self._containers() if any("ended" not in (state or {}) for state in states.values()) else set()
        return tuple(self._run(name, state, containers) for name, state in states.items())

    def path(self, *parts: str) -> str:
        """Return the path of a run's folder, or of a file in it."""
        return os.path.join(self._folder, *parts)

    def _state(self, run: str) -> dict[str, Any] | None:
        return read_object(self.path(run, "state.json"))

    def _containers(self) -> set[str] | None:
        """Return the running containers, or None if the engine does not answer."""
        output = self._docker.ask()
        return None if output is None else set(output.split())

    def _run(self, name: str, state: dict[str, Any] | None, containers: set[str] | None) -> Run:
        attended = read_object(self.path(name, "attended.json")) or {}
        heartbeat = age_of(self.path(name, "attended.json"))
        began = _positive((state or {}).get("started"))
        newest = began if began is not None else time.time() - (heartbeat or 0.0)
        of_this_boot = newest >= self._booted
        container = f"gpuinfra-{name}" in containers if containers is not None else _is_container(state)
        # If the engine does not answer, containers of this boot may still run.
        alive = (container and (containers is not None or of_this_boot)) or self._is_watched(name, state)
        after_run = attended.get("afterRun")
        return Run(
            id=name,
            alive=alive,
            container=container,
            after_run=after_run if isinstance(after_run, str) else None,
            heartbeat_age=heartbeat,
            detached=attended.get("detached") is True,
            ended_age=None if alive or state is None else self._ended_age(name, state),
            of_this_boot=of_this_boot,
        )

    def _is_watched(self, run: str, state: dict[str, Any] | None) -> bool:
        """Return whether a process watches the job: it holds a lock until the job's end is recorded."""
        if state is None or "ended" in state:
            return False
        try:
            file = os.open(self.path(run, "alive"), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(file)
        return False

    def _ended_age(self, run: str, state: Mapping[str, Any]) -> float:
        ended = _positive(state.get("ended")) or _positive(state.get("started"))
        if ended is None:
            return age_of(self.path(run, "state.json")) or 0.0
        return time.time() - ended

    def end(self, run: Run, how: str, detail: str, grace: float) -> None:
        """Ask a job to end, and record why. A failure to record does not prevent the request."""
        with contextlib.suppress(OSError):
            write_whole(self.path(run.id, "ending.json"), {"how": how, "detail": detail})
        if run.container:
            null = subprocess.DEVNULL
            words = ["docker", "stop", "-t", str(max(1, int(grace))), f"gpuinfra-{run.id}"]
            with contextlib.suppress(OSError):
                subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)  # noqa: S603
            return
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            control = os.open(self.path(run.id, "control"), flags)
            try:
                if stat.S_ISFIFO(os.fstat(control).st_mode):
                    os.write(control, f"{grace:g}\n".encode())
            finally:
                os.close(control)


# The agent


@dataclass
class Ending:
    """The teardown in progress: first jobs are asked to end, then Azure to deallocate."""

    cause: str
    detail: str
    began: float
    """By the guest's monotonic clock."""
    asked: list[str] = dataclasses.field(default_factory=list)
    stopped: bool = False
    """Whether jobs have ended, or had the time to."""
    error: str | None = None
    failures: int = 0
    next_try: float = 0.0
    accepted: float | None = None
    acknowledged: str | None = None


class Agent:
    """The agent, which looks, decides and acts in every tick."""

    def __init__(self, config: str, run: str, home: str, environment: Mapping[str, str]) -> None:
        self._folder = run
        self._terms, own_home = read_config(read_file(config) or "")
        self.clock = Clock()
        self._azure = Azure(self.clock, environment)
        self._runs = Runs(home or own_home or os.path.expanduser("~"), booted_at(run))
        self._sessions = Program(["ss", "-Htn", "state", "established", "( sport = :22 )"])
        self._gpus = Program(["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"])
        self._wall: subprocess.Popen[bytes] | None = None
        self._machine: dict[str, Any] = {}
        self._notice: dict[str, Any] | None = None
        self._power_on: float | None = None
        self._memory = Memory()
        self._ending: Ending | None = None
        self._error: str | None = None
        self._said: dict[str, str] = {}
        self._looked_at = NEVER
        self._found: tuple[tuple[Run, ...], int, int | None] = ((), 0, None)

    def work(self) -> None:
        """Run until the process is stopped."""
        self.meet()
        while True:
            try:
                pause = self.tick()
            except Exception as error:
                # After any error the next tick must come: without the agent, the machine stays billed.
                self.say("tick", f"a tick failed: {type(error).__name__}: {error}")
                pause = LONGEST_PAUSE
            time.sleep(pause)

    def meet(self) -> None:
        """Wait briefly for Azure's time: the network may come up later."""
        ends = time.monotonic() + MEETING_SECONDS
        self._ask_azure()
        while not self.clock.is_set and time.monotonic() < ends:
            time.sleep(LONGEST_PAUSE)
            self._ask_azure()

    def tick(self) -> float:
        """Look, decide, act once, and return the pause before the next tick."""
        self._ask_azure()
        facts = self._facts()
        decision = decide(facts, self._memory)
        if decision.cause and self._ending is None:
            # The last look was a while ago: look again, so that a new login or job is not missed.
            self._looked_at = NEVER
            facts = self._facts()
            decision = decide(facts, self._memory)
        self._memory = decision.memory
        for cause, moment in decision.warnings:
            self._warn(cause, moment, facts.now)
        action = self._act(facts, decision)
        self._write_down(facts, decision, action)
        return SHORTEST_PAUSE if action == STOPPING else pause_for(self.clock.rate())

    # Look

    def _ask_azure(self) -> None:
        """Read metadata and events from Azure. Without an answer, the last ones stay valid."""
        try:
            self._machine = self._azure.compute()
            if str(self._machine.get("priority")).lower() == "spot":
                self._notice = read_notice(self._azure.events(), str(self._machine.get("name")))
            self._fail(None)
        except AzureError as error:
            self._fail(str(error))

    def _tags(self) -> dict[str, str]:
        found = self._machine.get("tagsList")
        entries = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
        return {str(each.get("name")).lower(): str(each.get("value")) for each in entries}

    def _facts(self) -> Facts:
        now, tags = self.clock.now(), self._tags()
        power_on = self._power_on_at(now)
        runs, sessions, gpu = self._signs(now)
        return Facts(
            now=now,
            power_on=power_on,
            terms=read_terms(tags.get("gpuinfra:terms", ""), self._terms),
            lease_until=read_moment(tags.get("gpuinfra:lease-until")),
            on_since=read_moment(tags.get("gpuinfra:on-since")),
            runs=runs,
            sessions=sessions,
            gpu=gpu,
            notice=str(self._notice["EventId"]) if self._notice else None,
            rate=self.clock.rate(),
        )

    def _power_on_at(self, now: float) -> float:
        """Return when an agent first ran in this boot. A file in `/run` keeps that for a restarted agent."""
        if self._power_on is None:
            file = os.path.join(self._folder, "power-on.json")
            known = read_moment((read_object(file) or {}).get("powerOn"))
            self._power_on = now if known is None else min(known, now)
            self._memory = self._remembered(now)
            if known is None:
                self._write(file, {"powerOn": stamp(self._power_on)})
        return self._power_on

    def _remembered(self, now: float) -> Memory:
        """Return what the last agent of this boot knew, unless that is too old."""
        found = read_object(os.path.join(self._folder, "agent.json")) or {}
        at = read_moment(found.get("at"))
        if at is None or not 0 <= now - at <= LONGEST_BLINDNESS * self.clock.rate():
            return Memory()
        return Memory(read_moment(found.get("idleSince")))

    def _signs(self, now: float) -> tuple[tuple[Run, ...], int, int | None]:
        """Return activity of jobs, users and GPUs. What cannot be queried counts as none, so that waste ends."""
        at, moment = self._looked_at
        is_stopping = self._ending is not None and not self._ending.stopped
        if is_stopping:
            # Only jobs matter now, and they are checked in every tick.
            self._found = (self._runs.look(), *self._found[1:])
        elif abs(now - moment) >= TICK - LONGEST_PAUSE / 2 and time.monotonic() - at >= SHORTEST_LOOK:
            sessions = self._sessions.ask()
            count = len((sessions or "").splitlines())
            self._found = (self._runs.look(), count, read_utilization(self._gpus.ask() or ""))
            self._looked_at = (time.monotonic(), now)
            self.say("ss", "" if sessions is not None else "`ss` cannot be asked: logins are not seen")
        return self._found

    # Act

    def _act(self, facts: Facts, decision: Decision) -> str:
        ending = self._ending
        if ending and ending.accepted is not None:
            if 0 <= facts.now - ending.accepted < ACCEPTED_SECONDS:
                return DEALLOCATING
            self.say("end", "Azure accepted it, but this machine is still on: asking again")
            ending.accepted = None
        if decision.cause is None:
            if ending:
                self.say("end", f"called off: on until {stamp(decision.until)}")
            self._ending = None
            return WARNING if decision.is_warning else WATCHING
        if ending is None:
            ending = self._ending = Ending(decision.cause, decision.detail, time.monotonic())
        ending.cause, ending.detail = decision.cause, decision.detail
        self.say("end", f"{ending.cause}: {ending.detail}")
        if self._is_stopping_jobs(ending, facts):
            return STOPPING
        if ending.cause == EVICTED:
            self._acknowledge(ending, facts)
        # Azure evicts it within a minute. If it stays on after its jobs have ended, do not wait forever.
        if ending.cause != EVICTED or time.monotonic() - ending.began >= ACCEPTED_SECONDS:
            self._deallocate(ending)
        return DEALLOCATING

    def _is_stopping_jobs(self, ending: Ending, facts: Facts) -> bool:
        """Ask every job to end, including new ones, and return whether to wait for one."""
        grace, limit = GRACE_SECONDS, STOP_SECONDS
        if ending.cause == EVICTED:
            grace, limit = EVICTION_GRACE_SECONDS, EVICTION_STOP_SECONDS
        # Azure's time is what is billed.
        scale = self.clock.rate()
        grace, limit = max(grace / scale, SHORTEST_GRACE), max(limit / scale, 2 * SHORTEST_GRACE)
        alive = [run for run in facts.runs if run.alive]
        for run in alive:
            if run.id not in ending.asked:
                ending.asked.append(run.id)
                self.say(f"job {run.id}", f"run {run.id} is asked to end within {grace:.0f} s")
                self._runs.end(run, ending.cause, ending.detail, grace)
        ending.stopped = ending.stopped or not alive or time.monotonic() - ending.began >= limit
        return not ending.stopped

    def _acknowledge(self, ending: Ending, facts: Facts) -> None:
        if facts.notice is None or ending.acknowledged == facts.notice:
            return
        try:
            self._azure.acknowledge(facts.notice)
        except AzureError as error:
            ending.error = str(error)
            self.say("azure", f"the eviction is not acknowledged: {error}")
            return
        ending.acknowledged, ending.error = facts.notice, None
        self.say("azure", "the eviction may go on")

    def _deallocate(self, ending: Ending) -> None:
        now = self.clock.now()
        # A clock that was set back must not extend the wait.
        if ending.next_try - LONGEST_BACK_OFF <= now < ending.next_try:
            return
        try:
            cloud = str(self._machine.get("azEnvironment") or "")
            self._azure.deallocate(str(self._machine.get("resourceId") or ""), cloud)
        except AzureError as error:
            ending.failures += 1
            wait = back_off(ending.failures)
            ending.next_try = now + wait
            ending.error = str(error)
            self.say("azure", f"not switched off, try {ending.failures}; the next in {wait:.0f} s: {error}")
            return
        ending.accepted, ending.failures, ending.next_try, ending.error = self.clock.now(), 0, 0.0, None
        self.say("azure", "Azure has accepted to deallocate this machine")

    def _warn(self, cause: str, moment: float, now: float) -> None:
        minutes = max(1, round((moment - now) / 60))
        text = f"gpuinfra: this machine is switched off at {stamp(moment)}, in about {minutes} min: {cause}."
        if cause == LEASE_OVER:
            text += " To have it longer: gpuinfra lease NAME --extend 2h"
        self.say("wall", text)
        if self._wall is not None and self._wall.poll() is None:
            return  # the last message is stuck at a terminal
        null = subprocess.DEVNULL
        with contextlib.suppress(OSError):
            self._wall = subprocess.Popen(["wall", text], stdin=null, stdout=null, stderr=null)  # noqa: S603, S607

    # Report

    def _write_down(self, facts: Facts, decision: Decision, action: str) -> None:
        """Write the state for users, `gpuinfra status`, and the next agent of this boot."""
        idle_since = decision.memory.idle_since
        state = {
            "schemaVersion": 1,
            "at": stamp(facts.now),
            "powerOn": stamp(facts.power_on),
            "until": stamp(decision.until),
            "cause": (self._ending.cause if self._ending else decision.cause) or decision.limit,
            "idleSince": None if idle_since is None else stamp(idle_since),
            "idleUntil": None if decision.idle_until is None else stamp(decision.idle_until),
            "endsWith": list(decision.ends_with),
            "finishedUntil": None if decision.finished_until is None else stamp(decision.finished_until),
            "jobs": [run.id for run in facts.runs if run.alive],
            "sessions": facts.sessions,
            "gpuUtilization": facts.gpu,
            "action": action,
            "lastError": (self._ending.error if self._ending else None) or self._error,
            "evictionNotice": facts.notice is not None,
        }
        self._write(os.path.join(self._folder, "agent.json"), state)

    def _write(self, file: str, value: Any) -> None:
        """Write a file. A failure is only reported, because the machine must still go off."""
        try:
            os.makedirs(self._folder, mode=0o755, exist_ok=True)
            write_whole(file, value)
            self.say("state", "")
        except OSError as error:
            self.say("state", f"the state cannot be written: {error}")

    def _fail(self, error: str | None) -> None:
        self._error = error
        self.say("error", error or "")

    def say(self, about: str, text: str) -> None:
        """Print a line to the journal, unless it repeats the last one on this subject."""
        if self._said.get(about, "") == text:
            return
        self._said[about] = text
        if text:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service."""
    parser = argparse.ArgumentParser(description="Switches this machine off when nothing needs it.")
    parser.add_argument("--config", default="/etc/gpuinfra/agent.json")
    parser.add_argument("--run", default="/run/gpuinfra")
    parser.add_argument("--home", default="")
    chosen = parser.parse_args(arguments)
    Agent(chosen.config, chosen.run, chosen.home, os.environ).work()
    return 0


if __name__ == "__main__":
    sys.exit(main())
