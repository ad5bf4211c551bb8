"""What an engine says while it builds."""

import json
from collections.abc import Mapping

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.runner.docker.limits import MOST_MESSAGE
from gpuinfra.runner.environment.build import LAST_LINES, LONGEST_LINE, BuildOutput
from gpuinfra.runner.errors import JobError


class Heard:
    def __init__(self, *secrets: str) -> None:
        self.lines: list[str] = []
        self.steps: list[str] = []
        self.output = BuildOutput(self.lines.append, self.steps.append, secrets)

    def hear(self, *messages: Mapping[str, object]) -> "Heard":
        for message in messages:
            self.output.hear(json.dumps(message).encode() + b"\r\n")
        return self


def test_lines_come_whole_whatever_the_pieces() -> None:
    heard = Heard()
    whole = "".join(json.dumps({"stream": part}) + "\r\n" for part in ("Collecting ", "numpy\nDone", " ✓\n", "end"))
    for byte in whole.encode():
        heard.output.hear(bytes([byte]))
    assert heard.lines == ["Collecting numpy", "Done ✓"]
    heard.output.end()
    assert heard.lines[-1] == "end"


def test_words_of_the_engine_itself_are_left_out() -> None:
    said = [
        "Step 1/9 : FROM sha256:1\n",
        " ---> 1234\n",
        "\x1b[91mwarning\n\x1b[0m",
        "Removing intermediate container 1\n",
    ]
    heard = Heard().hear(*({"stream": each} for each in [*said, "gpuinfra: installing packages\n", "10%\r20%\r\n"]))
    assert heard.lines == ["warning", "gpuinfra: installing packages", "20%"]
    assert heard.steps == ["installing packages"]


def test_secrets_are_masked_even_in_two_pieces() -> None:
    heard = Heard("hunter2!").hear(
        {"stream": "with hunt"}, {"stream": "er2!\n"}, {"stream": "at https://me:pw@host/x\n"}
    )
    assert heard.lines == ["with ***", "at https://***@host/x"]
    heard.hear({"errorDetail": {"message": "no hunter2!"}, "error": "no hunter2!"})
    assert heard.output.error == "no ***"


def test_end_of_a_build() -> None:
    heard = Heard().hear({"aux": {"ID": "sha256:1"}}, {"aux": {"ID": "sha256:2"}}, {"stream": "Successfully built 2\n"})
    heard.output.end()
    assert (heard.output.image, heard.output.error, heard.lines) == ("sha256:2", None, [])


def test_refusal_of_the_script_is_no_line() -> None:
    heard = Heard().hear({"stream": "gpuinfra-refusal: no conda\ngpuinfra-help: name one\n"}, {"error": "code: 3"})
    assert (heard.output.refusal, heard.output.help, heard.output.error) == ("no conda", "name one", "code: 3")
    assert heard.lines == []


def test_last_lines_alone_are_kept() -> None:
    heard = Heard().hear({"stream": "".join(f"{number}\n" for number in range(100))})
    assert list(heard.output.last) == [str(number) for number in range(100 - LAST_LINES, 100)]


def test_line_without_end_fills_no_memory() -> None:
    heard = Heard()
    for _ in range(100):
        heard.hear({"stream": "x" * LONGEST_LINE})
    heard.output.end()
    assert sum(map(len, heard.lines)) == 100 * LONGEST_LINE
    assert max(map(len, heard.lines)) <= 2 * LONGEST_LINE


def test_secret_at_the_seam_of_a_long_line_is_masked() -> None:
    heard = Heard("hunter2!").hear(
        {"stream": "x" * (LONGEST_LINE - 3) + "hunter2!"}, {"stream": "y" * LONGEST_LINE}, {"stream": "\nend\n"}
    )
    assert "hun" not in "".join(heard.lines)
    assert heard.lines[-1] == "end"


def test_answer_that_is_no_json_is_shown() -> None:
    heard = Heard()
    heard.output.hear(b"<html>\n[1, 2]\n")
    assert heard.lines == ["<html>"]


def test_message_without_end_is_an_error() -> None:
    heard, piece = Heard(), b"x" * MOST_MESSAGE
    heard.output.hear(piece)
    with pytest.raises(JobError) as raised:
        heard.output.hear(piece)
    assert raised.value.code is Code.ENGINE_FAILED
