"""Sizes, GPUs and variables on the command line."""

from pathlib import Path

import pytest

from gpuinfra.app.job_request import JobRequest, variables_of
from gpuinfra.cli.options import script_words
from gpuinfra.diagnostics import Code, Problem
from gpuinfra.runner.job_spec import MAX_TOTAL_BYTES, MAX_VARIABLE_BYTES, Gpus, parse_gpus, parse_size, too_large


@pytest.mark.parametrize(
    ("text", "size"),
    [("64m", 64 << 20), ("16g", 16 << 30), ("512 MiB", 512 << 20), ("2GB", 2 << 30), ("1t", 1 << 40), ("7", 7)],
)
def test_sizes_are_parsed_to_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "g", "-1g", "1.5g", "16 gold", "1e9", "9" * 40])
def test_invalid_size_is_none(text: str) -> None:
    assert parse_size(text) is None


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("all", Gpus()),
        ("ALL", Gpus()),
        ("2", Gpus(count=2)),
        ("0,1", Gpus(ids=("0", "1"))),
        ("device=0", Gpus(ids=("0",))),
        ("GPU-12ab", Gpus(ids=("GPU-12ab",))),
        ("GPU-1, GPU-2", Gpus(ids=("GPU-1", "GPU-2"))),
    ],
)
def test_gpus_are_all_a_count_or_ids(text: str, gpus: Gpus) -> None:
    assert parse_gpus(text) == gpus


@pytest.mark.parametrize("text", ["", "0", "-1", "0,0", "0,", "one", "device=", "device=x", "2.5", "0;rm"])
def test_invalid_gpus_are_none(text: str) -> None:
    assert parse_gpus(text) is None


def test_environment_and_arguments_must_fit_the_limits_of_linux() -> None:
    fits = MAX_VARIABLE_BYTES - len("A") - 2
    assert too_large({"A": "x" * fits}, ("python",)) is None
    assert "`A`" in str(too_large({"A": "x" * (fits + 1)}, ("python",)))
    assert too_large({}, ("python", "x" * (MAX_VARIABLE_BYTES + 1)))
    many = {f"V{number}": "x" * 100_000 for number in range(MAX_TOTAL_BYTES // 100_000 + 1)}
    assert "in total" in str(too_large(many, ("python",)))


def options(**given: object) -> JobRequest:
    return JobRequest(script="a.py", words=(), **given)  # type: ignore[arg-type]


def test_plain_and_secret_variables_are_separated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "t0p")
    file = tmp_path / "secrets.env"
    file.write_text("# a comment\n\nexport KEY='a=b c '\nTOKEN\nPLAIN=hidden\n")
    plain, hidden = variables_of(
        options(environment=("A=1", "B=", "PLAIN=seen"), environment_files=(file,), secrets=("TOKEN",))
    )
    assert plain == {"A": "1", "B": ""}
    assert hidden == {"KEY": "a=b c ", "TOKEN": "t0p", "PLAIN": "hidden"}


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"environment": ("A",)}, Code.USAGE),
        ({"environment": ("1A=x",)}, Code.USAGE),
        ({"secrets": ("NOT_SET_ANYWHERE",)}, Code.MISSING_SECRET),
        ({"secrets": ("A=s3cret",)}, Code.USAGE),
        ({"environment_files": (Path("/nowhere/at/all"),)}, Code.FILE_UNREADABLE),
    ],
)
def test_invalid_variable_is_reported(given: dict[str, object], code: Code) -> None:
    with pytest.raises(Problem) as caught:
        variables_of(options(**given))
    assert caught.value.diagnostics[0].code is code


@pytest.mark.parametrize("content", [b"s3cret value\n", b"A=s3cret\xff\n", b"=s3cret\n"])
def test_invalid_secrets_file_is_not_quoted_in_the_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(Problem) as caught:
        variables_of(options(environment_files=(tmp_path / "file",)))
    assert "s3cret" not in repr(caught.value.diagnostics)


def test_words_after_the_script_are_its_arguments() -> None:
    assert script_words(["--json", "-c", "x"], "run") == ("--json", "-c", "x")
    assert script_words(["--", "--sandbox"], "run") == ("--sandbox",)
    assert script_words(None, "run") == ()
    with pytest.raises(Problem, match="wrong usage"):
        script_words(["--epochs", "3", "--sandbox"], "run")
