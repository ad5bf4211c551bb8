"""What a target answers to an upload does not fill the memory."""

import zlib

import pytest

from gpuinfra.runner.errors import RemoteError
from gpuinfra.runner.upload.send import MOST_BYTES, _decompress


def test_answer_that_is_too_large_is_refused() -> None:
    with pytest.raises(RemoteError, match="more than 64 MiB"):
        _decompress(zlib.compress(b"0" * (MOST_BYTES + 1)))


def test_usual_answer_is_read() -> None:
    assert _decompress(zlib.compress(b"[]")) == b"[]"
