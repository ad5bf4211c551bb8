"""What `nvidia-smi` prints, and what it means when it fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from xml.parsers import expat

from gpuinfra.models.gpu import GpuFacts
from gpuinfra.runner.connection.port import Completed, Shell

FIELDS = ("name", "driver_version", "memory.total", "compute_cap")
# Drivers before 510 do not know it.
NEWEST_FIELD = "compute_cap"
# The word by which what is not real says so.
SIMULATED = "simulated"

# What the start-up files of a user's shell print stands before the mark, on either stream.
MARK = "@@gpuinfra nvidia-smi"
SCRIPT = f'exec 2>&1; echo "{MARK}"; exec "$@"'
# `[N/A]` or similar if the driver does not know. No GPU has as much memory as more digits would say.
UNKNOWN = re.compile(r"N/A|\[[^\]]*\]")
MEMORY = re.compile(rf"([0-9]{{1,9}}) MiB|{UNKNOWN.pattern}")

NO_DEVICES = "No devices were found"
FINDS_NONE = "the NVIDIA driver finds no GPU"
# What the tool prints when something is wrong, and what that comes from.
DIAGNOSES = (
    ("couldn't communicate with the NVIDIA driver", "the NVIDIA driver is not loaded"),
    ("Driver/library version mismatch", "the NVIDIA driver was updated while it was loaded; restart the machine"),
    (NO_DEVICES, FINDS_NONE),
    ("Unable to determine the device handle", "the GPU has fallen off the bus; restart the machine"),
    ("not found", "nvidia-smi is not installed: the image has no NVIDIA driver"),
)


class NoGpuError(Exception):
    """No GPU that works: why, in the tool's own words."""

    def __init__(self, done: Completed) -> None:
        super().__init__(diagnosis(done))
        self.done = done

    @property
    def is_absent(self) -> bool:
        """Whether the driver works and finds no GPU."""
        return str(self).startswith(FINDS_NONE)


def ask(connection: Shell, timeout: float) -> GpuFacts:
    """The machine's GPUs, one at least."""
    done = _run(connection, FIELDS, timeout)
    if done.exit_code and f'"{NEWEST_FIELD}" is not a valid field' in done.stdout:
        done = _run(connection, FIELDS[:-1], timeout)
    facts = parse(done.stdout) if done.exit_code == 0 else None
    if facts is None:
        raise NoGpuError(done)
    return facts


def _run(connection: Shell, fields: tuple[str, ...], timeout: float) -> Completed:
    """By `sh`, whatever shell the user has there; what that said of itself is left out."""
    done = connection.run(["sh", "-c", SCRIPT, "sh", *query(fields)], timeout=timeout)
    _, mark, said = done.stdout.rpartition(f"{MARK}\n")
    return Completed(done.exit_code, said, "") if mark else done


def query(fields: tuple[str, ...]) -> list[str]:
    """The command that asks for these fields."""
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]


def parse(output: str) -> GpuFacts | None:
    """A line a GPU: `Tesla T4, 535.161.08, 15360 MiB, 7.5`. None where there is no such line; others do not count."""
    lines = ([cell.strip() for cell in line.split(",")] for line in output.splitlines())
    rows = [cells for cells in lines if len(cells) in {3, 4} and MEMORY.fullmatch(cells[2])]
    if not rows:
        return None
    return GpuFacts(
        models=tuple(row[0] for row in rows),
        driver=rows[0][1],
        memory_mib=tuple(_mebibytes(row[2]) for row in rows),
        compute_capabilities=tuple(row[3] if len(row) > 3 and not UNKNOWN.fullmatch(row[3]) else None for row in rows),
        simulated=any(SIMULATED in row[0] for row in rows),
    )


def _mebibytes(cell: str) -> int | None:
    found = MEMORY.fullmatch(cell)
    return int(found[1]) if found and found[1] else None


def diagnosis(done: Completed) -> str:
    """The cause, where it is a known one, and what the tool said."""
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines()]
    said = " ".join(line for line in lines if line)[:300]
    if not said and done.exit_code == 0:
        return f"{FINDS_NONE}; nvidia-smi lists none"
    said = said or "nothing"
    cause = next((cause for words, cause in DIAGNOSES if words in said), None)
    told = f"nvidia-smi ended with {done.exit_code} and said: {said}"
    return f"{cause}; {told}" if cause else told


DESCRIBE = ("nvidia-smi", "-q", "-x")
# It is not in the XML.
ASK_CAPABILITY = tuple(query(FIELDS))

# What the start-up files of a user's shell print stands before the first mark, on either stream.
PROBE_MARK = "@@gpuinfra gpu"
# CUDA shows a program only the GPUs that this variable lists; `nvidia-smi` shows all.
VISIBLE = "CUDA_VISIBLE_DEVICES"
VISIBLE_LINE = re.compile(rf"^@@gpuinfra {VISIBLE}=(.*)$", re.MULTILINE)
# On one line and without `!`: csh, which may be the user's shell, takes neither in quotes. A driver that is too old to
# know the capability is not a failure.
PROBE_SCRIPT = (
    f'exec 2>&1; test -z "${{{VISIBLE}+set}}" || echo "@@gpuinfra {VISIBLE}=${VISIBLE}"; echo "{PROBE_MARK}"; '
    f'{" ".join(DESCRIBE)}; code=$?; echo; echo "{PROBE_MARK} $code"; '
    f'test $code -eq 0 || exit $code; {" ".join(ASK_CAPABILITY)}; code=$?; echo; echo "{PROBE_MARK} $code"'
)
PROBE: tuple[str, ...] = ("sh", "-c", PROBE_SCRIPT)
"""The one command that yields all, for `read_probe`. An image may have no `sh`: see `probe_container`."""

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


def read_probe(done: Completed) -> GpuFacts:
    """What `PROBE` printed. NoGpuError where that names no GPU."""
    before, *parts = re.split(rf"^{PROBE_MARK}(?: ([0-9]{{1,3}}))?\n", done.stdout, flags=re.MULTILINE)
    # The first mark has no code; each of the others stands behind what it is about.
    answers = [Completed(int(code), said, "") for said, code in zip(parts[1::2], parts[2::2], strict=False) if code]
    if not answers:
        raise NoGpuError(done)
    found = combine_answers(answers[0], answers[1] if len(answers) > 1 else None)
    visible = VISIBLE_LINE.search(before)
    return replace(found, cuda_visible_devices=visible[1].strip()) if visible else found


def combine_answers(described: Completed, table: Completed | None) -> GpuFacts:
    """What both questions yield together: the second knows the compute capability, where the driver does."""
    facts = parse_xml(described.stdout) if described.exit_code == 0 else None
    short = parse(table.stdout) if table and table.exit_code == 0 else None
    if facts and short and len(short.models) == len(facts.models):
        return replace(facts, compute_capabilities=short.compute_capabilities)
    # A description that cannot be read_probe is that of a driver of another time: its table still tells what matters.
    found = facts or short
    if described.exit_code or not found:
        has_none = described.exit_code == 0 and ATTACHED_NONE.search(described.stdout)
        raise NoGpuError(Completed(0, NO_DEVICES, "") if has_none else described)
    return found


def ask_one_by_one(run: Callable[[list[str]], Completed]) -> GpuFacts:
    """By two commands, where there is no shell."""
    described = run(list(DESCRIBE))
    return combine_answers(described, run(list(ASK_CAPABILITY)) if described.exit_code == 0 else None)
