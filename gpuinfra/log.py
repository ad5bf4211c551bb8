"""The log of `--verbose`, with the correlation id that Azure's logs also have."""

import logging
import sys
import time
import uuid

NAME = "gpuinfra"


def start(*, verbose: bool) -> str:
    """Start the log of this command, and return its correlation id."""
    correlation_id = str(uuid.uuid4())
    logger = logging.getLogger(NAME)
    logger.setLevel(logging.DEBUG if verbose else logging.CRITICAL)
    logger.propagate = False
    form = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)s [{correlation_id}] %(name)s: %(message)s",
        "%Y-%m-%dT%H:%M:%S",
    )
    form.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(form)
    logger.handlers = [handler]
    return correlation_id
