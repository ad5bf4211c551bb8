"""The output of `nvidia-smi`."""

from collections.abc import Sequence

import pytest

from gpuinfra.runner.connection.port import Completed
from gpuinfra.runner.nvidia_smi import MARK, SCRIPT, NoGpuError, ask, diagnosis, parse

BY_SH = ("sh", "-c", SCRIPT, "sh")


class Machine:
    """Returns one answer after the other."""

    def __init__(self, *answers: Completed) -> None:
        self.answers = list(answers)
        self.commands: list[Sequence[str] | str] = []

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        self.commands.append(command)
        return self.answers.pop(0)

    def close(self) -> None:
        pass


def test_single_gpu_is_parsed() -> None:
    facts = parse("Tesla T4, 535.161.08, 15360 MiB, 7.5\n")
    assert facts is not None
    assert facts.summary == "Tesla T4, 15360 MiB, driver 535.161.08"
    assert facts.as_json() == {
        "count": 1,
        "models": ["Tesla T4"],
        "driver": "535.161.08",
        "memoryMiB": [15360],
        "computeCapabilities": ["7.5"],
        "simulated": False,
    }


def test_simulated_gpus_are_recognized() -> None:
    facts = parse("NVIDIA A100 80GB PCIe (simulated), 550.90.07, 81920 MiB, 8.0\n" * 4)
    assert facts is not None
    assert facts.simulated
    assert facts.summary == "4 NVIDIA A100 80GB PCIe (simulated), 81920 MiB, driver 550.90.07"


def test_unknown_values_are_left_out() -> None:
    facts = parse("Tesla M60, 470.1, [N/A]\n")
    assert facts is not None
    assert (facts.memory_mib, facts.compute_capabilities) == ((None,), (None,))
    assert facts.summary == "Tesla M60, driver 470.1"


@pytest.mark.parametrize("output", ["", "\n", "No devices were found\n", "a, b\n", "a, b, c, d, e\n"])
def test_other_output_raises_no_gpu_error(output: str) -> None:
    assert parse(output) is None
    with pytest.raises(NoGpuError):
        ask(Machine(Completed(0, output, "")), 1)


def test_old_drivers_are_queried_without_compute_capability() -> None:
    machine = Machine(
        Completed(2, 'Field "compute_cap" is not a valid field to query.\n\n', ""),
        Completed(0, "Tesla T4, 450.1, 15109 MiB\n", ""),
    )
    assert ask(machine, 1).driver == "450.1"
    assert machine.commands == [
        [*BY_SH, "nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader"],
        [*BY_SH, "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
    ]


def test_output_before_the_mark_is_ignored() -> None:
    greeting, row = "Quadro, 1.0, 5 MiB\nbash: fortune: command not found\n", "Tesla T4, 450.1, 15109 MiB\n"
    assert ask(Machine(Completed(0, f"{greeting}{MARK}\n{row}", "")), 1).models == ("Tesla T4",)
    with pytest.raises(NoGpuError, match=r"^nvidia-smi exited with code 3 and printed: nothing$"):
        ask(Machine(Completed(3, f"{greeting}{MARK}\n", greeting)), 1)


@pytest.mark.parametrize("memory", ["9" * 5000 + " MiB", "many MiB", "15360", "", "\N{ARABIC-INDIC DIGIT ONE} MiB"])
def test_invalid_memory_is_not_a_gpu(memory: str) -> None:
    assert parse(f"Tesla T4, 450.1, {memory}, 7.5\n") is None


@pytest.mark.parametrize(
    ("done", "cause"),
    [
        (Completed(127, "", "bash: line 1: nvidia-smi: command not found\n"), "nvidia-smi is not installed"),
        (Completed(6, "No devices were found\n", ""), "the NVIDIA driver finds no GPU"),
        (Completed(255, "Unable to determine the device handle for GPU0: x\n", ""), "the GPU has fallen off the bus"),
        (Completed(18, "Failed to initialize NVML: Driver/library version mismatch\n", ""), "the NVIDIA driver was"),
        (Completed(3, "", ""), "nvidia-smi exited with code 3 and printed: nothing"),
    ],
)
def test_known_error_is_explained(done: Completed, cause: str) -> None:
    assert diagnosis(done).startswith(cause)
    assert f"exited with code {done.exit_code} and printed: " in diagnosis(done)


def test_long_output_is_shortened_to_one_line() -> None:
    said = diagnosis(Completed(1, "line\n" * 1000, "error\n"))
    assert "\n" not in said
    assert len(said) < 400
