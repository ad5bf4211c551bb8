"""Parse the XML that `nvidia-smi -q -x` prints. It may come from a hostile machine."""

from __future__ import annotations

import re
from xml.parsers import expat

from gpuinfra.models.gpu import GpuFacts
from gpuinfra.runner.gpu.nvidia_smi import SIMULATED, UNKNOWN

# Eight GPUs need about 200 KiB.
MAX_SIZE = 4 << 20
MAX_GPUS = 64
# The real document has 7 levels.
MAX_DEPTH = 32
MAX_VALUE = 200
AMOUNT = re.compile(r"([0-9]{1,9})(?:\.[0-9]+)? (MiB|MHz)")

Path = tuple[str, ...]
GPU_VALUES: frozenset[Path] = frozenset(
    tuple(path.split("/"))
    for path in (
        "product_name",
        "uuid",
        "pci/pci_bus_id",
        "fb_memory_usage/total",
        "fb_memory_usage/free",
        "clocks/sm_clock",
        "clocks/graphics_clock",
        "max_clocks/sm_clock",
        "max_clocks/graphics_clock",
    )
)
COMMON_VALUES: frozenset[Path] = frozenset({("driver_version",), ("cuda_version",)})
NO_ATTACHED_GPUS = re.compile(r"<attached_gpus>\s*0\s*</attached_gpus>")
ROOT, GPU = "nvidia_smi_log", "gpu"


class _HostileError(Exception):
    """The document is not from `nvidia-smi`."""


class _Reader:
    """Collects the needed values."""

    def __init__(self) -> None:
        self.gpus: list[dict[Path, str]] = []
        self.common: dict[Path, str] = {}
        self._path: list[str] = []

    def begin(self, name: str, _: object) -> None:
        self._path.append(name)
        if len(self._path) > MAX_DEPTH:
            raise _HostileError
        if self._path == [ROOT, GPU]:
            if len(self.gpus) == MAX_GPUS:
                raise _HostileError
            self.gpus.append({})

    def end(self, _: str) -> None:
        self._path.pop()

    def text(self, data: str) -> None:
        if self._path[:2] == [ROOT, GPU]:
            _collect(self.gpus[-1], self._path[2:], GPU_VALUES, data)
        elif self._path[:1] == [ROOT]:
            _collect(self.common, self._path[1:], COMMON_VALUES, data)

    def refuse(self, *_: object) -> None:
        raise _HostileError


def _collect(values: dict[Path, str], path: list[str], wanted: frozenset[Path], data: str) -> None:
    place = tuple(path)
    if place in wanted:
        values[place] = (values.get(place, "") + data)[:MAX_VALUE]


def parse_xml(text: str) -> GpuFacts | None:
    """Return the GPUs in the output of `nvidia-smi -q -x`, or None if it is invalid or has none. Never raises."""
    begin = text.find("<?xml")
    if begin < 0 or len(text) > MAX_SIZE:
        return None
    reader = _Reader()
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = reader.begin
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    # The real document has a DOCTYPE with the address of a DTD, which is not fetched, and no entities.
    parser.EntityDeclHandler = reader.refuse
    parser.SkippedEntityHandler = reader.refuse
    try:
        parser.Parse(text[begin:].encode("utf-8", "replace"), True)
    except (expat.ExpatError, _HostileError):
        return None
    return _facts(reader)


def _facts(reader: _Reader) -> GpuFacts | None:
    models = tuple(_word(gpu, "product_name") for gpu in reader.gpus)
    driver = _word(reader.common, "driver_version")
    if not models or not driver or not all(models):
        return None
    names = tuple(model for model in models if model)
    return GpuFacts(
        models=names,
        driver=driver,
        memory_mib=_amounts(reader, "fb_memory_usage/total"),
        compute_capabilities=(None,) * len(names),
        simulated=any(SIMULATED in name for name in names),
        cuda=_word(reader.common, "cuda_version"),
        uuids=tuple(_word(gpu, "uuid") for gpu in reader.gpus),
        bus_ids=tuple(_word(gpu, "pci/pci_bus_id") for gpu in reader.gpus),
        memory_free_mib=_amounts(reader, "fb_memory_usage/free"),
        clocks_mhz=_amounts(reader, "clocks/sm_clock", "clocks/graphics_clock"),
        max_clocks_mhz=_amounts(reader, "max_clocks/sm_clock", "max_clocks/graphics_clock"),
    )


def _word(values: dict[Path, str], path: str) -> str | None:
    """Return a value, or None if the driver does not know it or it is not printable."""
    found = values.get(tuple(path.split("/")), "").strip()
    return found if found and found.isprintable() and not UNKNOWN.fullmatch(found) else None


def _amounts(reader: _Reader, *paths: str) -> tuple[int | None, ...]:
    """Return the first known amount of each GPU."""
    return tuple(
        next((amount for path in paths if (amount := _amount(_word(gpu, path))) is not None), None)
        for gpu in reader.gpus
    )


def _amount(word: str | None) -> int | None:
    found = AMOUNT.fullmatch(word or "")
    return int(found[1]) if found else None
