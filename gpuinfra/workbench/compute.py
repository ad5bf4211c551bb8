"""`NAME.compute`: where jobs run."""

import posixpath
import re
from dataclasses import dataclass

from gpuinfra.diagnostics import Code, Diagnostic, did_you_mean, listed
from gpuinfra.parse.document import Document
from gpuinfra.workbench.fields import Fields

SUFFIX = ".compute"
LOCAL, LOCALDOCKER, REMOTEDOCKER, REMOTE, CLUSTER = "local", "localdocker", "remotedocker", "remote", "cluster"
TYPES = (LOCAL, LOCALDOCKER, REMOTEDOCKER, REMOTE, CLUSTER)
OLDER_TYPES = {"docker": LOCALDOCKER, "virtualmachine": REMOTEDOCKER}
SHARE = "~/.azureml/share/"

KEYS = frozenset(
    "type address username password baseDockerImage nvidiaDocker sharedVolumes nativeSharedDirectory pythonLocation "
    "sparkSubmitLocation yarnDeployMode userManagedEnvironment cluster native hostKey privateKeyFile resourceId "
    "simulated vmId".split()
)
_ADDRESS = re.compile(r"(?P<host>[^:\[\]]+|\[[^\[\]]+\])(?::(?P<port>[0-9]{1,9}))?")


@dataclass(frozen=True)
class Compute:
    """A compute target file, with current type names and all defaults."""

    name: str
    document: Document
    type: str
    """One of TYPES; empty if missing or unknown."""
    address: str | None
    port: int
    username: str | None
    password: str | None
    """A reference to the password; in foreign files possibly the password itself."""
    base_docker_image: str | None
    nvidia_docker: bool
    shared_volumes: bool
    native_shared_directory: str
    python_location: str | None
    spark_submit_location: str | None
    yarn_deploy_mode: str | None
    user_managed_environment: bool
    host_key: str | None
    private_key_file: str | None
    simulated: bool
    resource_id: str
    vm_id: str

    @property
    def shares_usual_folder(self) -> bool:
        """Whether the shared folder is `~/.azureml/share` or below."""
        path = posixpath.normpath(self.native_shared_directory.strip())
        return f"{path}/".startswith(SHARE)

    @property
    def is_docker(self) -> bool:
        """Whether jobs run in a container."""
        return self.type in {LOCALDOCKER, REMOTEDOCKER}

    @property
    def is_remote(self) -> bool:
        """Whether a machine is reached by SSH."""
        return self.type in {REMOTEDOCKER, REMOTE, CLUSTER}


def read_compute(name: str, document: Document) -> tuple[Compute, list[Diagnostic]]:
    """Return the target of a file, and its problems."""
    diagnostics: list[Diagnostic] = []
    fields = Fields(document.source, document.root, diagnostics)
    said = fields.text("address")
    address, port = split_address(said)
    # A placeholder in brackets is a YAML list, but still counts as an address.
    has_address = address is not None or (said is None and fields.has("address"))
    compute = Compute(
        name=name,
        document=document,
        type=_type(fields, has_address=has_address),
        address=address,
        port=port,
        username=fields.text("username"),
        password=fields.text("password"),
        base_docker_image=_stripped(fields.text("baseDockerImage")),
        nvidia_docker=fields.boolean("nvidiaDocker", default=False),
        shared_volumes=fields.boolean("sharedVolumes", default=True),
        native_shared_directory=fields.text("nativeSharedDirectory") or SHARE,
        python_location=fields.text("pythonLocation"),
        spark_submit_location=fields.text("sparkSubmitLocation"),
        yarn_deploy_mode=fields.text("yarnDeployMode"),
        user_managed_environment=fields.boolean("userManagedEnvironment", default=False),
        host_key=fields.text("hostKey"),
        private_key_file=fields.text("privateKeyFile"),
        simulated=fields.boolean("simulated", default=False),
        resource_id=fields.text("resourceId") or "",
        vm_id=fields.text("vmId") or "",
    )
    if not 0 < port < 65536:
        fields.complain(fields.node("address"), Code.BAD_ADDRESS, "invalid address", f"{port} is not a valid port")
    return compute, diagnostics


def split_address(address: str | None) -> tuple[str | None, int]:
    """Split `host:5022` into host and port. An IPv6 address with a port needs brackets."""
    stripped = _stripped(address)
    found = _ADDRESS.fullmatch(stripped or "")
    return (found["host"].strip("[]"), int(found["port"] or 22)) if found else (stripped, 22)


def joined_address(address: str, port: int) -> str:
    """Join host and port; port 22 is omitted."""
    if port == 22:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _type(fields: Fields, *, has_address: bool) -> str:
    text = fields.text("type")
    if text is None and fields.has("type"):
        return ""  # not text; already reported
    if said := (text or "").strip():
        known = OLDER_TYPES.get(said.casefold(), said.casefold())
        if known in TYPES:
            return known
        help_line = did_you_mean(said, (*TYPES, *OLDER_TYPES)) or f"use {listed(TYPES)}"
        label = f"`{said}` is not a target type"
        fields.complain(fields.node("type"), Code.UNKNOWN_VALUE, "unknown target type", label, help_line)
        return ""
    if fields.has("cluster") or fields.has("native"):
        return _early_type(fields, has_address=has_address)
    start = fields.source.span(fields.mapping.start, fields.mapping.start)
    help_line = "add `type: remotedocker`, or another type"
    fields.diagnostics.append(
        Diagnostic(Code.MISSING_KEY, "missing key", start, "the key `type` is missing", help=help_line)
    )
    return ""


def _early_type(fields: Fields, *, has_address: bool) -> str:
    """Return the type of files of the first versions, which had two switches instead."""
    if fields.boolean("cluster", default=False):
        return CLUSTER
    if fields.boolean("native", default=False):
        return REMOTE if has_address else LOCAL
    return REMOTEDOCKER if has_address else LOCALDOCKER


def _stripped(text: str | None) -> str | None:
    return (text or "").strip() or None
