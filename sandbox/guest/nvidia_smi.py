"""`nvidia-smi` for a simulated GPU, in the formats of the real tool.

Stands alone, for any Python from 3.8: it is copied into a guest, with the facts of its GPUs beside it. What a GPU does
is read from `run/gpu-load.json` in the guest: {"utilization": 87, "memory_used_mib": 4000}, for one GPU of several
under {"gpus": {"1": {...}}}, and {"processes": [{"pid": 4711, "name": "python", "memory_used_mib": 4000}]}.

The guest agent runs it every few seconds, so it imports little: `json` and `hashlib` would double its time.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

HERE = os.path.dirname(os.path.realpath(__file__))
RUN = os.path.join(os.path.dirname(HERE), "run")
SIMULATED = " (simulated)"
INVALID, NOT_FOUND, NOT_LOADED, INTERNAL = 2, 6, 9, 255
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n\n"
)
# Of each model: watts idle and at most, MHz of the processors and of the memory at most. From the vendor's data sheets.
MODELS = {
    "T4": (9, 70, 1590, 5001),
    "A10": (16, 150, 1695, 6251),
    "V100": (25, 250, 1380, 877),
    "A100": (42, 300, 1410, 1512),
    "H100": (60, 400, 1785, 2619),
    "RTX": (30, 600, 2617, 12481),
}
UNKNOWN_MODEL = (20, 250, 1500, 5000)
IDLE_MHZ = (300, 405)


class SmiError(Exception):
    """An error of the real tool: its text and its exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class Options:
    """The parsed command line."""

    def __init__(self) -> None:
        self.list = self.query = self.xml = self.help = self.version = False
        self.ids: list[str] = []
        self.query_gpu = self.query_apps = self.filename = ""
        self.format: list[str] = []
        self.loop_seconds = 0.0
        self.display = ""


class Gpu:
    """One GPU at this moment."""

    def __init__(self, facts: dict[str, str], load: dict[str, Any], index: int) -> None:
        own = {**load, **(load.get("gpus") or {}).get(str(index), {})}
        idle, limit, sm, memory = next((MODELS[word] for word in MODELS if _is_model(word, facts)), UNKNOWN_MODEL)
        self.index = index
        self.count = facts["count"]
        self.name = facts["name"] + SIMULATED
        self.driver = facts["driver_version"]
        self.cuda = facts["cuda_version"]
        self.capability = facts["compute_capability"]
        self.device = facts["pci_device_id"]
        self.uuid = facts["uuids"].split()[index]
        self.serial = facts["serials"].split()[index]
        # In Azure each GPU has its own PCI domain.
        self.bus = f"{index + 1:08X}:00:00.0"
        self.total = int(facts["memory_mib"])
        self.used = min(max(int(own.get("memory_used_mib") or 0), 0), self.total)
        self.utilization = min(max(int(own.get("utilization") or 0), 0), 100)
        busy = self.utilization / 100
        self.limit = float(limit)
        self.draw = idle + (limit - idle) * busy
        self.temperature = int(31 + 40 * busy)
        self.max_sm, self.max_memory = sm, memory
        working = bool(self.utilization or self.used)
        self.sm, self.memory = (sm, memory) if working else IDLE_MHZ
        self.state = "P0" if working else "P8"
        self.memory_utilization = 0 if not self.utilization else min(100, 100 * self.used // self.total)
        self.processes = [each for each in load.get("processes") or [] if int(each.get("gpu", 0)) == index]


def _is_model(word: str, facts: dict[str, str]) -> bool:
    return word in facts["model"].upper().replace("-", " ").split() or word in facts["name"].upper().split()


def gpu_fields(gpu: Gpu) -> dict[str, tuple[Any, str]]:
    """Return every field that --query-gpu knows, each with its unit."""
    domain, bus, device = gpu.bus.replace(".0", "").split(":")
    now = time.strftime("%Y/%m/%d %H:%M:%S") + f".{int(time.time() % 1 * 1000):03d}"
    rows = (
        ("timestamp", now, ""),
        ("index", gpu.index, ""),
        ("count", gpu.count, ""),
        ("name gpu_name", gpu.name, ""),
        ("uuid gpu_uuid", gpu.uuid, ""),
        ("serial gpu_serial", gpu.serial, ""),
        ("driver_version", gpu.driver, ""),
        ("compute_cap", gpu.capability, ""),
        ("compute_mode", "Default", ""),
        ("persistence_mode ecc.mode.current", "Enabled", ""),
        ("display_active display_mode", "Disabled", ""),
        ("fan.speed mig.mode.current mig.mode.pending", "[N/A]", ""),
        ("vbios_version", "simulated", ""),
        ("pstate", gpu.state, ""),
        ("temperature.gpu", gpu.temperature, ""),
        ("temperature.memory", "N/A", ""),
        ("pci.bus_id gpu_bus_id", gpu.bus, ""),
        ("pci.domain", "0x" + domain[-4:], ""),
        ("pci.bus", "0x" + bus, ""),
        ("pci.device", "0x" + device, ""),
        ("pci.device_id", gpu.device, ""),
        ("clocks_throttle_reasons.active clocks_event_reasons.active", "0x0000000000000000", ""),
        ("ecc.errors.uncorrected.volatile.total ecc.errors.corrected.volatile.total", 0, ""),
        ("clocks.sm clocks.current.sm clocks.gr clocks.current.graphics", gpu.sm, "MHz"),
        ("clocks.mem clocks.current.memory", gpu.memory, "MHz"),
        ("clocks.max.sm clocks.max.gr clocks.max.graphics", gpu.max_sm, "MHz"),
        ("clocks.max.mem clocks.max.memory", gpu.max_memory, "MHz"),
        ("power.draw power.draw.instant power.draw.average", f"{gpu.draw:.2f}", "W"),
        ("power.limit power.default_limit power.max_limit", f"{gpu.limit:.2f}", "W"),
        ("memory.total", gpu.total, "MiB"),
        ("memory.used", gpu.used, "MiB"),
        ("memory.free", gpu.total - gpu.used, "MiB"),
        ("memory.reserved", 0, "MiB"),
        ("utilization.gpu", gpu.utilization, "%"),
        ("utilization.memory", gpu.memory_utilization, "%"),
        ("utilization.encoder utilization.decoder", 0, "%"),
    )
    return {name: (value, unit) for names, value, unit in rows for name in names.split()}


def app_fields(gpu: Gpu, process: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """Return every field that --query-compute-apps knows, each with its unit."""
    fields = {name: field for name, field in gpu_fields(gpu).items() if name.startswith("gpu_") or name == "timestamp"}
    fields["pid"] = (process.get("pid", 0), "")
    fields["name"] = fields["process_name"] = (process.get("name", "unknown"), "")
    fields["used_memory"] = fields["used_gpu_memory"] = (process.get("memory_used_mib", 0), "MiB")
    return fields


def csv(names: str, rows: list[dict[str, tuple[Any, str]]], known: dict[str, tuple[Any, str]], style: list[str]) -> str:
    """Return a table as --format=csv prints it. The header has units even if the values do not."""
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise SmiError(f'Field "{name}" is not a valid field to query.\n', INVALID)
    lines = []
    if "noheader" not in style:
        lines.append(", ".join(name + (f" [{known[name][1]}]" if known[name][1] else "") for name in wanted))
    lines.extend(", ".join(_value(*row[name], units="nounits" not in style) for name in wanted) for row in rows)
    return "".join(line + "\n" for line in lines)


def _value(value: Any, unit: str, *, units: bool) -> str:
    return f"{value} {unit}" if unit and units else str(value)


def table(gpus: list[Gpu]) -> str:
    """Return what the tool prints without arguments."""
    rule = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    wide = "+" + "-" * 89 + "+"
    version = (gpus[0].driver + SIMULATED).ljust(22)
    head = f" NVIDIA-SMI {version}  Driver Version: {gpus[0].driver:14s} CUDA Version: {gpus[0].cuda}"
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y").ljust(31),
        wide,
        "|" + head.ljust(89) + "|",
        rule.replace("+", "|", 1).replace("+|", "+"),
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|" + rule[1:-1].replace("-", "=") + "|",
    ]
    for gpu in gpus:
        memory = f"{gpu.used}MiB / {gpu.total:6d}MiB"
        busy = f"{gpu.utilization}%"
        power = f"{int(gpu.draw)}W / {int(gpu.limit):4d}W"
        lines += [
            f"| {gpu.index:3d}  {_shortened(gpu.name, 29):29s}  On  |   {gpu.bus} Off | {0:20d} |",
            f"| N/A  {gpu.temperature:3d}C    {gpu.state:4s} {power:>20s}  | {memory:>22s} | {busy:>8s}     Default |",
            f"| {'':39s} | {'':22s} | {'N/A':>20s} |",
            rule,
        ]
    lines += [
        "",
        wide,
        "| Processes:".ljust(90) + "|",
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
        "|        ID   ID                                                               Usage      |",
        "|" + "=" * 89 + "|",
    ]
    running = [(gpu, process) for gpu in gpus for process in gpu.processes]
    for gpu, process in running:
        memory = f"{process.get('memory_used_mib', 0)}MiB"
        name = _shortened(str(process.get("name", "unknown")), 34)
        lines.append(f"| {gpu.index:4d}   N/A  N/A {process.get('pid', 0):16d}      C   {name:34s} {memory:>10s} |")
    if not running:
        lines.append("|  No running processes found".ljust(90) + "|")
    return "\n".join([*lines, wide, ""])


def _shortened(name: str, width: int) -> str:
    """Shorten a name so that it fits and still says that it is simulated."""
    if len(name) <= width:
        return name
    end = SIMULATED if name.endswith(SIMULATED) else ""
    return name[: width - 3 - len(end)] + "..." + end


def details(gpu: Gpu) -> list[tuple[str, Any]]:
    """Return what -q shows of a GPU: the title, and the value or what is inside.

    The element in XML is the title in lower case with underscores, or what follows `|`.
    """
    return [
        ("Product Name", gpu.name),
        ("Product Brand", "NVIDIA"),
        ("Display Active", "Disabled"),
        ("Persistence Mode", "Enabled"),
        ("Serial Number|serial", gpu.serial),
        ("GPU UUID|uuid", gpu.uuid),
        ("Minor Number", gpu.index),
        ("VBIOS Version", "simulated"),
        ("GPU Virtualization Mode", [("Virtualization Mode", "Pass-Through")]),
        (
            "PCI",
            [
                ("Bus|pci_bus", "0x00"),
                ("Device|pci_device", "0x00"),
                ("Domain|pci_domain", f"0x{gpu.index + 1:04X}"),
                ("Device Id|pci_device_id", gpu.device),
                ("Bus Id|pci_bus_id", gpu.bus),
            ],
        ),
        ("Fan Speed", "N/A"),
        ("Performance State", gpu.state),
        (
            "FB Memory Usage",
            [
                ("Total", f"{gpu.total} MiB"),
                ("Reserved", "0 MiB"),
                ("Used", f"{gpu.used} MiB"),
                ("Free", f"{gpu.total - gpu.used} MiB"),
            ],
        ),
        ("Compute Mode", "Default"),
        (
            "Utilization",
            [
                ("GPU|gpu_util", f"{gpu.utilization} %"),
                ("Memory|memory_util", f"{gpu.memory_utilization} %"),
                ("Encoder|encoder_util", "0 %"),
                ("Decoder|decoder_util", "0 %"),
            ],
        ),
        ("Temperature", [("GPU Current Temp|gpu_temp", f"{gpu.temperature} C")]),
        (
            "GPU Power Readings",
            [("Power Draw", f"{gpu.draw:.2f} W"), ("Current Power Limit", f"{gpu.limit:.2f} W")],
        ),
        ("Clocks", _clocks(gpu.sm, gpu.memory)),
        ("Max Clocks", _clocks(gpu.max_sm, gpu.max_memory)),
        ("Processes", [("Process|process_info", _process_details(process)) for process in gpu.processes]),
    ]


def _clocks(sm: int, memory: int) -> list[tuple[str, Any]]:
    return [
        ("Graphics|graphics_clock", f"{sm} MHz"),
        ("SM|sm_clock", f"{sm} MHz"),
        ("Memory|mem_clock", f"{memory} MHz"),
    ]


def _process_details(process: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        ("Process ID|pid", process.get("pid", 0)),
        ("Type", "C"),
        ("Name|process_name", process.get("name", "unknown")),
        ("Used GPU Memory|used_memory", f"{process.get('memory_used_mib', 0)} MiB"),
    ]


def as_text(gpus: list[Gpu]) -> str:
    """Return what -q prints."""
    lines = ["", "==============NVSMI LOG (simulated)==============", ""]
    facts = [("Timestamp", time.ctime()), ("Driver Version", gpus[0].driver), ("CUDA Version", gpus[0].cuda)]
    lines += [f"{title:50s}: {value}" for title, value in facts]
    lines += ["", f"{'Attached GPUs':50s}: {gpus[0].count}"]
    for gpu in gpus:
        lines.append("GPU " + gpu.bus)
        lines += _text(details(gpu), "    ")
        lines.append("")
    return "\n".join(lines) + "\n"


def _text(items: list[tuple[str, Any]], indent: str) -> Iterable[str]:
    for names, value in items:
        title = names.partition("|")[0]
        if isinstance(value, list):
            yield indent + title if value else f"{indent + title:50s}: None"
            yield from _text(value, indent + "    ")
        else:
            yield f"{indent + title:50s}: {value}"


def as_xml(gpus: list[Gpu]) -> str:
    """Return what -q -x prints."""
    lines = ['<?xml version="1.0" ?>', '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">', "<nvidia_smi_log>"]
    facts = [("timestamp", time.ctime()), ("driver_version", gpus[0].driver), ("cuda_version", gpus[0].cuda)]
    lines += [f"\t<{name}>{value}</{name}>" for name, value in [*facts, ("attached_gpus", gpus[0].count)]]
    for gpu in gpus:
        lines.append(f'\t<gpu id="{gpu.bus}">')
        lines += _xml(details(gpu), "\t\t")
        lines.append("\t</gpu>")
    return "\n".join([*lines, "</nvidia_smi_log>", ""])


def _xml(items: list[tuple[str, Any]], indent: str) -> Iterable[str]:
    for names, value in items:
        element = names.rpartition("|")[2].lower().replace(" ", "_")
        if isinstance(value, list):
            yield f"{indent}<{element}>"
            yield from _xml(value, indent + "\t")
            yield f"{indent}</{element}>"
        else:
            escaped = str(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            yield f"{indent}<{element}>{escaped}</{element}>"


def read_options(arguments: list[str]) -> Options:
    """Parse the command line; long options take their value after `=` or as the next word."""
    options = Options()
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in FLAGS and not equals:
            setattr(options, FLAGS[name], True)
        elif name in ("-l", "--loop"):
            if not equals:
                value = rest.pop(0) if rest and rest[0].isdigit() else "5"
            options.loop_seconds = _number(name, value)
        elif name in VALUED:
            if not equals and not rest:
                raise SmiError(f"Option {name} requires a value. Please run 'nvidia-smi -h' for help.\n", INVALID)
            attribute, read = VALUED[name]
            setattr(options, attribute, read(value if equals else rest.pop(0)))
        else:
            text = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"
            raise SmiError(text, INVALID)
    if (options.query_gpu or options.query_apps) and "csv" not in options.format:
        raise SmiError("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n", INVALID)
    return options


def _number(name: str, value: str) -> float:
    try:
        return max(float(value), 0.001)
    except ValueError:
        raise SmiError(f'"{value}" is not a valid value for "{name}".\n', INVALID) from None


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


FLAGS = {
    **dict.fromkeys(("-L", "--list-gpus"), "list"),
    **dict.fromkeys(("-q", "--query"), "query"),
    **dict.fromkeys(("-x", "--xml-format"), "xml"),
    **dict.fromkeys(("-h", "--help"), "help"),
    "--version": "version",
}
# Attribute of the options, and how its value is read.
VALUED: dict[str, tuple[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("-i", "--id"), ("ids", _words)),
    **dict.fromkeys(("-f", "--filename"), ("filename", str)),
    **dict.fromkeys(("-d", "--display"), ("display", str)),
    **dict.fromkeys(("-lms", "--loop-ms"), ("loop_seconds", lambda value: _number("--loop-ms", value) / 1000)),
    "--query-gpu": ("query_gpu", str),
    "--query-compute-apps": ("query_apps", str),
    "--format": ("format", _words),
}


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _read_load() -> dict[str, Any]:
    try:
        text = _read(os.path.join(RUN, "gpu-load.json"))
    except OSError:
        return {}
    import json

    try:
        load = json.loads(text)
    except ValueError:  # a job is just writing it
        return {}
    return load if isinstance(load, dict) else {}


def read_gpus(ids: list[str]) -> list[Gpu]:
    """Return the requested GPUs in their current state."""
    facts = dict(line.split("=", 1) for line in _read(os.path.join(HERE, "nvidia-smi.facts")).splitlines())
    count = int(facts["count"])
    if os.path.exists(os.path.join(RUN, "driver-refused")):
        raise SmiError(NO_DRIVER, NOT_LOADED)
    gone = os.path.join(RUN, "gpu-gone")
    if os.path.exists(gone):
        # One of the real tool's words for a GPU that fell off the bus; a file that says `none` has the other.
        if _read(gone).strip() == "none":
            raise SmiError("No devices were found\n", NOT_FOUND)
        raise SmiError("Unable to determine the device handle for GPU0000:00:00.0: Unknown Error\n", INTERNAL)
    load = _read_load()
    gpus = [Gpu(facts, load, index) for index in range(count)]
    chosen = [gpu for gpu in gpus if not ids or {str(gpu.index), gpu.uuid, gpu.serial, gpu.bus} & set(ids)]
    if not chosen:
        raise SmiError("No devices were found\n", NOT_FOUND)
    return chosen


def answer(options: Options) -> str:
    """Return what the tool prints once."""
    gpus = read_gpus(options.ids)
    if options.version:
        versions = [("NVIDIA-SMI version", gpus[0].driver + SIMULATED), ("DRIVER version", gpus[0].driver)]
        return "".join(f"{title:20s}: {value}\n" for title, value in [*versions, ("CUDA Version", gpus[0].cuda)])
    if options.list:
        return "".join(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})\n" for gpu in gpus)
    if options.query_gpu:
        rows = [gpu_fields(gpu) for gpu in gpus]
        return csv(options.query_gpu, rows, rows[0], options.format)
    if options.query_apps:
        rows = [app_fields(gpu, process) for gpu in gpus for process in gpu.processes]
        return csv(options.query_apps, rows, app_fields(gpus[0], {}), options.format)
    if options.query or options.xml:
        return as_xml(gpus) if options.xml else as_text(gpus)
    return table(gpus)


def main(arguments: list[str]) -> int:
    """Print once, or repeatedly until interrupted, and return the exit code."""
    try:
        options = read_options(arguments)
        if options.help:
            sys.stdout.write(f"{__doc__}\nOptions: -L -q -x -i -l -lms -f --query-gpu --query-compute-apps --format\n")
            return 0
        output = open(options.filename, "w") if options.filename else sys.stdout  # noqa: SIM115
        while True:
            output.write(answer(options))
            output.flush()
            if not options.loop_seconds:
                return 0
            time.sleep(options.loop_seconds)
            # The header is for the first round only.
            options.format = [*options.format, "noheader"]
    except SmiError as error:
        # The real tool prints its errors on standard output.
        sys.stdout.write(error.text + ("\n" if error.code == INVALID else ""))
        return error.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader is gone; keep Python from reporting that at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
