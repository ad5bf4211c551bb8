"""A driver that works and finds no GPU: the message is about the GPU, not about `nvidia-smi`."""

from collections.abc import Sequence

import pytest

from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.gpu import diagnose
from gpuinfra.runner.nvidia_smi import PROBE_MARK, NoGpuError, ask, combine_answers, read_probe
from gpuinfra.runner.readiness import examine

NO_GPUS = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<timestamp>Tue Nov 17 12:00:00 2026</timestamp>
\t<driver_version>535.161.08</driver_version>
\t<cuda_version>12.2</cuda_version>
\t<attached_gpus>0</attached_gpus>
</nvidia_smi_log>
"""


class Machine:
    """Gives the same answer to every query for its GPUs."""

    def __init__(self, said: str, exit_code: int) -> None:
        self._gpus = Completed(exit_code, said, "")

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        del timeout
        if any("nvidia-smi" in word for word in command):
            return self._gpus
        return Completed(0, "\n@@gpuinfra system 0\nLinux 6.8 x86_64\n\n@@gpuinfra python 0\nPython 3.10.12\n", "")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("table", [Completed(6, "No devices were found\n", ""), Completed(0, "\n", ""), None])
def test_description_without_gpus_reports_the_missing_gpu(table: Completed | None) -> None:
    with pytest.raises(NoGpuError, match="the NVIDIA driver finds no GPU"):
        combine_answers(Completed(0, NO_GPUS, ""), table)


@pytest.mark.parametrize("in_container", [False, True])
def test_job_is_refused_without_a_gpu(in_container: bool) -> None:
    probe = Completed(0, f"{PROBE_MARK}\n{NO_GPUS}\n{PROBE_MARK} 0\nNo devices were found\n\n{PROBE_MARK} 6\n", "")
    with pytest.raises(NoGpuError) as caught:
        read_probe(probe)
    machine = Machine(probe.stdout, 0)
    refused = diagnose(caught.value, shell=machine, in_container=in_container, where="my_dsvm")
    assert "the NVIDIA driver on my_dsvm finds no GPU" in str(refused)
    assert "does not work" not in str(refused)
    assert "choose a VM size with a GPU" in str(refused.help)


@pytest.mark.parametrize(("said", "exit_code"), [("No devices were found\n", 6), ("", 0)])
def test_missing_gpu_differs_from_a_missing_driver(said: str, exit_code: int) -> None:
    machine = Machine(said, exit_code)
    with pytest.raises(NoGpuError, match="the NVIDIA driver finds no GPU"):
        ask(machine, 10)
    check = examine(machine, docker=False, gpu=True, timeout=10).checks[-1]
    assert "nvidia-smi` work" not in str(check.help)
    assert "lspci" in str(check.help)


def test_unreadable_description_does_not_mean_no_gpu() -> None:
    with pytest.raises(NoGpuError) as caught:
        combine_answers(Completed(0, "<?xml version='1.0'?><nvidia_smi_log><gpu>", ""), None)
    assert "finds no GPU" not in str(caught.value)
