"""The simulated cloud: its state, its time, and its event queue."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import load_catalogue
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import Clock, Latency
from gpuinfra.sandbox.kernel.errors import ArmError, outside_the_slice
from gpuinfra.sandbox.kernel.faults import Faults
from gpuinfra.sandbox.kernel.long_running_operations import Operations
from gpuinfra.sandbox.kernel.meter import Meter
from gpuinfra.sandbox.kernel.routes import Router, Service
from gpuinfra.sandbox.kernel.store import Store

logger = logging.getLogger(__name__)


class Cloud:
    """Everything that services need. Nothing in it waits: what takes time is an event."""

    def __init__(self, folder: Path, services: Sequence[Service]) -> None:
        self.folder = folder
        self.store = Store(folder / "state.sqlite3")
        self.clock = Clock(self.store)
        self.catalogue = load_catalogue()
        self.latency = Latency(self.store)
        self.faults = Faults(self.store)
        self.meter = Meter(self.store)
        self.operations = Operations(self)
        self.router = Router(services)
        self.effects = {name: effect for service in services for name, effect in service.effects.items()}
        self.guest_orders: list[dict[str, Any]] = []
        """Orders for guests; the guest host carries them out after the transaction."""
        self.guests_ready: set[str] = set()
        """Keys of the VMs whose guests are up; the guest host maintains it."""
        self.guests_stopping: Counter[str] = Counter()
        """Per `vmId`, how many orders to stop its guest are not carried out; the guest host maintains it."""
        self.base_url = ""
        self.on_event: Callable[[], None] = lambda: None
        """Called when an event was scheduled: it may be the next one."""
        self._moment: float | None = None

    @property
    def subscription(self) -> str:
        return str(self.store.setting("subscription"))

    @property
    def tenant(self) -> str:
        return str(self.store.setting("tenant"))

    @property
    def now(self) -> float:
        """The simulated time; during an event that event's time, during a request the time of its start."""
        return self._moment if self._moment is not None else self.clock.now()

    def schedule(self, due: float, effect: str, payload: dict[str, Any]) -> int:
        """Schedule an effect. Returns the event's number, which `store.remove_event` cancels."""
        if effect not in self.effects and effect != "operation":
            raise KeyError(effect)
        number = self.store.add_event(due, effect, payload)
        self.on_event()
        return number

    def settle(self) -> None:
        """Process all due events, each at its own time and in order."""
        while (event := self.store.next_event()) and event[1] <= self.clock.now():
            number, due, kind, payload = event
            with self.store.transaction(), self._at(due):
                self.store.remove_event(number)
                if kind == "operation":
                    self.operations.finish(payload)
                else:
                    self._run_effect(kind, payload)

    def seconds_to_next_event(self) -> float:
        """Return the real seconds until the next event is due; infinity if there is none."""
        event = self.store.next_event()
        return self.clock.real(event[1] - self.clock.now()) if event else math.inf

    @contextmanager
    def _at(self, moment: float) -> Iterator[None]:
        """Give everything in a request or event the same time, so that bill and log agree even with a fast clock."""
        before, self._moment = self._moment, moment
        try:
            yield
        finally:
            self._moment = before

    def _run_effect(self, kind: str, payload: dict[str, Any]) -> None:
        try:
            with self.store.savepoint():
                self.effects[kind](self, payload)
        except ArmError as error:
            logger.warning("event %s: %s", kind, error)
        except Exception:
            # A failed event is removed as well; otherwise it would block all later ones.
            logger.exception("event %s", kind)

    def dispatch(self, call: Call) -> Answer:
        """Answer a call that has passed all checks. If it raises ArmError, nothing has changed."""
        found = self.router.find(call.method, call.path)
        if found is None:
            raise outside_the_slice(call.method, call.path)
        if isinstance(found, set):
            message = f"The requested resource does not support http method '{call.method}'."
            raise ArmError(405, "HttpMethodNotAllowed", message, headers={"Allow": ", ".join(sorted(found))})
        route, parameters = found
        with self.store.transaction(), self._at(self.now):
            return route.handler(replace(call, parameters=parameters))

    def region_of(self, resource_id: str, body: Any) -> str:
        """Return the region that a request is about: its body's, or that of the existing resource."""
        if isinstance(body, dict) and isinstance(body.get("location"), str):
            return str(body["location"]).replace(" ", "").lower()
        resource = self.store.get(resource_id)
        return resource.location if resource else ""
