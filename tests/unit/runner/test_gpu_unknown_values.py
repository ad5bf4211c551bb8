"""GPUs for which `nvidia-smi` prints `[N/A]`, such as RTX PRO 6000 for some fields."""

from pathlib import Path

import pytest

from gpuinfra.models.run import GpuUsage
from gpuinfra.remote import samples
from gpuinfra.runner.nvidia_smi import parse
from gpuinfra.views.runs import usage_words

UNKNOWN = ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]"]


@pytest.mark.parametrize("word", UNKNOWN)
def test_unknown_memory_and_capability_are_none(word: str) -> None:
    found = parse(f"NVIDIA RTX PRO 6000 Blackwell DC-4-96Q, 580.65.06, {word}, {word}\n")
    assert found is not None
    assert (found.memory_mib, found.compute_capabilities) == ((None,), (None,))


@pytest.mark.parametrize("word", UNKNOWN)
def test_sample_without_memory_counts(tmp_path: Path, word: str) -> None:
    line = samples._parse_output(f"0, 35, {word}".encode())
    assert line
    (tmp_path / "samples").write_bytes(line)
    found = samples.summary(str(tmp_path / "samples"))
    assert (found["samples"], found["peakUtilization"], found["peakMemoryMib"]) == (1, 35, None)
    assert samples.busy_ago(str(tmp_path / "samples")) is not None


def test_peak_memory_ignores_gpus_without_a_value(tmp_path: Path) -> None:
    (tmp_path / "samples").write_text("100 0 35 -\n100 1 20 300\n")
    assert samples.summary(str(tmp_path / "samples"))["peakMemoryMib"] == 300


@pytest.mark.parametrize("word", UNKNOWN)
def test_sample_without_utilization_is_ignored(word: str) -> None:
    assert samples._parse_output(f"0, {word}, 1234".encode()) is None


def test_unknown_memory_is_shown_as_a_dash() -> None:
    assert usage_words(GpuUsage(3, 4.0, 90, 60.0, None)) == "peak 90 %, mean 60 %, at most - MiB, 3 samples"
