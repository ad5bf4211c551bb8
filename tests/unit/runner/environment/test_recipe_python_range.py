"""The versions of Python that a conda file accepts."""

import pytest

from gpuinfra.parse.document import read_document
from gpuinfra.runner.environment.recipe import MAX_PYTHON, MIN_PYTHON, PythonRange, python_range
from gpuinfra.workbench.conda import Conda, read_conda


def conda_of(*lines: str) -> Conda:
    text = "dependencies:\n" + "".join(f'  - "{line}"\n' for line in lines)
    return read_conda("conda.yml", read_document("conda.yml", text.encode()))[0]


@pytest.mark.parametrize(
    ("line", "first", "end"),
    [
        ("python=3.5.2", 3_005_002, 3_005_003),
        ("python=3.6", 3_006_000, 3_007_000),
        ("python==3.6", 3_006_000, 3_007_000),
        ("python 3.6", 3_006_000, 3_007_000),
        ("python=3.6.*", 3_006_000, 3_007_000),
        ("python=3.6.8=h0371630_0", 3_006_008, 3_006_009),
        ("conda-forge::python=3", 3_000_000, 4_000_000),
        ("python=2.7", 2_007_000, 2_008_000),
        ("python>=3.6", 3_006_000, MAX_PYTHON),
        ("python >=3.6,<3.9", 3_006_000, 3_009_000),
        ("python>3.6.1, <=3.9", 3_006_002, 3_009_001),
        ("python<3.9", MIN_PYTHON, 3_009_000),
    ],
)
def test_version_is_a_range_of_numbers(line: str, first: int, end: int) -> None:
    assert python_range(conda_of(line)) == PythonRange(line, first, end)


@pytest.mark.parametrize("lines", [(), ("python",), ("numpy=1.13",)])
def test_file_without_a_version_accepts_any(lines: tuple[str, ...]) -> None:
    assert python_range(conda_of(*lines)) == PythonRange("", MIN_PYTHON, MAX_PYTHON)


@pytest.mark.parametrize(
    "line", ["python=3.6|3.7", "python!=3.7", "python[version='>=3.6']", "python~=3.6", "python=*"]
)
def test_complex_requirements_are_left_to_conda(line: str) -> None:
    assert not python_range(conda_of(line)).is_understood


def test_single_version_has_its_own_program_name() -> None:
    assert python_range(conda_of("python=3.5.2")).names == ("python", "python3", "python3.5")
    assert python_range(conda_of("python=3.12")).names[-1] == "python3.12"
    assert python_range(conda_of("python>=3.6")).names == ("python", "python3")
