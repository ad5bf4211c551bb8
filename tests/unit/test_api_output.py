"""The API passes a job's output on as text."""

from gpuinfra.api import JobText
from gpuinfra.models.run import STDERR, STDOUT, Frame


def test_character_that_is_split_between_frames_is_whole() -> None:
    got: list[str] = []
    text = JobText(got.append)
    for stream, data in ((STDOUT, b"gr\xc3"), (STDERR, b"\xff!"), (STDOUT, b"\xb6\xc3\x9fe\n")):
        text(Frame(stream, 1, data))
    assert "".join(got) == "gr\N{REPLACEMENT CHARACTER}!öße\n"
