"""Query GPUs with `nvidia-smi`, on a machine or in a container, and explain its errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from xml.parsers import expat

from gpuinfra.models.target import GpuFacts
from gpuinfra.runner.connection.port import Completed, Shell
from gpuinfra.runner.errors import JobError

FIELDS = ("name", "driver_version", "memory.total", "compute_cap")
# Unknown to drivers before 510.
NEWEST_FIELD = "compute_cap"
# In the name of every simulated GPU.
SIMULATED = "simulated"
# Follows the text that the start-up files of a user's shell print, on either stream.
MARK = "@@gpuinfra nvidia-smi"
SCRIPT = f'exec 2>&1; echo "{MARK}"; exec "$@"'
# `[N/A]` or similar means that the driver does not know the value. No GPU has an amount with more digits.
UNKNOWN = re.compile(r"N/A|\[[^\]]*\]")
MEMORY = re.compile(rf"([0-9]{{1,9}}) MiB|{UNKNOWN.pattern}")
NO_DEVICES = "No devices were found"
FINDS_NONE = "the NVIDIA driver finds no GPU"
# Known errors in its output, with their causes.
DIAGNOSES = (
    ("couldn't communicate with the NVIDIA driver", "the NVIDIA driver is not loaded"),
    ("Driver/library version mismatch", "the NVIDIA driver was updated while it was loaded; restart the machine"),
    (NO_DEVICES, FINDS_NONE),
    ("Unable to determine the device handle", "the GPU has fallen off the bus; restart the machine"),
    ("not found", "nvidia-smi is not installed: the image has no NVIDIA driver"),
)


class NoGpuError(Exception):
    """There is no working GPU; the message has the output of `nvidia-smi`."""

    def __init__(self, done: Completed) -> None:
        super().__init__(diagnosis(done))
        self.done = done

    @property
    def is_absent(self) -> bool:
        """Return whether the driver works and finds no GPU."""
        return str(self).startswith(FINDS_NONE)


def ask(connection: Shell, timeout: float) -> GpuFacts:
    """Return the machine's GPUs. Raise NoGpuError if there are none."""
    done = _run(connection, FIELDS, timeout)
    if done.exit_code and f'"{NEWEST_FIELD}" is not a valid field' in done.stdout:
        done = _run(connection, FIELDS[:-1], timeout)
    facts = parse(done.stdout) if done.exit_code == 0 else None
    if facts is None:
        raise NoGpuError(done)
    return facts


def _run(connection: Shell, fields: tuple[str, ...], timeout: float) -> Completed:
    """Run the query with `sh`, and remove what the user's shell printed before it."""
    done = connection.run(["sh", "-c", SCRIPT, "sh", *query(fields)], timeout=timeout)
    _, mark, output = done.stdout.rpartition(f"{MARK}\n")
    return Completed(done.exit_code, output, "") if mark else done


def query(fields: tuple[str, ...]) -> list[str]:
    """Return the command that queries these fields."""
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]


def parse(output: str) -> GpuFacts | None:
    """Parse lines like `Tesla T4, 535.161.08, 15360 MiB, 7.5`, one per GPU. Return None if there is no such line."""
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
    """Return the cause if it is known, and the output."""
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines()]
    output = " ".join(line for line in lines if line)[:300]
    if not output and done.exit_code == 0:
        return f"{FINDS_NONE}; nvidia-smi lists none"
    output = output or "nothing"
    cause = next((cause for sign, cause in DIAGNOSES if sign in output), None)
    result = f"nvidia-smi exited with code {done.exit_code} and printed: {output}"
    return f"{cause}; {result}" if cause else result


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


DESCRIBE = ("nvidia-smi", "-q", "-x")
# The XML does not contain the compute capability.
QUERY = tuple(query(FIELDS))
# Follows the text that the start-up files of a user's shell print, on either stream.
PROBE_MARK = "@@gpuinfra gpu"
# CUDA uses only the GPUs in this variable, but `nvidia-smi` shows all.
VISIBLE = "CUDA_VISIBLE_DEVICES"
VISIBLE_LINE = re.compile(rf"^@@gpuinfra {VISIBLE}=(.*)$", re.MULTILINE)
# On one line and without `!`, because csh, which may be the user's shell, accepts neither in quotes. A driver that is
# too old for the compute capability is not an error.
PROBE_SCRIPT = (
    f'exec 2>&1; test -z "${{{VISIBLE}+set}}" || echo "@@gpuinfra {VISIBLE}=${VISIBLE}"; echo "{PROBE_MARK}"; '
    f'{" ".join(DESCRIBE)}; code=$?; echo; echo "{PROBE_MARK} $code"; '
    f'test $code -eq 0 || exit $code; {" ".join(QUERY)}; code=$?; echo; echo "{PROBE_MARK} $code"'
)
PROBE: tuple[str, ...] = ("sh", "-c", PROBE_SCRIPT)
"""One command for all values, which `read_probe` parses. For images without `sh`, see `probe_container`."""
# Exit codes of a shell and of the Docker program for a missing or not executable command.
NOT_FOUND = (126, 127)
# Messages of engines for the same.
NO_PROGRAM = ("executable file not found", "no such file or directory: unknown")
Run = Callable[[list[str]], Completed]
"""Runs a command in a container like the job's. For a missing program, it returns exit code 127 or raises JobError."""


def probe_container(run: Run) -> GpuFacts:
    """Return the GPUs that a job in a container will see, or raise NoGpuError. Needs two containers without a shell."""
    done = _run_in_container(run, list(PROBE))
    if done.exit_code in NOT_FOUND and PROBE_MARK not in done.stdout:
        return ask_one_by_one(lambda command: _run_in_container(run, command))
    return read_probe(done)


def probe_host(shell: Shell, timeout: float) -> GpuFacts:
    """Return the machine's GPUs. Raises NoGpuError and ConnectError."""
    return read_probe(shell.run(list(PROBE), timeout=timeout))


def _run_in_container(run: Run, command: list[str]) -> Completed:
    try:
        return run(command)
    except JobError as error:
        # The message may also be about NVIDIA's runtime hook, which is another error.
        if any(sign in str(error) for sign in NO_PROGRAM) and f'exec: "{command[0]}"' in str(error):
            return Completed(NOT_FOUND[1], "", str(error))
        raise


def read_probe(done: Completed) -> GpuFacts:
    """Parse the output of `PROBE`. Raise NoGpuError if it has no GPU."""
    before, *parts = re.split(rf"^{PROBE_MARK}(?: ([0-9]{{1,3}}))?\n", done.stdout, flags=re.MULTILINE)
    # The first mark has no exit code; each other mark follows the output of its command.
    answers = [Completed(int(code), said, "") for said, code in zip(parts[1::2], parts[2::2], strict=False) if code]
    if not answers:
        raise NoGpuError(done)
    found = combine_answers(answers[0], answers[1] if len(answers) > 1 else None)
    visible = VISIBLE_LINE.search(before)
    return replace(found, cuda_visible_devices=visible[1].strip()) if visible else found


def combine_answers(described: Completed, table: Completed | None) -> GpuFacts:
    """Combine the description and the table, which has the compute capability if the driver knows it."""
    facts = parse_xml(described.stdout) if described.exit_code == 0 else None
    short = parse(table.stdout) if table and table.exit_code == 0 else None
    if facts and short and len(short.models) == len(facts.models):
        return replace(facts, compute_capabilities=short.compute_capabilities)
    # Another version of the driver may print a description that cannot be parsed, but its table is sufficient.
    found = facts or short
    if described.exit_code or not found:
        has_none = described.exit_code == 0 and NO_ATTACHED_GPUS.search(described.stdout)
        raise NoGpuError(Completed(0, NO_DEVICES, "") if has_none else described)
    return found


def ask_one_by_one(run: Callable[[list[str]], Completed]) -> GpuFacts:
    """Ask with two commands, for images without a shell."""
    described = run(list(DESCRIBE))
    return combine_answers(described, run(list(QUERY)) if described.exit_code == 0 else None)
