"""Management locks at each scope, what each level forbids, and Azure's own error."""

from typing import Any

import pytest

from tests.integration.sandbox.machine_help import Place
from tests.integration.sandbox.services.test_identity import CONTRIBUTOR, Roles

LOCKS = "/providers/Microsoft.Authorization/locks"
VERSION = "?api-version=2016-09-01"


class Locks:
    """Locks, and the status of requests to a machine `m` below them."""

    def __init__(self, place: Place) -> None:
        self.place, self.http = place, place.sandbox.http
        self.subscription = f"/subscriptions/{place.sandbox.subscription}"
        self.group = f"{self.subscription}/resourceGroups/{place.group}"
        self.machine = place.id("m")

    def put(self, scope: str, level: str, name: str = "keep", **more: str) -> tuple[int, Any]:
        body = {"properties": {"level": level, **more}}
        status, _, answer = self.http("PUT", f"{scope}{LOCKS}/{name}{VERSION}", body)
        return status, answer

    def delete(self, scope: str, name: str = "keep") -> int:
        return int(self.http("DELETE", f"{scope}{LOCKS}/{name}{VERSION}")[0])

    def names(self, scope: str, *, at_scope: bool = False) -> list[str]:
        narrowed = "&$filter=atScope()" if at_scope else ""
        status, _, answer = self.http("GET", f"{scope}{LOCKS}{VERSION}{narrowed}")
        assert status == 200, answer
        return sorted(each["name"] for each in answer["value"])

    def refused(self) -> set[str]:
        """Return which changes of the machine are refused because of a lock; no request changes anything."""
        requests: dict[str, tuple[str, str, Any]] = {
            "tag": ("PATCH", self.place.path("m"), {"tags": {"owner": "me"}}),
            "start": ("POST", self.place.path("m", "/start"), None),
        }
        answers = {name: self.http(*request) for name, request in requests.items()}
        locked = {name for name, (status, _, _) in answers.items() if status == 409}
        assert {answers[name][2]["error"]["code"] for name in locked} <= {"ScopeLocked"}
        return locked


@pytest.fixture
def locks(place: Place) -> Locks:
    place.make()
    return Locks(place)


def test_lock_is_created_changed_shown_and_deleted(locks: Locks) -> None:
    status, made = locks.put(locks.machine, "CanNotDelete", notes="ask ops")
    assert (status, made) == (
        201,
        {
            "properties": {"level": "CanNotDelete", "notes": "ask ops"},
            "id": f"{locks.machine}{LOCKS}/keep",
            "type": "Microsoft.Authorization/locks",
            "name": "keep",
        },
    )
    assert locks.put(locks.machine, "ReadOnly")[0] == 200
    status, _, shown = locks.http("GET", f"{locks.machine}{LOCKS}/KEEP{VERSION}")
    assert (status, shown["properties"]) == (200, {"level": "ReadOnly"})
    # `az lock` sends an empty part where the path would have the parent of a nested resource.
    doubled = locks.machine.replace("Microsoft.Compute/", "Microsoft.Compute//")
    assert locks.http("GET", f"{doubled}{LOCKS}/keep{VERSION}")[0] == 200
    assert [locks.delete(locks.machine), locks.delete(locks.machine)] == [200, 204]
    status, _, answer = locks.http("GET", f"{locks.machine}{LOCKS}/keep{VERSION}")
    assert (status, answer["error"]["code"]) == (404, "LockNotFound")


@pytest.mark.parametrize("scope", ["subscription", "group", "machine"])
def test_lock_applies_at_its_scope_and_below(locks: Locks, scope: str) -> None:
    place = getattr(locks, scope)
    locks.put(place, "CanNotDelete")
    try:
        assert locks.refused() == set()
        status, _, answer = locks.http("DELETE", locks.place.path("m"))
        assert (status, answer["error"]["message"]) == (
            409,
            f"The scope '{locks.machine}' cannot perform delete operation because following scope(s) are locked: "
            f"'{place}'. Please remove the lock and try again.",
        )
        locks.put(place, "ReadOnly")
        assert locks.refused() == {"tag", "start"}
        status, _, answer = locks.http("POST", locks.place.path("m", "/deallocate"))
        assert (status, answer["error"]["message"]) == (
            409,
            f"The scope '{locks.machine}' cannot perform write operation because following scope(s) are locked: "
            f"'{place}'. Please remove the lock and try again.",
        )
        assert locks.place.status("m")[1] == "running"
        # A group cannot be deleted while something in it is locked.
        status, _, answer = locks.http("DELETE", f"{locks.group}?api-version=2021-04-01")
        assert (status, answer["error"]["code"]) == (409, "ScopeLocked")
    finally:
        assert locks.delete(place) == 200
    assert locks.refused() == set()
    assert locks.http("DELETE", locks.place.path("m"))[0] == 202


def test_locks_are_listed_at_above_and_below_a_scope(locks: Locks) -> None:
    for name, scope in (("s", locks.subscription), ("g", locks.group), ("m", locks.machine)):
        assert locks.put(scope, "CanNotDelete", name)[0] == 201
    try:
        assert locks.names(locks.subscription) == locks.names(locks.group) == ["g", "m", "s"]
        assert locks.names(locks.group, at_scope=True) == ["g", "s"]
        assert locks.names(locks.machine, at_scope=True) == ["g", "m", "s"]
        assert locks.names(f"{locks.group}/providers/Microsoft.Network/virtualNetworks/net") == ["g", "s"]
        _, _, answer = locks.http("DELETE", locks.place.path("m"))
        assert f"locked: '{locks.subscription},{locks.group},{locks.machine}'" in answer["error"]["message"]
    finally:
        for scope, name in ((locks.subscription, "s"), (locks.group, "g"), (locks.machine, "m")):
            locks.delete(scope, name)


def test_role_assignments_obey_locks(locks: Locks) -> None:
    roles = Roles(locks.place.sandbox)
    principal = roles.identity()["properties"]["principalId"]
    _, assignment = roles.assign(principal, CONTRIBUTOR, locks.machine)
    locks.put(locks.machine, "CanNotDelete")
    status, _, answer = locks.http("DELETE", f"{assignment['id']}?api-version=2022-04-01")
    assert (status, answer["error"]["code"]) == (409, "ScopeLocked")
    # Contributors may not change locks.
    status, _ = roles.call(principal, "DELETE", f"{locks.machine}{LOCKS}/keep{VERSION}")
    assert status == 403


def test_locked_disk_and_nic_stay_when_their_vm_is_deleted(place: Place) -> None:
    place.put("m", place.body_like_ours("m"))
    locks = Locks(place)
    disk = f"{locks.group}/providers/Microsoft.Compute/disks/m-disk"
    nic = f"{locks.group}/providers/Microsoft.Network/networkInterfaces/m-nic"
    for scope in (disk, nic):
        locks.put(scope, "CanNotDelete")
    assert locks.http("DELETE", place.path("m"))[0] == 202
    assert place.left() >= {"disks/m-disk", "networkInterfaces/m-nic"}
    for scope in (disk, nic):
        locks.delete(scope)


@pytest.mark.parametrize(
    "body",
    [{}, {"properties": {"level": "NotSpecified"}}, {"properties": {"level": "ReadOnly", "notes": "x" * 513}}],
)
def test_invalid_lock_is_refused(locks: Locks, body: Any) -> None:
    status, _, answer = locks.http("PUT", f"{locks.machine}{LOCKS}/keep{VERSION}", body)
    assert (status, answer["error"]["code"]) == (400, "InvalidRequestContent")
    status, _, answer = locks.http("PUT", f"{locks.place.id('absent')}{LOCKS}/keep{VERSION}", body)
    assert (status, answer["error"]["code"]) == (404, "ResourceNotFound")
