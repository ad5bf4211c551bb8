"""The second part of the GPU check: frameworks in the finished environment must see the GPU, and run a kernel on it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuinfra.diagnostics import Code, Diagnostic, Problem, problem
from gpuinfra.models.target import GpuFacts
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.nvidia_smi import NOT_FOUND
from gpuinfra.workbench.conda import Conda, Installer, normal
from gpuinfra.workbench.cuda import Cuda, parse_cuda, shown, torch_build

# Frameworks take seconds to import from a cold disk.
SECONDS = 300.0
MARK = "@@gpuinfra frameworks "
# Increase this for a change of what is checked: environments that passed are not checked again.
VERSION = 1
# Variables that decide what a framework sees.
VARIABLES = ("CUDA_", "NVIDIA_", "TF_", "XLA_", "JAX_", "PYTORCH_", "LD_LIBRARY_PATH")
# Of the secret ones only these: NVIDIA_API_KEY and TF_VAR_password must be in no process list. An `--env-file` may have
# the others.
OPEN_SECRETS = frozenset(
    {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES"}
    | {"LD_LIBRARY_PATH", "XLA_FLAGS", "JAX_PLATFORMS", "PYTORCH_CUDA_ALLOC_CONF"}
)
NAMES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}
_MAX_ERROR = 300

# For any Python 3. A framework that is not installed costs nothing.
SCRIPT = f"""
import json, os
try:
    import importlib.util
except ImportError:  # a Python that no framework supports
    print("\\n" + {MARK!r} + "[]")
    raise SystemExit
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_FORCE_GPU_ALLOW_GROWTH="true", XLA_PYTHON_CLIENT_PREALLOCATE="false")

def check_torch(found):
    import torch
    found.update(version=str(torch.__version__), cuda=torch.version.cuda or getattr(torch.version, "hip", None))
    found["sees"] = bool(torch.cuda.is_available() and torch.cuda.device_count())
    if found["sees"]:
        found["archs"] = list(torch.cuda.get_arch_list())
        ones = torch.ones(8, device="cuda")
        found["ran"] = float((ones + ones).sum().item()) == 16

def check_tensorflow(found):
    import tensorflow as tf
    found.update(version=str(tf.__version__))
    if tf.test.is_built_with_cuda() or tf.test.is_built_with_gpu_support():
        found["cuda"] = str(tf.sysconfig.get_build_info().get("cuda_version") or "?")
    found["sees"] = bool(tf.config.list_physical_devices("GPU"))
    if found["sees"]:
        with tf.device("/GPU:0"):
            found["ran"] = float(tf.reduce_sum(tf.ones(8) + tf.ones(8))) == 16

def check_jax(found):
    import jax
    found.update(version=str(jax.__version__))
    for major in ("13", "12", "11"):
        if importlib.util.find_spec("jax_cuda%s_plugin" % major):
            found["cuda"] = major + ".0"
            break
    try:
        devices = jax.devices("gpu")
    except RuntimeError as error:
        devices, found["error"] = [], str(error)
    found["sees"] = bool(devices)
    if devices:
        import jax.numpy
        with jax.default_device(devices[0]):
            found["ran"] = float((jax.numpy.ones(8) + jax.numpy.ones(8)).sum()) == 16

reports = []
for name, check in (("torch", check_torch), ("tensorflow", check_tensorflow), ("jax", check_jax)):
    try:
        if importlib.util.find_spec(name) is None:
            continue
    except (ImportError, ValueError):
        continue
    found = {{"name": name}}
    try:
        check(found)
    except Exception as error:
        found["error"] = "%s: %s" % (type(error).__name__, error)
    reports.append(found)
print()
print({MARK!r} + json.dumps(reports))
"""


@dataclass(frozen=True, slots=True)
class FrameworkReport:
    """What a framework says about itself and the GPU."""

    name: str
    version: str = ""
    cuda: Cuda | None = None
    """The CUDA version that it is built for."""
    is_for_gpu: bool = False
    sees: bool = False
    ran: bool = False
    """Whether a kernel gave the right result."""
    archs: tuple[str, ...] = ()
    """The compute capabilities that it is built for, such as `sm_75`; empty if it does not say."""
    error: str = ""

    @property
    def title(self) -> str:
        """Its name and version."""
        return f"{NAMES[self.name]} {self.version}".strip()


def key_of(environment: str, facts: GpuFacts, variables: Mapping[str, str]) -> str:
    """Return what decides the result: environment, GPU, driver and variables."""
    gpu = [facts.driver, facts.cuda, facts.models, facts.uuids, facts.compute_capabilities]
    text = json.dumps([VERSION, environment, gpu, sorted(variables.items())])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def read_reports(done: Completed) -> list[FrameworkReport]:
    """Return the reports in the script's output; none if there is no Python. Raise Problem if the script crashed."""
    _, mark, rest = done.stdout.rpartition(f"\n{MARK}")
    try:
        found = json.loads(rest) if mark or done.exit_code not in NOT_FOUND else []
    except ValueError:
        found = None
    if not isinstance(found, list):
        output = " ".join(f"{done.stdout} {done.stderr}".split())[-_MAX_ERROR:]
        note = f"the check of the frameworks in the environment ended with exit code {done.exit_code}: {output}"
        help_line = "import PyTorch, TensorFlow or JAX in the environment, to see which one fails"
        raise problem(Code.NO_GPU, "unknown whether the job can use the GPU", note, help_line)
    return [_report(each) for each in found if isinstance(each, dict) and each.get("name") in NAMES]


def _report(found: dict[str, Any]) -> FrameworkReport:
    archs = found.get("archs")
    return FrameworkReport(
        found["name"],
        str(found.get("version") or ""),
        parse_cuda(str(found.get("cuda") or "")),
        bool(found.get("cuda")),
        found.get("sees") is True,
        found.get("ran") is True,
        tuple(map(str, archs)) if isinstance(archs, list) else (),
        " ".join(str(found.get("error") or "").split())[-_MAX_ERROR:],
    )


def judge(reports: Sequence[FrameworkReport], facts: GpuFacts, packages: Conda | None) -> Problem | None:
    """Return the Problem for frameworks that do not use the GPU, with the line to change, or None."""
    found = [diagnostic for each in reports if (diagnostic := _diagnose(each, facts, packages))]
    return Problem(*found) if found else None


def _diagnose(report: FrameworkReport, facts: GpuFacts, packages: Conda | None) -> Diagnostic | None:
    driver = parse_cuda(facts.cuda or "")
    capability = next((each for each in facts.compute_capabilities if each), None)
    supports = f"the driver {facts.driver} supports CUDA {shown(driver)}" if driver else f"the driver is {facts.driver}"
    if report.ran:
        return None
    if not report.version:
        label = f"`import {report.name}` fails in the environment"
        return _diagnostic(report, packages, label, report.error, "install a build for the environment's Python")
    if not report.is_for_gpu:
        label, note = f"{report.title} is a build for the CPU", f"the machine has a GPU, and {supports}"
    elif _is_newer(report, driver):
        label, note = f"{report.title} is built for a CUDA that is newer than the driver", supports
        label = label.replace("a CUDA that", f"CUDA {shown(report.cuda)}, which") if report.cuda else label
    elif report.sees and capability and _lacks(report, capability):
        label = f"{report.title} is not built for the GPU's compute capability {capability}"
        note = f"it is built for {', '.join(report.archs)}" if report.archs else report.error
    elif facts.simulated and not report.sees:
        return None  # a real framework cannot use it
    else:
        label = f"{report.title} {'cannot use the GPU' if report.sees else 'sees no GPU, but `nvidia-smi` does'}"
        note = f"{supports}; {report.error}" if report.error else supports
    return _diagnostic(report, packages, label, note, _fix(report, driver, capability))


def _is_newer(report: FrameworkReport, driver: Cuda | None) -> bool:
    """Return whether the driver is too old. Within a major version of CUDA, it may be older if the framework runs."""
    if not driver or not report.cuda:
        return False
    return report.cuda[0] > driver[0] or ("driver" in report.error and report.cuda > driver)


def _lacks(report: FrameworkReport, capability: str) -> bool:
    return "no kernel image" in report.error or (bool(report.archs) and not _is_built_for(capability, report.archs))


def _is_built_for(capability: str, archs: Sequence[str]) -> bool:
    """Return whether code for one of these runs on the GPU: of its major version, or compiled at run time."""
    major, _, minor = capability.partition(".")
    own = int(major) * 10 + int(minor or 0)
    for each in archs:
        found = re.match(r"(sm|compute)_(\d+)", each)
        number = int(found[2]) if found else 0
        if found and number <= own and (found[1] == "compute" or number // 10 == int(major)):
            return True
    return False


def _fix(report: FrameworkReport, driver: Cuda | None, capability: str | None) -> str:
    public = report.version.partition("+")[0]
    if report.name == "tensorflow":
        return f"write `tensorflow[and-cuda]=={public}`"
    if report.name == "jax":
        return f"write `jax[cuda{13 if driver and driver >= (13, 0) else 12}]=={public}`"
    found = torch_build(public, driver, capability)
    if found is None:
        return "update the machine's driver: no published build of PyTorch fits it and the GPU"
    version, cuda = found
    tag = f"cu{cuda[0]}{cuda[1]}"
    return f"write `torch=={version}+{tag}`, and the line `--extra-index-url https://download.pytorch.org/whl/{tag}`"


def _diagnostic(report: FrameworkReport, packages: Conda | None, label: str, note: str, help_line: str) -> Diagnostic:
    summary = f"{NAMES[report.name]} would not use the GPU"
    span = None
    for package in packages.packages if packages else ():
        if package.by is Installer.PIP and normal(package.name).partition("-")[0] == report.name:
            span = packages.document.span(package.node) if packages else None
            break
    if span:
        return Diagnostic(Code.NO_GPU, summary, span, label, note, help_line)
    return Diagnostic(Code.NO_GPU, summary, note=f"{label}; {note}", help=help_line)
