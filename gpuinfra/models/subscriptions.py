"""The Azure subscription that pays, by its id."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import parsed, rejection, whole

SUBSCRIPTION = "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"


def parse_subscription(text: str) -> str:
    """A subscription's id in lower case: Azure does not see case in it, so two spellings are one subscription."""
    if re.fullmatch(SUBSCRIPTION, text):
        return text.lower()
    # People paste `/subscriptions/ID`, and ids in braces.
    found = re.search(SUBSCRIPTION, text)
    raise rejection(
        Code.BAD_SUBSCRIPTION,
        "invalid subscription",
        "expected a subscription's id, which is a UUID",
        f"did you mean `{found.group()}`?" if found else "`az account list --output table` has names and ids",
    )


Subscription = Annotated[
    str,
    parsed(parse_subscription),
    WithJsonSchema({"type": "string", "pattern": whole(SUBSCRIPTION)}),
]
