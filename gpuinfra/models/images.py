"""Names of machine images and of container images."""

import re
from typing import Annotated

from pydantic import WithJsonSchema

from gpuinfra.diagnostics import Code, listed, nearest
from gpuinfra.models.base import checked, rejection, whole

# Generation 2 only: A100, H100 and RTX sizes boot nothing else; T4 sizes boot both.
ALIASES = {
    "dsvm-ubuntu-22.04": "microsoft-dsvm:ubuntu-2204:2204-gen2:latest",
    "dsvm-ubuntu-20.04": "microsoft-dsvm:ubuntu-2004:2004-gen2:latest",
}
DEFAULT_ALIAS = "dsvm-ubuntu-22.04"
ALIAS_DRIVER = 535
"""The NVIDIA driver of these images, as of version 25.06.18."""
ALIAS_CUDA = (12, 2)
"""The newest CUDA that this driver supports."""
URN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}(?::[A-Za-z0-9][A-Za-z0-9_.-]{0,127}){3}"


def check_machine_image(text: str) -> None:
    """Reject anything but an alias or publisher:offer:sku:version, as `az vm image list` prints it."""
    if text in ALIASES or re.fullmatch(URN, text):
        return
    known = nearest(text, ALIASES)
    raise rejection(
        Code.BAD_MACHINE_IMAGE,
        "unknown machine image",
        "expected an alias, or publisher:offer:sku:version",
        f"did you mean `{known}`?" if known else f"the aliases are {listed(ALIASES, 'and')}",
    )


# The grammar of a container image reference, as the distribution project defines it.
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
# The first part is a host only if it has a dot or a port, or is localhost; else it is part of the path.
_PORT = ":[0-9]{1,5}"
_HOST = rf"(?:localhost(?:{_PORT})?|{_LABEL}{_PORT}|{_LABEL}(?:\.{_LABEL})+(?:{_PORT})?)"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
CONTAINER_IMAGE_LENGTH = 512
CONTAINER_IMAGE = (
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
)


def check_container_image(text: str) -> None:
    """Reject references that Docker cannot pull: expected [registry/]repository[:tag][@sha256:digest]."""
    if len(text) <= CONTAINER_IMAGE_LENGTH and re.fullmatch(CONTAINER_IMAGE, text):
        return
    raise rejection(Code.BAD_CONTAINER_IMAGE, "invalid container image", *_broken_rule(text))


def _broken_rule(text: str) -> tuple[str, str | None]:
    if len(text) > CONTAINER_IMAGE_LENGTH:
        return f"{len(text)} characters; at most {CONTAINER_IMAGE_LENGTH} are allowed", None
    if re.search(r"\s", text):
        trimmed = text.strip()
        fits = re.fullmatch(CONTAINER_IMAGE, trimmed)
        return "it contains a space", f"did you mean `{trimmed}`?" if fits else None
    if "::" in text:
        return "two colons before the tag", f"did you mean `{text.replace('::', ':')}`?"
    if "://" in text:
        return "an image name has no scheme", f"did you mean `{text.split('://', 1)[1]}`?"
    if re.fullmatch(CONTAINER_IMAGE, text.lower()):
        return "repository names are lower case", f"did you mean `{text.lower()}`?"
    return "expected [registry/]repository[:tag]", None


MachineImage = Annotated[
    str,
    checked(check_machine_image),
    WithJsonSchema({"type": "string", "anyOf": [{"enum": list(ALIASES)}, {"pattern": whole(URN)}]}),
]
ContainerImage = Annotated[
    str,
    checked(check_container_image),
    WithJsonSchema({"type": "string", "maxLength": CONTAINER_IMAGE_LENGTH, "pattern": whole(CONTAINER_IMAGE)}),
]
