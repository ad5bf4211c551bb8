"""The report of an engine during a build."""

import json
from collections.abc import Mapping

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.runner.docker.stream import MAX_MESSAGE
from gpuinfra.runner.environment.build import LAST_LINES, MAX_LINE, BuildOutput
from gpuinfra.runner.errors import JobError


class Recorder:
    def __init__(self, *secrets: str) -> None:
        self.lines: list[str] = []
        self.steps: list[str] = []
        self.output = BuildOutput(self.lines.append, self.steps.append, secrets)

    def add(self, *messages: Mapping[str, object]) -> "Recorder":
        for message in messages:
            self.output.add(json.dumps(message).encode() + b"\r\n")
        return self


def test_lines_are_complete_for_any_split() -> None:
    recorded = Recorder()
    whole = "".join(json.dumps({"stream": part}) + "\r\n" for part in ("Collecting ", "numpy\nDone", " ✓\n", "end"))
    for byte in whole.encode():
        recorded.output.add(bytes([byte]))
    assert recorded.lines == ["Collecting numpy", "Done ✓"]
    recorded.output.end()
    assert recorded.lines[-1] == "end"


def test_lines_of_the_engine_itself_are_left_out() -> None:
    said = [
        "Step 1/9 : FROM sha256:1\n",
        " ---> 1234\n",
        "\x1b[91mwarning\n\x1b[0m",
        "Removing intermediate container 1\n",
    ]
    recorded = Recorder().add(
        *({"stream": each} for each in [*said, "gpuinfra: installing packages\n", "10%\r20%\r\n"])
    )
    assert recorded.lines == ["warning", "gpuinfra: installing packages", "20%"]
    assert recorded.steps == ["installing packages"]


def test_secrets_are_redacted_across_messages() -> None:
    recorded = Recorder("hunter2!").add(
        {"stream": "with hunt"}, {"stream": "er2!\n"}, {"stream": "at https://me:pw@host/x\n"}
    )
    assert recorded.lines == ["with ***", "at https://***@host/x"]
    recorded.add({"errorDetail": {"message": "no hunter2!"}, "error": "no hunter2!"})
    assert recorded.output.error == "no ***"


def test_image_of_a_build_is_the_last_one() -> None:
    recorded = Recorder().add(
        {"aux": {"ID": "sha256:1"}}, {"aux": {"ID": "sha256:2"}}, {"stream": "Successfully built 2\n"}
    )
    recorded.output.end()
    assert (recorded.output.image, recorded.output.error, recorded.lines) == ("sha256:2", None, [])


def test_error_of_the_script_is_not_a_line() -> None:
    recorded = Recorder().add({"stream": "gpuinfra-refusal: no conda\ngpuinfra-help: name one\n"}, {"error": "code: 3"})
    assert (recorded.output.refusal, recorded.output.help, recorded.output.error) == ("no conda", "name one", "code: 3")
    assert recorded.lines == []


def test_only_the_last_lines_are_kept() -> None:
    recorded = Recorder().add({"stream": "".join(f"{number}\n" for number in range(100))})
    assert list(recorded.output.last) == [str(number) for number in range(100 - LAST_LINES, 100)]


def test_very_long_line_is_printed_in_parts() -> None:
    recorded = Recorder()
    for _ in range(100):
        recorded.add({"stream": "x" * MAX_LINE})
    recorded.output.end()
    assert sum(map(len, recorded.lines)) == 100 * MAX_LINE
    assert max(map(len, recorded.lines)) <= 2 * MAX_LINE


def test_secret_at_the_split_of_a_long_line_is_redacted() -> None:
    recorded = Recorder("hunter2!").add(
        {"stream": "x" * (MAX_LINE - 3) + "hunter2!"}, {"stream": "y" * MAX_LINE}, {"stream": "\nend\n"}
    )
    assert "hun" not in "".join(recorded.lines)
    assert recorded.lines[-1] == "end"


def test_output_that_is_not_json_is_printed() -> None:
    recorded = Recorder()
    recorded.output.add(b"<html>\n[1, 2]\n")
    assert recorded.lines == ["<html>"]


def test_message_over_the_limit_is_an_error() -> None:
    recorded, piece = Recorder(), b"x" * MAX_MESSAGE
    recorded.output.add(piece)
    with pytest.raises(JobError) as raised:
        recorded.output.add(piece)
    assert raised.value.code is Code.ENGINE_FAILED
