"""Kill commands (SIGKILL) at every request to Azure: the next command continues, and leaves nothing behind.

"Before" a request, the command is killed while that request and all later ones are held, so Azure has carried out
exactly those before it. "After" a write, it is killed when the write is done and its answer is not delivered.

By default, a command is killed before its first request, and before or after the last write of some kinds (method and
resource type); `down` before and after. `--exhaustive` kills it before every request and after every write.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.conftest import Covered
from tests.integration.provision.harness import Harness, cases, resource_type, resources_of

NAME, MOVED = "killed", "moved"
SPEC, MOVED_SPEC = f"{NAME}.yaml", f"{MOVED}.yaml"
REGION, OTHER_REGION = "southcentralus", "eastus"
BEFORE, AFTER = ("hold-before",), ("hold-after",)
MACHINE = "virtualmachines"


@dataclass(frozen=True)
class Boundary:
    """A point where a command is killed: before or after a request of any or one kind, of which `skip` come first."""

    hold: str
    skip: int
    method: str = ""
    type: str = ""
    may_be_missed: bool = False
    """Whether another run may not get there: after its last write, a command reads as often as it has to wait."""

    def __str__(self) -> str:
        kind = f"{self.method} {self.type}".strip() or "request"
        return f"{self.hold.removeprefix('hold-')} {kind} {self.skip + 1}"

    def arm(self, harness: Harness) -> None:
        narrowed = {"method": self.method, "type": self.type} if self.method else {}
        harness.arm(self.hold, skip=self.skip, count=0 if self.hold == "hold-before" else 1, **narrowed)


def is_write(request: dict[str, Any]) -> bool:
    return request["method"] not in {"GET", "HEAD"}


def every_boundary(requests: list[dict[str, Any]]) -> list[Boundary]:
    """Return all boundaries of a command that has sent these requests."""
    last_write = max(number for number, each in enumerate(requests) if is_write(each))
    before = [Boundary("hold-before", number, may_be_missed=number > last_write) for number in range(len(requests))]
    written = Counter((each["method"], resource_type(each)) for each in requests if is_write(each))
    return [*before, *(Boundary("hold-after", skip, *kind) for kind, count in written.items() for skip in range(count))]


def one_boundary_of_each_kind(
    requests: list[dict[str, Any]], holds: tuple[str, ...], kinds: tuple[str, ...]
) -> list[Boundary]:
    """Return the first boundary, and those at the last write of each kind, or of these."""
    written = Counter((each["method"], resource_type(each)) for each in requests if is_write(each))
    if kinds:
        written = Counter({kind: count for kind, count in written.items() if set(kind) & set(kinds)})
    return [
        Boundary("hold-before", 0),
        *(Boundary(hold, count - 1, *kind) for kind, count in written.items() for hold in holds),
    ]


@dataclass(frozen=True)
class KillCase:
    """A command to kill: what exists before, which faults Azure has meanwhile, and what to verify afterwards."""

    words: tuple[str, ...]
    before: Callable[[Harness], object]
    verify: tuple[Callable[[Harness], object], ...]
    """The first by default, all with `--exhaustive`."""
    parts: tuple[int, int]
    """Into how many tests its boundaries are divided, by default and with `--exhaustive`."""
    holds: tuple[str, ...] = AFTER
    """Where it is killed by default."""
    kinds: tuple[str, ...] = ()
    """By default only at requests for these types, or with these methods: other cases cover the rest."""
    faults: Callable[[Harness], object] = lambda harness: None

    def requests(self, harness: Harness) -> list[dict[str, Any]]:
        """Run the command to its end, and return the requests that it sends."""
        self.before(harness)
        last = harness.last_request()
        self.faults(harness)
        harness.succeed(*self.words)
        return harness.requests(last)

    def kill(self, harness: Harness, boundary: Boundary) -> None:
        """Run the command up to the boundary."""
        self.before(harness)
        last = harness.last_request()
        boundary.arm(harness)
        self.faults(harness)  # after the hold, so that the hold counts every request
        command = harness.start(*self.words)
        if not harness.wait_until_held(command):
            result = command.end()
            harness.clear()
            assert boundary.may_be_missed, f"it ended before the boundary: {result.text}"
            assert result.code == 0, result.text
            return
        killed = command.kill()
        harness.clear()
        assert killed.code == -9, killed.text
        answered = sum(each["status"] != 0 for each in harness.requests(last))
        assert boundary.method or answered == boundary.skip, f"{answered} requests were answered"


# What exists before


def nothing(harness: Harness) -> None:
    harness.empty()


def running(harness: Harness) -> None:
    if harness.machines() != [(NAME, REGION, "running")]:
        harness.empty()
        harness.succeed("up", SPEC)


def deallocated(harness: Harness) -> None:
    running(harness)
    harness.succeed("down", SPEC)
    # Its lease ends at another minute than before, so `up` always sets its schedule.
    harness.advance(120)


def first_region_is_full(harness: Harness) -> None:
    """Let the first region refuse the VM once: the next `up` may find room there, or where the last one went."""
    harness.arm("SkuNotAvailable", method="PUT", type="virtualMachines", region=REGION)


# What to verify afterwards


def up_converges(harness: Harness, spec: str = SPEC, regions: tuple[str, ...] = (REGION,)) -> None:
    """Run `up`: there is one running machine with its resources and no others, and the plan is empty."""
    name = spec.removesuffix(".yaml")
    harness.succeed("up", spec)
    ((found, region, power),) = harness.machines()
    assert (found, power) == (name, "running")
    assert region in regions
    assert harness.resources() == resources_of(name)
    assert harness.billed() == [name]
    planned = harness.run("plan", "--detailed-exitcode", spec)
    assert planned.code == 0, f"the plan is not empty: {planned.text}"


def delete_leaves_nothing(harness: Harness, spec: str = SPEC) -> None:
    harness.succeed("down", "--delete", spec)
    assert harness.resources() == set()
    assert harness.billed() == []


def down_deallocates(harness: Harness) -> None:
    harness.succeed("down", SPEC)
    assert harness.machines() == [(NAME, REGION, "deallocated")]
    assert harness.resources() == resources_of(NAME)
    assert harness.billed() == []


def failover_converges(harness: Harness) -> None:
    up_converges(harness, MOVED_SPEC, (REGION, OTHER_REGION))


STORIES = {
    "up": KillCase(
        ("up", SPEC),
        nothing,
        (up_converges, delete_leaves_nothing),
        (2, 16),
        kinds=("resourcegroups", "networkinterfaces", MACHINE, "roleassignments", "schedules"),
    ),
    "up, then delete": KillCase(
        ("up", SPEC), nothing, (delete_leaves_nothing,), (1, 8), kinds=("networkinterfaces", MACHINE)
    ),
    "delete": KillCase(
        ("down", "--delete", SPEC),
        running,
        (delete_leaves_nothing,),
        (1, 12),
        BEFORE,
        kinds=("networksecuritygroups", MACHINE, "resourcegroups"),
    ),
    "delete, then up": KillCase(
        ("down", "--delete", SPEC),
        running,
        (up_converges, delete_leaves_nothing),
        (1, 16),
        kinds=(MACHINE,),
    ),
    "down": KillCase(("down", SPEC), running, (down_deallocates,), (1, 4), BEFORE + AFTER, kinds=("POST",)),
    "up of a deallocated machine": KillCase(
        ("up", SPEC), deallocated, (up_converges,), (1, 8), kinds=("POST", "PATCH", "schedules")
    ),
    "failover": KillCase(
        ("up", MOVED_SPEC),
        nothing,
        (failover_converges, lambda harness: delete_leaves_nothing(harness, MOVED_SPEC)),
        (1, 24),
        kinds=(MACHINE, "resourcegroups"),
        faults=first_region_is_full,
    ),
}
PARTS = [[(name, part) for name, story in STORIES.items() for part in range(story.parts[mode])] for mode in (0, 1)]
_requests: dict[str, list[dict[str, Any]]] = {}
"""By case: what its command sends. Each pytest worker counts once."""


def write_specs(harness: Harness) -> None:
    harness.spec(NAME, regions=[REGION])
    harness.spec(MOVED, regions=[REGION, OTHER_REGION])


@cases("name, part", *PARTS, report=False)
def test_next_command_converges_after_kill(
    harness: Harness, name: str, part: int, exhaustive: bool, covered: Covered
) -> None:
    story = STORIES[name]
    write_specs(harness)
    if name not in _requests:
        _requests[name] = story.requests(harness)
    every = every_boundary(_requests[name])
    chosen = every if exhaustive else one_boundary_of_each_kind(_requests[name], story.holds, story.kinds)
    failures = []
    own = chosen[part :: story.parts[exhaustive]]
    for boundary in own:
        try:
            story.kill(harness, boundary)
            for verify in story.verify if exhaustive else story.verify[:1]:
                verify(harness)
        except AssertionError as error:
            failures.append(f"{boundary}: {error}")
            harness.empty()
    covered(f"test_kill: {name}, boundaries", len(own), len(every))
    assert not failures, "\n\n".join(failures)


# While an operation of the killed command continues in Azure

LONG_SECONDS = 600.0
OPERATIONS = [
    ("PUT", "networkSecurityGroups"),
    ("PUT", "virtualNetworks"),
    ("PUT", "publicIPAddresses"),
    ("PUT", "virtualMachines"),
    ("DELETE", "virtualMachines"),
    ("DELETE", "virtualNetworks"),
    ("DELETE", "resourceGroups"),
    ("POST", "virtualMachines"),
]
WORDS = {"PUT": ("up",), "DELETE": ("down", "--delete"), "POST": ("down",)}
FOLLOWED = [(*operation, then) for operation in OPERATIONS for then in ("up", "down --delete")]
# One of each kind: create, delete and switch off; the network, the machine and the group.
SOME_FOLLOWED = [
    ("PUT", "virtualNetworks", "up"),
    ("PUT", "virtualMachines", "down --delete"),
    ("DELETE", "virtualMachines", "up"),
    ("DELETE", "resourceGroups", "up"),
    ("POST", "virtualMachines", "down --delete"),
]


@cases("method, kind, then", SOME_FOLLOWED, FOLLOWED)
def test_next_command_waits_for_the_operation_of_a_killed_one(
    harness: Harness, method: str, kind: str, then: str
) -> None:
    write_specs(harness)
    (nothing if method == "PUT" else running)(harness)
    harness.arm("hold-after", type=kind, method=method)
    harness.arm("slow", operation=True, type=kind, method=method, seconds=LONG_SECONDS)
    command = harness.start(*WORDS[method], SPEC)
    assert harness.wait_until_held(command), command.end().text
    command.kill()
    harness.clear()
    assert harness.is_operation_in_progress()
    last = harness.last_request()

    def has_seen_it() -> bool:
        return any(resource_type(each) == kind.lower() for each in harness.requests(last))

    following = harness.start(*then.split(), SPEC)
    assert following.wait_for(has_seen_it, f"a request for {kind}"), following.end().text
    assert harness.is_operation_in_progress()
    harness.advance(LONG_SECONDS)
    result = following.end()
    assert result.code == 0, result.text
    (up_converges if then == "up" else delete_leaves_nothing)(harness)
