"""A fake of NVIDIA's part of a machine: `nvidia-smi` on the host, and the hook that adds it to containers.

All output says `simulated`. It answers `--query-gpu=…`, `-q -x`, `-L`, `-l` and `-lms`, in any image: its interpreter
is included. Load and failures of the GPUs can be changed at any time, also in running containers.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real import program

HOOK = "nvidia-container-runtime-hook"
MODEL, DRIVER, CUDA, MEMORY_MIB, CAPABILITY = "Tesla T4 (simulated)", "535.161.08", "12.2", 15360, "7.5"

HOST, CONTAINER = "host", "container"
# Failures, and how the real tool and the real hook report them.
NO_DRIVER, NO_DEVICES, MISMATCH, UNKNOWN_ERROR = "no-driver", "no-devices", "mismatch", "unknown-error"
NOT_INSTALLED = "not-installed"

# The path of the folder in a container.
INSIDE = "/usr/local/nvidia-stand-in"

ANSWER = r"""
here=$1; place=$2; shift 2
interpreter=$here/busybox
read -r failure < "$here/failure.$place"
case $failure in
no-driver)
    echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest" \
        "NVIDIA driver is installed and running."
    exit 9 ;;
no-devices) echo "No devices were found"; exit 6 ;;
mismatch) echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18 ;;
unknown-error) echo "Failed to initialize NVML: Unknown Error"; exit 255 ;;
not-installed) echo "sh: nvidia-smi: not found" >&2; exit 127 ;;
esac

fields= style= mode=table seconds=
while [ $# -gt 0 ]; do
    case $1 in
    --query-gpu=*) fields=${1#*=} mode=csv ;;
    --format=*) style=${1#*=} ;;
    -q | -x) mode=xml ;;
    -L) mode=list ;;
    -l) seconds=$2; shift ;;
    -lms) seconds=$("$interpreter" awk "BEGIN { print $2 / 1000 }"); shift ;;
    --loop=*) seconds=${1#*=} ;;
    --loop-ms=*) seconds=$("$interpreter" awk "BEGIN { print ${1#*=} / 1000 }") ;;
    -i) only=$2; shift ;;
    *) echo "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."; echo; exit 2 ;;
    esac
    shift
done

visible=$("$interpreter" cat "$here/gpus")
[ "$place" = host ] || visible=$("$interpreter" cat /etc/nvidia-stand-in)
[ -z "$only" ] || visible=$(echo "$only" | "$interpreter" tr , " ")

load() {
    utilization=0 used=0
    file=$here/load
    [ ! -e "$file.$1" ] || file=$file.$1
    read -r utilization used < "$file"
    clock=300
    [ "$utilization" = 0 ] || clock=1590
}

value() {
    case $2 in
    index) cell=$1 unit= ;;
    count) cell=$(echo $visible | "$interpreter" wc -w) unit= ;;
    name | gpu_name) cell=@MODEL unit= ;;
    uuid | gpu_uuid) cell=GPU-00000000-0000-4000-8000-00000000000$1 unit= ;;
    driver_version) cell=@DRIVER unit= ;;
    compute_cap) cell=@CAPABILITY unit= ;;
    pci.bus_id | gpu_bus_id) cell=0000000$(($1 + 1)):00:00.0 unit= ;;
    memory.total) cell=@MEMORY unit=" MiB" ;;
    memory.used) cell=$used unit=" MiB" ;;
    memory.free) cell=$((@MEMORY - used)) unit=" MiB" ;;
    utilization.gpu) cell=$utilization unit=" %" ;;
    utilization.memory) cell=$((utilization / 2)) unit=" %" ;;
    clocks.sm | clocks.gr | clocks.current.sm | clocks.current.graphics) cell=$clock unit=" MHz" ;;
    clocks.max.sm | clocks.max.gr | clocks.max.graphics) cell=1590 unit=" MHz" ;;
    timestamp) cell=$("$interpreter" date +"%Y/%m/%d %H:%M:%S.000") unit= ;;
    *) printf 'Field "%s" is not a valid field to query.\n\n' "$2"; exit 2 ;;
    esac
}

csv() {
    for gpu in $visible; do
        load "$gpu"
        line=
        for field in $(echo "$fields" | "$interpreter" tr , " "); do
            value "$gpu" "$field"
            case $style in *nounits*) unit= ;; esac
            line="$line${line:+, }$cell$unit"
        done
        echo "$line"
    done
}

header() {
    case $style in *noheader*) ;; *) echo "$fields" | "$interpreter" sed 's/,/, /g' ;; esac
}

xml() {
    echo '<?xml version="1.0" ?>'
    echo '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">'
    echo '<nvidia_smi_log>'
    echo '	<driver_version>@DRIVER</driver_version>'
    echo '	<cuda_version>@CUDA</cuda_version>'
    echo "	<attached_gpus>$(echo $visible | "$interpreter" wc -w)</attached_gpus>"
    for gpu in $visible; do
        load "$gpu"
        value "$gpu" pci.bus_id; bus=$cell
        value "$gpu" uuid
        echo "	<gpu id=\"$bus\">"
        echo "		<product_name>$(echo @MODEL)</product_name><uuid>$cell</uuid>"
        echo "		<pci><pci_bus_id>$bus</pci_bus_id></pci>"
        echo "		<fb_memory_usage><total>@MEMORY MiB</total><reserved>0 MiB</reserved>"
        echo "			<used>$used MiB</used><free>$((@MEMORY - used)) MiB</free></fb_memory_usage>"
        echo "		<utilization><gpu_util>$utilization %</gpu_util></utilization>"
        echo "		<clocks><graphics_clock>$clock MHz</graphics_clock><sm_clock>$clock MHz</sm_clock></clocks>"
        echo "		<max_clocks><graphics_clock>1590 MHz</graphics_clock><sm_clock>1590 MHz</sm_clock></max_clocks>"
        echo '	</gpu>'
    done
    echo '</nvidia_smi_log>'
}

list() { for gpu in $visible; do value "$gpu" uuid; echo "GPU $gpu: $(echo @MODEL) (UUID: $cell)"; done; }

table() { echo "NVIDIA-SMI (simulated)  Driver Version: @DRIVER  CUDA Version: @CUDA"; list; }

[ "$mode" != csv ] || header
while :; do
    "$mode"
    [ -n "$seconds" ] || exit 0
    "$interpreter" sleep "$seconds" || exit 0
done
"""

HOOK_SCRIPT = r"""#!@PYTHON -IS
import json, os, subprocess, sys

HERE, INSIDE = "@HERE", "@INSIDE"
CLI = "Auto-detected mode as 'legacy'\nnvidia-container-cli: "
FAILURES = {
    "no-driver": "initialization error: nvml error: driver not loaded",
    "mismatch": "initialization error: nvml error: driver/library version mismatch",
}

def refuse(reason):
    sys.exit(CLI + reason)

def visible(wanted):
    known = open(HERE + "/gpus").read().split()
    names = {"GPU-00000000-0000-4000-8000-00000000000" + each: each for each in known}
    if wanted == "all":
        return known
    for each in wanted.split(","):
        if each not in known and each not in names:
            refuse("device error: %s: unknown device" % each)
    return [names.get(each, each) for each in wanted.split(",")]

state = json.load(sys.stdin)
with open(state["bundle"] + "/config.json") as file:
    config = json.load(file)
environment = dict(each.partition("=")[::2] for each in config["process"]["env"])
wanted = environment.get("NVIDIA_VISIBLE_DEVICES", "")
if wanted in ("", "void", "none"):
    sys.exit(0)
failure = open(HERE + "/failure.container").read().strip()
if failure in FAILURES:
    refuse(FAILURES[failure])
root = os.path.join(state["bundle"], config["root"]["path"])
os.makedirs(root + INSIDE, exist_ok=True)
os.makedirs(root + "/usr/bin", exist_ok=True)
os.makedirs(root + "/etc", exist_ok=True)
with open(root + "/etc/nvidia-stand-in", "w") as file:
    file.write(" ".join(visible(wanted)) + "\n")
mounts = [HERE, root + INSIDE]
capabilities = environment.get("NVIDIA_DRIVER_CAPABILITIES") or "compute,utility"
if {"utility", "all"} & set(capabilities.split(",")) and failure != "not-installed":
    open(root + "/usr/bin/nvidia-smi", "a").close()
    mounts += [HERE + "/inside", root + "/usr/bin/nvidia-smi"]
# As NVIDIA's own does: mount what the host has, in the container's own view of the file system.
script = 'while [ $# -gt 0 ]; do mount --bind "$1" "$2" || exit; shift 2; done'
enter = ["nsenter", "--mount=/proc/%d/ns/mnt" % state["pid"], "--", "sh", "-c", script, "sh"]
sys.exit(subprocess.call([*enter, *mounts]))
"""


class Nvidia:
    """Fake GPUs in a folder: programs for the host's PATH and for the engine's."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        self._shared = folder / "shared"
        self.programs, self.hooks = folder / "bin", folder / "hooks"
        """The folders for the PATH of a login and of the engine."""
        for each in (self._shared, self.programs, self.hooks):
            each.mkdir(parents=True)
        shutil.copy(program("busybox", "busybox-static"), self._shared / "busybox")
        (self._shared / "answer").write_text(_filled(ANSWER))
        _program(self._shared / "inside", f"#!{INSIDE}/busybox sh\n{_launcher(INSIDE, CONTAINER)}")
        _program(self.programs / "nvidia-smi", f"#!/bin/sh\n{_launcher(str(self._shared), HOST)}")
        self.count(count)
        self.load(0, 0)
        self.repair()
        self.install_hook()

    def count(self, gpus: int) -> None:
        """Set how many GPUs there are, at most ten."""
        _write(self._shared / "gpus", " ".join(str(index) for index in range(gpus)))

    def load(self, utilization: int, memory_mib: int = 0, gpu: int | None = None) -> None:
        """Set the load of all GPUs, or of one."""
        _write(self._shared / ("load" if gpu is None else f"load.{gpu}"), f"{utilization} {memory_mib}")

    def idle(self) -> None:
        """Make all GPUs idle."""
        for file in self._shared.glob("load.*"):
            file.unlink()
        self.load(0, 0)

    def fail(self, how: str, *places: str) -> None:
        """Make the GPUs fail in this way, on the host and in containers, or in one of these."""
        for place in places or (HOST, CONTAINER):
            _write(self._shared / f"failure.{place}", how)

    def repair(self) -> None:
        """Make the GPUs work again."""
        self.fail("none")

    @contextmanager
    def failing(self, how: str, *places: str) -> Iterator[None]:
        """Make the GPUs fail during the block."""
        self.fail(how, *places)
        try:
            yield
        finally:
            self.repair()

    def install_hook(self) -> None:
        """Install the hook. An engine looks for it when it starts."""
        text = HOOK_SCRIPT.replace("@PYTHON", os.path.realpath(sys.executable))
        _program(self.hooks / HOOK, text.replace("@HERE", str(self._shared)).replace("@INSIDE", INSIDE))

    def remove_hook(self) -> None:
        """Make engines that start later give no GPU to containers."""
        (self.hooks / HOOK).unlink(missing_ok=True)


def _launcher(folder: str, place: str) -> str:
    return f'exec {folder}/busybox sh {folder}/answer {folder} {place} "$@"\n'


def _filled(text: str) -> str:
    facts = {"@MODEL": f"'{MODEL}'", "@DRIVER": DRIVER, "@CUDA": CUDA, "@MEMORY": str(MEMORY_MIB)}
    for name, value in {**facts, "@CAPABILITY": CAPABILITY}.items():
        text = text.replace(name, value)
    return text


def _write(file: Path, text: str) -> None:
    """Write atomically: another process may be reading."""
    new = file.with_suffix(f"{file.suffix}.new")
    new.write_text(f"{text}\n")
    new.rename(file)


def _program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)
