"""The control endpoints below /_sandbox/: clock, faults, bill, log. They need the secret in a file with mode 0600."""

import asyncio
import contextlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.clock import PROFILES, stamp
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.faults import EVICT, validate_fault
from gpuinfra.sandbox.kernel.internal_calls import call_inside
from gpuinfra.sandbox.kernel.payload import Check, number, one_of, positive, read_fields, region, whole_number
from gpuinfra.sandbox.running import HEADER
from gpuinfra.sandbox.services.compute.quota import QUOTA_LIMITS

# Size and refill per second, since 2024: https://learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling
LIMITS = {"reads": (250, 25.0), "writes": (200, 10.0), "deletes": (200, 10.0)}
GLOBAL_FACTOR = 15
_KINDS = {"GET": "reads", "HEAD": "reads", "DELETE": "deletes"}


class Throttle:
    """Counts requests. Only the realistic profile refuses any; the headers are always present."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}

    def clear(self) -> None:
        self._buckets.clear()

    def check(self, call: Call) -> None:
        """Take a token, or raise 429."""
        kind = _KINDS.get(call.method, "writes")
        size, refill = LIMITS[kind]
        now = self.cloud.clock.now()
        left, since = self._buckets.get((call.principal.id, kind), (float(size), now))
        left = min(float(size), left + (now - since) * refill)
        if left < 1 and self.cloud.latency.profile == "realistic":
            seconds = max(1, round(self.cloud.clock.real((1 - left) / refill)))
            raise ArmError(
                429,
                "SubscriptionRequestsThrottled",
                f"Number of {kind} for subscription '{self.cloud.subscription}' exceeded the limit. Please try again "
                f"after '{seconds}' seconds.",
                headers={"Retry-After": str(seconds)},
            )
        self._buckets[call.principal.id, kind] = (max(0.0, left - 1), now)

    def headers(self, call: Call) -> dict[str, str]:
        """Return ARM's headers with the remaining requests."""
        kind = _KINDS.get(call.method, "writes")
        size, _ = LIMITS[kind]
        left = int(self._buckets.get((call.principal.id, kind), (float(size), 0.0))[0])
        return {
            f"x-ms-ratelimit-remaining-subscription-{kind}": str(left),
            f"x-ms-ratelimit-remaining-subscription-global-{kind}": str(size * (GLOBAL_FACTOR - 1) + left),
        }


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
MAX_SPEED = 100_000
MAX_STEP = 3660 * 86_400
"""Ten years, in seconds."""
LAST_MOMENT = 7_258_118_400
"""The year 2200."""
MAX_LIMIT = 1_000_000
RESET_SECONDS = 30.0
Action = Callable[..., dict[str, Any]]
Reader = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Returns the parameters of an action from a request's payload."""


class Control:
    """Answers the control endpoints."""

    def __init__(self, cloud: Cloud, secret: str, reset_guests: Callable[[], Awaitable[None]]) -> None:
        """`reset_guests` returns when the guests of all deleted VMs are gone."""
        self.cloud, self.secret, self._reset_guests = cloud, secret, reset_guests
        self.holds = HeldRequests()
        self.throttle = Throttle(cloud)
        none, after = _fields(), _fields(after=_after)
        families = [quota.name for quota in cloud.catalogue.quotas]
        limit = _fields(
            required=True,
            region=region(cloud.catalogue),
            family=one_of(families, any_case=True),
            limit=whole_number(MAX_LIMIT),
        )
        self._actions: dict[tuple[str, str], tuple[Action, Reader]] = {
            ("GET", "status"): (self._status, none),
            ("GET", "credentials"): (self._credentials, none),
            ("GET", "bill"): (self._bill, none),
            ("GET", "log"): (self._log, after),
            ("GET", "operations"): (self._operations, after),
            ("GET", "faults"): (self._faults, none),
            ("POST", "faults"): (self._add_fault, lambda payload: {"fault": validate_fault(payload, cloud.catalogue)}),
            ("DELETE", "faults"): (self._clear_faults, none),
            ("POST", "release"): (self._release, none),
            ("GET", "clock"): (self._clock, none),
            ("POST", "clock"): (self._set_clock, _fields(speed=positive(MAX_SPEED), advance=_step)),
            ("POST", "profile"): (self._set_profile, _fields(required=True, profile=one_of(PROFILES))),
            ("GET", "quota"): (self._quota, none),
            ("POST", "quota"): (self._set_quota, limit),
            ("POST", "reset"): (self._reset, _fields(now=_moment)),
        }

    async def answer(self, request: Request) -> Response:
        """Answer a request; without the secret it is refused."""
        if not hmac.compare_digest(request.headers.get(HEADER, "").encode(), self.secret.encode()):
            return _refuse(401, "SecretRequired", f"Send the secret in {HEADER}.")
        path = request.url.path.removeprefix("/_sandbox/").strip("/")
        found = self._actions.get((request.method, path))
        if found is None:
            known = ", ".join(f"{method} {name}" for method, name in self._actions)
            return _refuse(404, "NoSuchControl", f"no such control: {request.method} {path}; there are: {known}")
        self.cloud.settle()
        try:
            payload = dict(request.query_params) if request.method == "GET" else _object(await request.body())
            action, read = found
            with self.cloud.store.transaction():
                result = action(**read(payload))
        except ValueError as error:
            return _refuse(400, "BadRequest", str(error))
        except ArmError as error:
            return _refuse(error.status, error.code, error.message)
        self.cloud.settle()
        if path == "reset":
            # Processes of deleted guests must not interfere with what the caller does next.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reset_guests(), RESET_SECONDS)
        return JSONResponse(result)

    # State

    def _status(self) -> dict[str, Any]:
        cloud = self.cloud
        count = cloud.store.connection.execute
        return {
            **self._clock(),
            "profile": cloud.latency.profile,
            "resources": count("SELECT count(*) FROM resources").fetchone()[0],
            "machines": count("SELECT count(*) FROM resources WHERE type = ?", (MACHINES.lower(),)).fetchone()[0],
            "requests": count("SELECT count(*) FROM requests").fetchone()[0],
            "faults": len(self._faults()["faults"]),
        }

    def _credentials(self) -> dict[str, Any]:
        names = {"tenant": "tenant", "subscription": "subscription", "clientId": "client-id"}
        names["clientSecret"] = "client-secret"
        return {name: self.cloud.store.setting(setting) for name, setting in names.items()}

    def _bill(self) -> dict[str, Any]:
        return {"schemaVersion": 1, "machines": self.cloud.meter.machines(self.cloud.now)}

    def _log(self, after: int = 0) -> dict[str, Any]:
        return {"schemaVersion": 1, "requests": self.cloud.store.requests(after)}

    def _operations(self, after: int = 0) -> dict[str, Any]:
        return {"schemaVersion": 1, "operations": self.cloud.operations.logged(after)}

    # Faults

    def _faults(self) -> dict[str, Any]:
        return {"faults": self.holds.shown(self.cloud.faults.all())}

    def _add_fault(self, fault: dict[str, Any]) -> dict[str, Any]:
        return {**fault, **self._evict(fault["resource"])} if fault["name"] == EVICT else self.cloud.faults.add(fault)

    def _clear_faults(self) -> dict[str, Any]:
        self.cloud.faults.clear()
        return self._release()

    def _release(self) -> dict[str, Any]:
        """Release held requests. Armed faults stay armed."""
        self.holds.release()
        return self._faults()

    def _evict(self, name: str) -> dict[str, Any]:
        """Evict a Spot VM with Azure's own `simulateEviction`."""
        cloud = self.cloud
        found = [machine for machine in cloud.store.resources(kind=MACHINES) if machine.name.lower() == name.lower()]
        if len(found) != 1:
            raise ValueError(f"{'no machine is' if not found else 'several machines are'} called {name!r}")
        call_inside(cloud, "POST", f"{found[0].id}/simulateEviction")
        return {"machine": found[0].id}

    # Time

    def _clock(self) -> dict[str, Any]:
        now = self.cloud.clock.now()
        return {"now": now, "time": stamp(now), "speed": self.cloud.clock.speed}

    def _set_clock(self, speed: float | None = None, advance: float = 0.0) -> dict[str, Any]:
        clock = self.cloud.clock
        if clock.now() + advance > LAST_MOMENT:
            raise ValueError("the sandbox's time ends in the year 2200")
        if advance:
            clock.advance(advance)
        clock.set_speed(speed or clock.speed)
        return self._clock()

    # Settings

    def _set_profile(self, profile: str) -> dict[str, Any]:
        self.cloud.store.set_setting("profile", profile)
        return {"profile": profile}

    def _quota(self) -> dict[str, Any]:
        return {"limits": self.cloud.store.setting(QUOTA_LIMITS, {})}

    def _set_quota(self, region: str, family: str, limit: int) -> dict[str, Any]:
        limits = self._quota()["limits"]
        limits.setdefault(region, {})[family] = limit
        self.cloud.store.set_setting(QUOTA_LIMITS, limits)
        return self._quota()

    def _reset(self, now: float | None = None) -> dict[str, Any]:
        store = self.cloud.store
        machines = [{"vm": each.id, "vmId": each.properties.get("vmId", "")} for each in store.resources(kind=MACHINES)]
        # A disk can outlive its VM.
        disks = [each.hidden["guest"] for each in store.resources(kind=DISKS) if "guest" in each.hidden]
        self.cloud.guest_orders.extend({"kind": "delete", **each} for each in (*machines, *disks))
        self.cloud.store.reset()
        self.cloud.clock.restart(now)
        self.cloud.latency.restart()
        self.holds.release()
        self.throttle.clear()
        return self._status()


def _object(content: bytes) -> dict[str, Any]:
    try:
        payload = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(payload, dict):
        raise ValueError("the body must be an object")  # noqa: TRY004 one kind of error for all of them
    return payload


def _fields(*, required: bool = False, **checks: Check) -> Reader:
    return lambda payload: read_fields(payload, checks, tuple(checks) if required else ())


def _after(name: str, value: Any) -> int:
    """Check the number of a request or operation in a query."""
    if not value.isascii() or not value.isdigit() or len(value) > 18:
        raise ValueError(f"{name} must be the number of an entry")
    return int(value)


def _step(name: str, value: Any) -> float:
    if not 0 <= (step := number(name, value)) <= MAX_STEP:
        raise ValueError(f"{name} must be 0 to {MAX_STEP} seconds: time goes forward only, ten years at most")
    return step


def _moment(name: str, value: Any) -> float:
    if not 0 <= (moment := number(name, value)) < LAST_MOMENT:
        raise ValueError(f"{name} must be seconds since 1970, before the year 2200")
    return moment


def _refuse(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status)
