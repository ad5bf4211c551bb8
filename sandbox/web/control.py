"""The control endpoints below /_sandbox/: clock, faults, bill, log. They need the secret in a file with mode 0600."""

import asyncio
import contextlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.faults import EVICT, validate_fault
from gpuinfra.sandbox.kernel.internal_calls import call_inside
from gpuinfra.sandbox.kernel.latency import PROFILES
from gpuinfra.sandbox.running.client import HEADER
from gpuinfra.sandbox.services.compute.quota import QUOTA_LIMITS
from gpuinfra.sandbox.web.throttle import Throttle

HOLD_SECONDS = 60.0
"""In real seconds; a client that waits longer has given up."""


class HeldRequests:
    """Requests that a fault holds. They end with the server, as their connections do."""

    def __init__(self) -> None:
        self._held: dict[asyncio.Event, dict[str, Any]] = {}

    async def hold(self, request: Request, fault: dict[str, Any]) -> None:
        """Return when the request is released, its client is gone, or HOLD_SECONDS are over."""
        released = asyncio.Event()
        self._held[released] = fault
        reasons = {asyncio.ensure_future(released.wait()), asyncio.ensure_future(_disconnected(request))}
        try:
            await asyncio.wait(reasons, timeout=HOLD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._held.pop(released, None)
            for reason in reasons:
                reason.cancel()

    def release(self) -> None:
        """Release all held requests."""
        for released in self._held:
            released.set()
        self._held.clear()

    def shown(self, armed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the armed faults, and those that hold a request even if that used them up."""
        held, left = {fault["id"]: fault for fault in self._held.values()}, {fault["id"] for fault in armed}
        used_up = [fault for fault in held.values() if fault["id"] not in left]
        return [{**fault, "held": True} if fault["id"] in held else fault for fault in (*used_up, *armed)]


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


MACHINES, DISKS = "Microsoft.Compute/virtualMachines", "Microsoft.Compute/disks"
FASTEST = 100_000
LONGEST_STEP = 3660 * 86_400
"""Ten years, in seconds."""
LAST_MOMENT = 7_258_118_400
"""The year 2200."""
LARGEST_LIMIT = 1_000_000
RESET_SECONDS = 30.0

Payload = Mapping[str, Any]
Action = Callable[[Payload], dict[str, Any]]


class Control:
    """Answers the control endpoints."""

    def __init__(self, cloud: Cloud, secret: str, reset_guests: Callable[[], Awaitable[None]]) -> None:
        """`reset_guests` returns when the guests of all deleted VMs are gone."""
        self.cloud, self.secret, self._reset_guests = cloud, secret, reset_guests
        self.holds = HeldRequests()
        self.throttle = Throttle(cloud)
        self._actions: dict[tuple[str, str], Action] = {
            ("GET", "status"): self._status,
            ("GET", "credentials"): self._credentials,
            ("GET", "bill"): self._bill,
            ("GET", "log"): self._log,
            ("GET", "operations"): self._operations,
            ("GET", "faults"): self._faults,
            ("POST", "faults"): self._add_fault,
            ("DELETE", "faults"): self._clear_faults,
            ("POST", "release"): self._release,
            ("GET", "clock"): self._clock,
            ("POST", "clock"): self._set_clock,
            ("GET", "profile"): self._profile,
            ("POST", "profile"): self._set_profile,
            ("GET", "quota"): self._quota,
            ("POST", "quota"): self._set_quota,
            ("POST", "evict"): self._evict,
            ("POST", "reset"): self._reset,
        }

    async def answer(self, request: Request) -> Response:
        """Answer a request; without the secret it is refused."""
        if not hmac.compare_digest(request.headers.get(HEADER, "").encode(), self.secret.encode()):
            return _refuse(401, "SecretRequired", f"Send the secret in {HEADER}.")
        path = request.url.path.removeprefix("/_sandbox/").strip("/")
        action = self._actions.get((request.method, path))
        if action is None:
            known = ", ".join(f"{method} {name}" for method, name in self._actions)
            return _refuse(404, "NoSuchControl", f"no such control: {request.method} {path}; there are: {known}")
        self.cloud.settle()
        try:
            payload = dict(request.query_params) if request.method == "GET" else _object(await request.body())
            with self.cloud.store.transaction():
                result = action(payload)
        except ValueError as error:
            return _refuse(400, "BadRequest", str(error))
        except ArmError as error:
            return _refuse(error.status, error.code, error.message)
        self.cloud.settle()
        if path == "reset":
            # Nothing of the old guests may reach into what the caller does next.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reset_guests(), RESET_SECONDS)
        return _json(200, result)

    # State

    def _status(self, payload: Payload) -> dict[str, Any]:
        _only(payload)
        cloud = self.cloud
        count = cloud.store.connection.execute
        return {
            **self._clock({}),
            "profile": cloud.latency.profile,
            "resources": count("SELECT count(*) FROM resources").fetchone()[0],
            "machines": count("SELECT count(*) FROM resources WHERE type = ?", (MACHINES.lower(),)).fetchone()[0],
            "requests": count("SELECT count(*) FROM requests").fetchone()[0],
            "faults": len(self._faults({})["faults"]),
        }

    def _credentials(self, payload: Payload) -> dict[str, Any]:
        _only(payload)
        setting = self.cloud.store.setting
        return {
            "tenant": setting("tenant"),
            "subscription": setting("subscription"),
            "clientId": setting("client-id"),
            "clientSecret": setting("client-secret"),
        }

    def _bill(self, payload: Payload) -> dict[str, Any]:
        _only(payload)
        return {"schemaVersion": 1, "machines": self.cloud.meter.machines(self.cloud.now)}

    def _log(self, payload: Payload) -> dict[str, Any]:
        return {"schemaVersion": 1, "requests": self.cloud.store.requests(_after(payload, "a request"))}

    def _operations(self, payload: Payload) -> dict[str, Any]:
        return {"schemaVersion": 1, "operations": self.cloud.operations.logged(_after(payload, "an operation"))}

    # Faults

    def _faults(self, payload: Payload) -> dict[str, Any]:
        _only(payload)
        return {"faults": self.holds.shown(self.cloud.faults.all())}

    def _add_fault(self, payload: Payload) -> dict[str, Any]:
        fault = validate_fault(payload, self.cloud.catalogue)
        if fault["name"] == EVICT:
            return {**fault, **self._evict({"machine": fault["resource"]})}
        return self.cloud.faults.add(fault)

    def _clear_faults(self, payload: Payload) -> dict[str, Any]:
        _only(payload)
        self.cloud.faults.clear()
        self.holds.release()
        return {"faults": []}

    def _release(self, payload: Payload) -> dict[str, Any]:
        """Release held requests. Armed faults stay armed."""
        _only(payload)
        self.holds.release()
        return self._faults({})

    def _evict(self, payload: Payload) -> dict[str, Any]:
        """Evict a Spot VM with Azure's own `simulateEviction`."""
        _only(payload, "machine")
        cloud, name = self.cloud, str(payload.get("machine", ""))
        found = [machine for machine in cloud.store.resources(kind=MACHINES) if machine.name.lower() == name.lower()]
        if len(found) != 1:
            raise ValueError(f"{'no machine is' if not found else 'several machines are'} called {name!r}")
        call_inside(cloud, "POST", f"{found[0].id}/simulateEviction")
        return {"machine": found[0].id}

    # Time

    def _clock(self, payload: Payload) -> dict[str, Any]:
        _only(payload)
        now = self.cloud.clock.now()
        return {"now": now, "time": stamp(now), "speed": self.cloud.clock.speed}

    def _set_clock(self, payload: Payload) -> dict[str, Any]:
        _only(payload, "speed", "advance")
        clock = self.cloud.clock
        speed, step = _number(payload, "speed", clock.speed), _number(payload, "advance", 0.0)
        if not 0 < speed <= FASTEST:
            raise ValueError(f"speed must be more than 0 and at most {FASTEST}")
        if not 0 <= step <= LONGEST_STEP:
            raise ValueError(f"advance must be 0 to {LONGEST_STEP} seconds: time goes forward only, ten years at most")
        if clock.now() + step > LAST_MOMENT:
            raise ValueError("the sandbox's time ends in the year 2200")
        if step:
            clock.advance(step)
        clock.set_speed(speed)
        return self._clock({})

    # Settings

    def _profile(self, payload: Payload) -> dict[str, Any]:
        _only(payload)
        return {"profile": self.cloud.latency.profile}

    def _set_profile(self, payload: Payload) -> dict[str, Any]:
        _only(payload, "profile")
        if payload.get("profile") not in PROFILES:
            raise ValueError(f"profile is {payload.get('profile')!r}; it can be: {', '.join(PROFILES)}")
        self.cloud.store.set_setting("profile", payload["profile"])
        return self._profile({})

    def _quota(self, payload: Payload) -> dict[str, Any]:
        _only(payload)
        return {"limits": self.cloud.store.setting(QUOTA_LIMITS, {})}

    def _set_quota(self, payload: Payload) -> dict[str, Any]:
        _only(payload, "region", "family", "limit")
        catalogue = self.cloud.catalogue
        region = catalogue.region(str(payload.get("region", "")))
        if region is None:
            raise ValueError(f"region is {payload.get('region')!r}, which is no region of the sandbox's catalogue")
        families = {quota.name.lower(): quota.name for quota in catalogue.quotas}
        family = families.get(str(payload.get("family", "")).lower())
        if family is None:
            raise ValueError(f"family is {payload.get('family')!r}; it can be: {', '.join(families.values())}")
        limit = payload.get("limit")
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= LARGEST_LIMIT:
            raise ValueError(f"limit must be a whole number from 0 to {LARGEST_LIMIT}")
        limits = self._quota({})["limits"]
        limits.setdefault(region.name, {})[family] = limit
        self.cloud.store.set_setting(QUOTA_LIMITS, limits)
        return self._quota({})

    def _reset(self, payload: Payload) -> dict[str, Any]:
        _only(payload)
        store = self.cloud.store
        machines = [{"vm": each.id, "vmId": each.properties.get("vmId", "")} for each in store.resources(kind=MACHINES)]
        # A disk can outlive its VM.
        disks = [each.hidden["guest"] for each in store.resources(kind=DISKS) if "guest" in each.hidden]
        self.cloud.guest_orders.extend({"kind": "delete", **each} for each in (*machines, *disks))
        self.cloud.store.reset()
        self.cloud.clock.restart()
        self.cloud.latency.restart()
        self.holds.release()
        self.throttle.clear()
        return self._status({})


def _object(content: bytes) -> dict[str, Any]:
    try:
        payload = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(payload, dict):
        raise ValueError("the body must be an object")  # noqa: TRY004 one kind of error for all of them
    return payload


def _only(payload: Payload, *known: str) -> None:
    unknown = sorted(set(payload) - set(known))
    if unknown:
        raise ValueError(f"no such field: {unknown[0]!r}; there are: {', '.join(known) or 'none'}")


def _after(payload: Payload, what: str) -> int:
    _only(payload, "after")
    after = str(payload.get("after", "0"))
    if not after.isascii() or not after.isdigit() or len(after) > 18:
        raise ValueError(f"after must be the number of {what}")
    return int(after)


def _number(payload: Payload, name: str, default: float) -> float:
    value = payload.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
        raise ValueError(f"{name} must be a number")
    return float(value)


def _refuse(status: int, code: str, message: str) -> Response:
    return _json(status, {"error": {"code": code, "message": message}})


def _json(status: int, body: Any) -> Response:
    return Response(json.dumps(body), status, media_type="application/json")
