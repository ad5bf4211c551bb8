"""The verdict about frameworks, from what they report."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.target import GpuFacts
from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.environment.framework_check import (
    MARK,
    SCRIPT,
    FrameworkReport,
    judge,
    key_of,
    read_reports,
)
from gpuinfra.runner.sources.requirements_file import read_requirements
from gpuinfra.workbench.cuda import torch_build

T4 = GpuFacts(
    models=("Tesla T4",), driver="535.161.08", memory_mib=(15360,), compute_capabilities=("7.5",), cuda="12.2"
)
RTX = replace(T4, compute_capabilities=("12.0",), driver="580.1", cuda="13.0")
TORCH = FrameworkReport("torch", "2.5.1+cu124", (12, 4), is_for_gpu=True, sees=True, ran=True, archs=("sm_70", "sm_75"))


def verdict(facts: GpuFacts = T4, report: FrameworkReport = TORCH, **changes: Any) -> Diagnostic | None:
    problem = judge([replace(report, ran=False, **changes)], facts, None)
    return problem.diagnostics[0] if problem else None


def test_working_framework_passes() -> None:
    assert judge([TORCH], T4, None) is None


@pytest.mark.parametrize(
    ("facts", "changes", "cause", "fix"),
    [
        (T4, {"version": "2.5.1+cpu", "cuda": None, "is_for_gpu": False, "sees": False},
         "PyTorch 2.5.1+cpu is a build for the CPU", "`torch==2.5.1+cu121`"),
        (RTX, {"version": "2.5.1+cpu", "cuda": None, "is_for_gpu": False, "sees": False},
         "is a build for the CPU", "`torch==2.9.0+cu130`"),
        (T4, {"version": "2.9.0+cu130", "cuda": (13, 0), "sees": False},
         "is built for CUDA 13.0, which is newer than the driver", "`torch==2.9.0+cu126`"),
        (T4, {"sees": False, "error": "The NVIDIA driver on your system is too old"},
         "is built for CUDA 12.4, which is newer than the driver", "`torch==2.5.1+cu121`"),
        (T4, {"error": "CUDA error: no kernel image is available for execution on the device"},
         "is not built for the GPU's compute capability 7.5", "`torch==2.5.1+cu121`"),
        (RTX, {"archs": ("sm_80", "sm_90")}, "compute capability 12.0; it is built for sm_80",
         "`torch==2.9.0+cu130`"),
        (T4, {"error": "RuntimeError: out of memory"}, "cannot use the GPU; the driver 535.161.08 supports CUDA 12.2; ",
         ""),
        (T4, {"sees": False}, "sees no GPU, but `nvidia-smi` does", ""),
        (T4, {"version": "", "error": "ImportError: libcudart.so"}, "`import torch` fails", "install a build"),
    ],
)  # fmt: skip
def test_cause_and_line_to_change(facts: GpuFacts, changes: dict[str, Any], cause: str, fix: str) -> None:
    found = verdict(facts, **changes)
    assert found
    assert found.code is Code.NO_GPU
    assert cause in str(found.note)
    assert fix in str(found.help)


@pytest.mark.parametrize(
    ("name", "version", "facts", "fix"),
    [
        ("tensorflow", "2.18.0", T4, "write `tensorflow[and-cuda]==2.18.0`"),
        ("jax", "0.6.0", T4, "write `jax[cuda12]==0.6.0`"),
        ("jax", "0.8.0", RTX, "write `jax[cuda13]==0.8.0`"),
    ],
)
def test_other_frameworks_have_their_own_line(name: str, version: str, facts: GpuFacts, fix: str) -> None:
    found = verdict(facts, FrameworkReport(name, version))
    assert found
    assert found.help == fix


def test_simulated_gpu_is_no_reason_to_stop() -> None:
    simulated = replace(T4, simulated=True)
    assert verdict(simulated, sees=False) is None
    assert verdict(simulated, sees=False, is_for_gpu=False), "but a build for the CPU is"
    assert verdict(simulated, sees=False, cuda=(13, 0))


def test_line_in_the_file_is_shown(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\ntorch==2.5.1+cpu\n")
    packages = read_requirements(tmp_path, "requirements.txt")
    problem = judge([replace(TORCH, ran=False, is_for_gpu=False)], T4, packages)
    assert problem
    (found,) = problem.diagnostics
    assert found.span
    assert (found.span.line, found.span.text) == (2, "torch==2.5.1+cpu")
    assert found.label == "PyTorch 2.5.1+cu124 is a build for the CPU"


@pytest.mark.parametrize(
    ("version", "driver", "capability", "found"),
    [
        ("2.7.1", (12, 2), "7.5", ("2.7.1", (11, 8))),
        ("2.8.0", (12, 2), "7.5", ("2.8.0", (12, 6))),
        ("2.8.0", (11, 8), "8.0", ("2.7.0", (11, 8))),
        ("2.6.0", (12, 8), "12.0", ("2.9.0", (12, 8))),
        ("3.0.0", None, None, ("2.9.0", (12, 6))),
        ("2.9.0", (10, 2), "7.5", None),
    ],
)
def test_build_of_torch_fits_driver_and_gpu(
    version: str,
    driver: tuple[int, int] | None,
    capability: str | None,
    found: tuple[str, tuple[int, int]] | None,
) -> None:
    assert torch_build(version, driver, capability) == found


def test_environment_without_python_has_no_reports() -> None:
    assert read_reports(Completed(127, "", "python: not found")) == []
    assert read_reports(Completed(0, f'\n{MARK}[1, {{"name": "x"}}]', "")) == []


@pytest.mark.parametrize("output", ["", "Segmentation fault", f"\n{MARK}", f"\n{MARK}[", f"\n{MARK}{{}}"])
def test_crash_of_the_check_stops_the_run(output: str) -> None:
    with pytest.raises(Problem, match="unknown whether") as caught:
        read_reports(Completed(139, output, ""))
    assert "exit code 139" in str(caught.value.diagnostics[0].note)


def test_script_reports_what_is_installed() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert read_reports(Completed(0, done.stdout, done.stderr)) == []


def test_reports_follow_other_output() -> None:
    said = json.dumps([{"name": "torch", "version": "2.0", "cuda": "12.1", "sees": True, "ran": True}])
    (found,) = read_reports(Completed(0, f"a warning\n\n{MARK}{said}\n", ""))
    assert found == FrameworkReport("torch", "2.0", (12, 1), is_for_gpu=True, sees=True, ran=True)


def test_another_driver_or_environment_is_checked_again() -> None:
    keys = {key_of("a", T4, {}), key_of("b", T4, {}), key_of("a", RTX, {}), key_of("a", T4, {"A": "1"})}
    assert len(keys) == 4
