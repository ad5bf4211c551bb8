"""All that `nvidia-smi -q -x` tells, asked for at once where there is a shell to ask by."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from xml.parsers import expat

from gpuinfra.models.gpu import GpuFacts
from gpuinfra.runner.gpu.nvidia_smi import FIELDS, NO_DEVICES, SIMULATED, UNKNOWN, NoGpuError, parse, query
from gpuinfra.runner.machine.connection import Completed

DESCRIBE = ("nvidia-smi", "-q", "-x")
# It is not in the XML.
ASK_CAPABILITY = tuple(query(FIELDS))

# What the start-up files of a user's shell print stands before the first mark, on either stream.
MARK = "@@gpuinfra gpu"
# CUDA shows a program only the GPUs that this variable lists; `nvidia-smi` shows all.
VISIBLE = "CUDA_VISIBLE_DEVICES"
VISIBLE_LINE = re.compile(rf"^@@gpuinfra {VISIBLE}=(.*)$", re.MULTILINE)
# On one line and without `!`: csh, which may be the user's shell, takes neither in quotes. A driver that is too old to
# know the capability is no failure.
SCRIPT = (
    f'exec 2>&1; test -z "${{{VISIBLE}+set}}" || echo "@@gpuinfra {VISIBLE}=${VISIBLE}"; echo "{MARK}"; '
    f'{" ".join(DESCRIBE)}; code=$?; echo; echo "{MARK} $code"; '
    f'test $code -eq 0 || exit $code; {" ".join(ASK_CAPABILITY)}; code=$?; echo; echo "{MARK} $code"'
)
PROBE: tuple[str, ...] = ("sh", "-c", SCRIPT)
"""The one command that yields all, for `read`. An image may have no `sh`: see `runner.gpu.contract.probe_container`."""

# Eight GPUs have about 200 KiB.
LONGEST = 4 << 20
MOST_GPUS = 64
# The real one goes to 7.
DEEPEST = 32
LONGEST_VALUE = 200
AMOUNT = re.compile(r"([0-9]{1,9})(?:\.[0-9]+)? (MiB|MHz)")

Path = tuple[str, ...]
WANTED: frozenset[Path] = frozenset(
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
OF_ALL: frozenset[Path] = frozenset({("driver_version",), ("cuda_version",)})
ATTACHED_NONE = re.compile(r"<attached_gpus>\s*0\s*</attached_gpus>")
ROOT, GPU = "nvidia_smi_log", "gpu"


class _HostileError(Exception):
    """No `nvidia-smi` writes this."""


class _Reader:
    """Collects the values that are wanted; all else is not kept."""

    def __init__(self) -> None:
        self.gpus: list[dict[Path, str]] = []
        self.common: dict[Path, str] = {}
        self._path: list[str] = []

    def begin(self, name: str, _: object) -> None:
        self._path.append(name)
        if len(self._path) > DEEPEST:
            raise _HostileError
        if self._path == [ROOT, GPU]:
            if len(self.gpus) == MOST_GPUS:
                raise _HostileError
            self.gpus.append({})

    def end(self, _: str) -> None:
        self._path.pop()

    def text(self, data: str) -> None:
        if self._path[:2] == [ROOT, GPU]:
            _collect(self.gpus[-1], self._path[2:], WANTED, data)
        elif self._path[:1] == [ROOT]:
            _collect(self.common, self._path[1:], OF_ALL, data)

    def refuse(self, *_: object) -> None:
        raise _HostileError


def _collect(values: dict[Path, str], path: list[str], wanted: frozenset[Path], data: str) -> None:
    place = tuple(path)
    if place in wanted:
        values[place] = (values.get(place, "") + data)[:LONGEST_VALUE]


def parse_xml(text: str) -> GpuFacts | None:
    """What `nvidia-smi -q -x` printed; None where it is not that, or names no GPU. Never raises."""
    begin = text.find("<?xml")
    if begin < 0 or len(text) > LONGEST:
        return None
    reader = _Reader()
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = reader.begin
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    # The real one has a DOCTYPE with the address of a DTD, which is not fetched, and no entities.
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
    """None where the driver cannot tell, or says what would do something to a terminal."""
    found = values.get(tuple(path.split("/")), "").strip()
    return found if found and found.isprintable() and not UNKNOWN.fullmatch(found) else None


def _amounts(reader: _Reader, *paths: str) -> tuple[int | None, ...]:
    """Of each GPU the first that the driver can tell."""
    return tuple(
        next((amount for path in paths if (amount := _amount(_word(gpu, path))) is not None), None)
        for gpu in reader.gpus
    )


def _amount(word: str | None) -> int | None:
    found = AMOUNT.fullmatch(word or "")
    return int(found[1]) if found else None


def read(done: Completed) -> GpuFacts:
    """What `PROBE` printed. NoGpuError where that names no GPU."""
    before, *parts = re.split(rf"^{MARK}(?: ([0-9]{{1,3}}))?\n", done.stdout, flags=re.MULTILINE)
    # The first mark has no code; each of the others stands behind what it is about.
    answers = [Completed(int(code), said, "") for said, code in zip(parts[1::2], parts[2::2], strict=False) if code]
    if not answers:
        raise NoGpuError(done)
    found = combine(answers[0], answers[1] if len(answers) > 1 else None)
    visible = VISIBLE_LINE.search(before)
    return replace(found, cuda_visible_devices=visible[1].strip()) if visible else found


def combine(described: Completed, table: Completed | None) -> GpuFacts:
    """What both questions yield together: the second knows the compute capability, where the driver does."""
    facts = parse_xml(described.stdout) if described.exit_code == 0 else None
    short = parse(table.stdout) if table and table.exit_code == 0 else None
    if facts and short and len(short.models) == len(facts.models):
        return replace(facts, compute_capabilities=short.compute_capabilities)
    # A description that cannot be read is that of a driver of another time: its table still tells what matters.
    found = facts or short
    if described.exit_code or not found:
        has_none = described.exit_code == 0 and ATTACHED_NONE.search(described.stdout)
        raise NoGpuError(Completed(0, NO_DEVICES, "") if has_none else described)
    return found


def ask_one_by_one(run: Callable[[list[str]], Completed]) -> GpuFacts:
    """By two commands, where there is no shell."""
    described = run(list(DESCRIBE))
    return combine(described, run(list(ASK_CAPABILITY)) if described.exit_code == 0 else None)
