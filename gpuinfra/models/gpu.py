"""A machine's GPUs, as its driver reports them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

MIB_PER_GIB = 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What `nvidia-smi` reports. Each tuple has one entry per GPU; an empty tuple means: not queried."""

    models: tuple[str, ...]
    driver: str
    memory_mib: tuple[int | None, ...]
    compute_capabilities: tuple[str | None, ...]
    """Such as `7.5`; None if the driver is too old to report it."""
    simulated: bool = False
    """Whether the embedded Azure simulates the GPU."""
    cuda: str | None = None
    """The newest CUDA version that the driver supports, such as `12.2`."""
    uuids: tuple[str | None, ...] = ()
    bus_ids: tuple[str | None, ...] = ()
    """PCI bus ids, such as `00000001:00:00.0`."""
    memory_free_mib: tuple[int | None, ...] = ()
    clocks_mhz: tuple[int | None, ...] = ()
    """Current clock rates."""
    max_clocks_mhz: tuple[int | None, ...] = ()
    cuda_visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES of the shell that ran `nvidia-smi`; None if unset."""

    @property
    def summary(self) -> str:
        """`2 Tesla T4, 15360 MiB, driver 535.161.08`."""
        count = f"{len(self.models)} " if len(self.models) > 1 else ""
        memory = f", {self.memory_mib[0]} MiB" if self.memory_mib[0] else ""
        return f"{count}{self.models[0]}{memory}, driver {self.driver}"

    @property
    def details(self) -> tuple[str, ...]:
        """One line per GPU: `Tesla T4, compute capability 7.5, 1.59 GHz, pciBusID 0001:00:00.0, memory 15.0 GiB, …`."""
        return tuple(self._detail(index) for index in range(len(self.models)))

    def _detail(self, index: int) -> str:
        capability, clock = _at(self.compute_capabilities, index), _at(self.max_clocks_mhz, index)
        bus, total, free = (_at(each, index) for each in (self.bus_ids, self.memory_mib, self.memory_free_mib))
        found = (
            self.models[index],
            capability and f"compute capability {capability}",
            clock and f"{clock / 1000:.4g} GHz",
            bus and f"pciBusID {_short(str(bus))}",
            total and f"memory {_gibibytes(total)}",
            free is not None and f"free {_gibibytes(free)}",
        )
        return ", ".join(part for part in found if part)

    def as_json(self) -> dict[str, Any]:
        """Return this as a JSON object. Fields that were not queried are omitted."""
        more = {
            "cuda": self.cuda,
            "uuids": list(self.uuids),
            "busIds": list(self.bus_ids),
            "memoryFreeMiB": list(self.memory_free_mib),
            "clocksMHz": list(self.clocks_mhz),
            "maxClocksMHz": list(self.max_clocks_mhz),
        }
        return {
            "count": len(self.models),
            "models": list(self.models),
            "driver": self.driver,
            "memoryMiB": list(self.memory_mib),
            "computeCapabilities": list(self.compute_capabilities),
            "simulated": self.simulated,
            **{name: value for name, value in more.items() if value},
        }


def _at(values: Sequence[T], index: int) -> T | None:
    return values[index] if index < len(values) else None


def _gibibytes(mebibytes: Any) -> str:
    return f"{mebibytes / MIB_PER_GIB:.1f} GiB"


def _short(bus_id: str) -> str:
    """Return the bus id as frameworks print it: with a four-digit PCI domain if possible."""
    return bus_id[4:] if bus_id.startswith("0000") and bus_id.find(":") == 8 else bus_id
