"""`NAME.compute`: a place where jobs can run."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.parse.document import Document
from gpuinfra.suggest import did_you_mean, listed
from gpuinfra.workbench.fields import Fields

SUFFIX = ".compute"
LOCAL, LOCALDOCKER, REMOTEDOCKER, REMOTE, CLUSTER = "local", "localdocker", "remotedocker", "remote", "cluster"
TYPES = (LOCAL, LOCALDOCKER, REMOTEDOCKER, REMOTE, CLUSTER)
OLDER_TYPES = {"docker": LOCALDOCKER, "virtualmachine": REMOTEDOCKER}
SHARE = "~/.azureml/share/"

KEYS = frozenset(
    "type address username password baseDockerImage nvidiaDocker sharedVolumes nativeSharedDirectory pythonLocation "
    "sparkSubmitLocation yarnDeployMode userManagedEnvironment cluster native hostKey privateKeyFile resourceId "
    "simulated".split()
)
_ADDRESS = re.compile(r"(?P<host>[^:\[\]]+|\[[^\[\]]+\])(?::(?P<port>[0-9]{1,9}))?")


@dataclass(frozen=True)
class Compute:
    """What the file says, older words in today's, defaults filled in. Keys that nobody knows are kept in the file."""

    name: str
    document: Document
    type: str
    """One of TYPES; empty where the file does not say, or says something else."""
    address: str | None
    port: int
    username: str | None
    password: str | None
    """A reference to where the password is; in files of others it may be the password itself."""
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

    @property
    def shares_usual_folder(self) -> bool:
        """Whether the folder that jobs share is `~/.azureml/share`, or below it."""
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
    """What a file says, and what is wrong with it."""
    diagnostics: list[Diagnostic] = []
    fields = Fields(document.source, document.root, diagnostics)
    said = fields.text("address")
    address, port = split_address(said)
    # A placeholder in brackets is a list to YAML: no text, and still the address of a machine.
    has_address = address is not None or (said is None and fields.says("address"))
    compute = Compute(
        name=name,
        document=document,
        type=_type(fields, has_address=has_address),
        address=address,
        port=port,
        username=fields.text("username"),
        password=fields.text("password"),
        base_docker_image=_stripped(fields.text("baseDockerImage")),
        nvidia_docker=fields.truth("nvidiaDocker", default=False),
        shared_volumes=fields.truth("sharedVolumes", default=True),
        native_shared_directory=fields.text("nativeSharedDirectory") or SHARE,
        python_location=fields.text("pythonLocation"),
        spark_submit_location=fields.text("sparkSubmitLocation"),
        yarn_deploy_mode=fields.text("yarnDeployMode"),
        user_managed_environment=fields.truth("userManagedEnvironment", default=False),
        host_key=fields.text("hostKey"),
        private_key_file=fields.text("privateKeyFile"),
        simulated=fields.truth("simulated", default=False),
        resource_id=fields.text("resourceId") or "",
    )
    if not 0 < port < 65536:
        place = fields.node("address")
        span = document.span(place)
        diagnostics.append(Diagnostic(Code.BAD_ADDRESS, "invalid address", span, f"there is no port {port}"))
    return compute, diagnostics


def split_address(address: str | None) -> tuple[str | None, int]:
    """`host:5022` as host and port. An IPv6 address with a port stands in brackets."""
    stripped = _stripped(address)
    found = _ADDRESS.fullmatch(stripped or "")
    return (found["host"].strip("[]"), int(found["port"] or 22)) if found else (stripped, 22)


def joined_address(address: str, port: int) -> str:
    """The opposite: the port is said where it is not the usual one."""
    if port == 22:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _type(fields: Fields, *, has_address: bool) -> str:
    text = fields.text("type")
    if text is None and fields.says("type"):
        return ""  # something else than text, which has its diagnostic by now
    if said := (text or "").strip():
        known = OLDER_TYPES.get(said.casefold(), said.casefold())
        if known in TYPES:
            return known
        node = fields.node("type")
        help_line = did_you_mean(said, (*TYPES, *OLDER_TYPES)) or f"it can be {listed(TYPES)}"
        span = fields.source.span(node.start, node.end)
        fields.diagnostics.append(
            Diagnostic(Code.UNKNOWN_VALUE, "unknown type of target", span, f"there is no type `{said}`", help=help_line)
        )
        return ""
    if fields.says("cluster") or fields.says("native"):
        return _early_type(fields, has_address=has_address)
    start = fields.source.span(fields.mapping.start, fields.mapping.start)
    help_line = "add `type: remotedocker`, or what else it is"
    fields.diagnostics.append(
        Diagnostic(Code.MISSING_KEY, "missing key", start, "the key `type` is missing", help=help_line)
    )
    return ""


def _early_type(fields: Fields, *, has_address: bool) -> str:
    """The first versions had two switches instead of a type."""
    if fields.truth("cluster", default=False):
        return CLUSTER
    if fields.truth("native", default=False):
        return REMOTE if has_address else LOCAL
    return REMOTEDOCKER if has_address else LOCALDOCKER


def _stripped(text: str | None) -> str | None:
    return (text or "").strip() or None
