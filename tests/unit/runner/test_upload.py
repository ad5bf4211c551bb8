"""Replies of a target to an upload are limited in size."""

import zlib

import pytest

from gpuinfra.runner.errors import RemoteError
from gpuinfra.runner.upload import MAX_ANSWER, _decompress


def test_too_large_answer_is_refused() -> None:
    with pytest.raises(RemoteError, match="larger than 64 MiB"):
        _decompress(zlib.compress(b"0" * (MAX_ANSWER + 1)))


def test_usual_answer_is_read() -> None:
    assert _decompress(zlib.compress(b"[]")) == b"[]"
