"""Requests that are held: how long, what they hold up, what was done; and faults that let the first ones through."""

import http.client
import json
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.sandbox.web import control
from tests.integration.sandbox.servers import WAIT_SECONDS, Sandbox, wait_until

VERSION = "api-version=2024-11-01"
EASTUS = {"location": "eastus"}
DISK = {"location": "eastus", "properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": 32}}


class Held:
    """A request on a connection of its own, in a thread of its own."""

    def __init__(self, server: Sandbox, method: str, path: str, body: Any = None) -> None:
        self.server, self.status, self.error = server, 0, ""
        trusted = ssl.create_default_context(cafile=str(server.server.authority_file))
        self._connection = http.client.HTTPSConnection(
            "localhost", server.server.port, timeout=WAIT_SECONDS, context=trusted
        )
        self._connection.connect()
        headers = {"Authorization": f"Bearer {server.token()}", "Content-Type": "application/json"}
        self._connection.request(method, f"{path}?{VERSION}", json.dumps(body), headers)
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self.status = self._connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            self.error = type(error).__name__
        finally:
            self._connection.close()

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def leave(self) -> None:
        """What the end of a process does to its connections."""
        self._connection.sock.shutdown(2)

    def end(self, seconds: float = WAIT_SECONDS) -> None:
        self._thread.join(seconds)
        assert not self.is_waiting, "nothing has come back"


def group(server: Sandbox, name: str) -> str:
    return f"/subscriptions/{server.subscription}/resourceGroups/{name}"


def arm(server: Sandbox, name: str, **fields: Any) -> None:
    server.control("POST", "faults", {"name": name, **fields})


def faults(server: Sandbox) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.control("GET", "faults")["faults"]
    return found


def is_held(server: Sandbox) -> bool:
    return any(fault.get("held") for fault in faults(server))


def wait_until_held(server: Sandbox) -> None:
    wait_until(lambda: is_held(server))


def exists(server: Sandbox, name: str) -> bool:
    return server.http("HEAD", f"{group(server, name)}?{VERSION}")[0] == 204


def logged(server: Sandbox, name: str) -> list[tuple[str, int]]:
    found = server.control("GET", "log")["requests"]
    return [(each["method"], each["status"]) for each in found if each["path"].endswith(f"/{name}")]


@pytest.mark.parametrize(("name", "is_done"), [("hold-before", False), ("hold-after", True)])
def test_request_is_held_until_the_fault_is_cleared(server: Sandbox, name: str, is_done: bool) -> None:
    arm(server, name, method="PUT")
    held = Held(server, "PUT", group(server, "held"), EASTUS)
    wait_until_held(server)
    (fault,) = faults(server)
    assert (fault["name"], fault["method"], fault["held"]) == (name, "PUT", True)
    assert server.control("GET", "status")["faults"] == 1
    assert exists(server, "held") == is_done
    # It was the only time: what fits as well goes through while the first one waits.
    assert server.http("PUT", f"{group(server, 'other')}?{VERSION}", EASTUS)[0] == 201
    assert held.is_waiting
    assert server.control("DELETE", "faults") == {"faults": []}
    assert faults(server) == []
    held.end()
    assert (held.status, held.error) == (0, "RemoteDisconnected")
    assert exists(server, "held") == is_done
    assert ("PUT", 0) in logged(server, "held")


def test_operation_continues_while_its_answer_is_held(server: Sandbox) -> None:
    server.http("PUT", f"{group(server, 'demo')}?{VERSION}", EASTUS)
    arm(server, "hold-after", type="disks")
    disk = f"{group(server, 'demo')}/providers/Microsoft.Compute/disks/d"
    held = Held(server, "PUT", disk, DISK)
    wait_until_held(server)
    (operation,) = server.control("GET", "operations")["operations"]
    assert (operation["action"], operation["status"]) == ("disks/write", "Succeeded")
    server.control("DELETE", "faults")
    held.end()
    assert server.http("GET", f"{disk}?{VERSION}")[2]["properties"]["provisioningState"] == "Succeeded"


def test_error_answer_is_held_as_well(server: Sandbox) -> None:
    arm(server, "hold-after", method="PUT")
    held = Held(server, "PUT", group(server, "nowhere"), {"location": "atlantis"})
    wait_until_held(server)
    server.control("DELETE", "faults")
    held.end()
    assert (held.status, exists(server, "nowhere")) == (0, False)


def test_hold_ends_when_the_client_disconnects(server: Sandbox) -> None:
    arm(server, "hold-before", method="PUT")
    held = Held(server, "PUT", group(server, "held"), EASTUS)
    wait_until_held(server)
    held.leave()
    wait_until(lambda: faults(server) == [])
    held.end()
    wait_until(lambda: logged(server, "held") == [("PUT", 0)])
    assert not exists(server, "held")


def test_hold_has_a_time_limit(server: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert control.HOLD_SECONDS == 60
    monkeypatch.setattr(control, "HOLD_SECONDS", 0.4)
    arm(server, "hold-before", method="PUT")
    started = time.monotonic()
    held = Held(server, "PUT", group(server, "held"), EASTUS)
    held.end()
    assert time.monotonic() - started >= 0.4
    assert (held.status, held.error, faults(server)) == (0, "RemoteDisconnected", [])


def test_one_fault_can_hold_several_requests(server: Sandbox) -> None:
    arm(server, "hold-before", method="PUT", count=2)
    first = Held(server, "PUT", group(server, "first"), EASTUS)
    wait_until_held(server)
    assert [fault["count"] for fault in faults(server)] == [1], "once more, in addition to the held one"
    second = Held(server, "PUT", group(server, "second"), EASTUS)
    wait_until(lambda: server.control("GET", "status")["faults"] == 1 and not server.server.cloud.faults.all())
    assert server.http("PUT", f"{group(server, 'third')}?{VERSION}", EASTUS)[0] == 201
    server.control("DELETE", "faults")
    for held in (first, second):
        held.end()
        assert held.status == 0


def test_control_and_token_requests_are_not_held(server: Sandbox) -> None:
    arm(server, "hold-before")
    assert server.credential().get_token("https://management.azure.com/.default").token
    server.control("GET", "bill")
    assert len(faults(server)) == 1
    assert not is_held(server)
    held = Held(server, "GET", group(server, "any"))
    wait_until_held(server)
    assert server.credential().get_token("https://management.azure.com/.default").token
    server.control("DELETE", "faults")
    held.end()


def test_release_leaves_other_faults_armed(server: Sandbox) -> None:
    arm(server, "hold-before", method="PUT")
    arm(server, "Conflict", method="PUT")
    held = Held(server, "PUT", group(server, "held"), EASTUS)
    wait_until_held(server)
    left = server.control("POST", "release", {})["faults"]
    assert [fault["name"] for fault in left] == ["Conflict"]
    held.end()
    assert held.error == "RemoteDisconnected"
    assert server.http("PUT", f"{group(server, 'held')}?{VERSION}", EASTUS)[0] == 409


def test_reset_releases_held_requests(server: Sandbox) -> None:
    arm(server, "hold-before")
    held = Held(server, "GET", group(server, "any"))
    wait_until_held(server)
    server.control("POST", "reset", {})
    held.end()
    assert faults(server) == []


def test_server_stops_while_it_holds_a_request(tmp_path: Path) -> None:
    own = Sandbox(tmp_path / "sandbox")
    arm(own, "hold-before")
    held = Held(own, "GET", group(own, "any"))
    wait_until_held(own)
    own.stop()
    held.end()
    assert held.status == 0


@pytest.mark.parametrize("name", ["drop-before", "drop-after", "slow", "hold-before", "hold-after"])
def test_internal_requests_are_not_held_or_dropped(server: Sandbox, name: str) -> None:
    server.resource.resource_groups.create_or_update("demo", {"location": "eastus"})
    server.http("PUT", f"{group(server, 'demo')}/providers/Microsoft.Compute/disks/d?{VERSION}", DISK)
    arm(server, name, method="DELETE", type="disks")
    server.resource.resource_groups.begin_delete("demo").result()
    assert not exists(server, "demo")
    assert [fault["name"] for fault in faults(server)] == [name]


# Letting the first ones through


@pytest.mark.parametrize(("name", "status"), [("Conflict", 409), ("drop-after", 0), ("drop-before", 0)])
def test_skip_lets_the_first_requests_pass(server: Sandbox, name: str, status: int) -> None:
    arm(server, name, method="PUT", skip=2)
    seen = []
    for number in range(4):
        sent = Held(server, "PUT", group(server, f"number{number}"), EASTUS)
        sent.end()
        seen.append((sent.status, [fault["skip"] for fault in faults(server)]))
        exists(server, "any")  # does not fit, and is not counted
    assert seen == [(201, [1]), (201, [0]), (status, []), (201, [])]


def test_skip_can_hold_the_third_request(server: Sandbox) -> None:
    arm(server, "hold-before", method="PUT", skip=2)
    for name in ("one", "two"):
        assert server.http("PUT", f"{group(server, name)}?{VERSION}", EASTUS)[0] == 201
        assert not is_held(server)
    held = Held(server, "PUT", group(server, "three"), EASTUS)
    wait_until_held(server)
    server.control("DELETE", "faults")
    held.end()
    assert [exists(server, name) for name in ("one", "two", "three")] == [True, True, False]


def test_skip_can_fail_the_second_operation(server: Sandbox) -> None:
    server.http("PUT", f"{group(server, 'demo')}?{VERSION}", EASTUS)
    arm(server, "AllocationFailed", skip=1)
    for name in ("first", "second", "third"):
        server.http("PUT", f"{group(server, 'demo')}/providers/Microsoft.Compute/disks/{name}?{VERSION}", DISK)
    operations = server.control("GET", "operations")["operations"]
    assert [each["status"] for each in operations] == ["Succeeded", "Failed", "Succeeded"]


def test_skipped_request_can_match_another_fault(server: Sandbox) -> None:
    arm(server, "Conflict", skip=1)
    arm(server, "ScopeLocked")
    codes = [server.http("GET", f"{group(server, 'any')}?{VERSION}")[2]["error"]["code"] for _ in range(3)]
    assert codes == ["ScopeLocked", "Conflict", "ResourceGroupNotFound"]
