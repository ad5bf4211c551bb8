"""A spec: what one YAML document says about one machine, with every default filled in."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.addresses import AUTO, SshSources
from gpuinfra.models.base import Model, check_first, one_of, parsed, rejection
from gpuinfra.models.durations import Duration
from gpuinfra.models.hours import Hours
from gpuinfra.models.images import DEFAULT_ALIAS, ContainerImage, MachineImage
from gpuinfra.models.keys import DEFAULT_KEY, PublicKey, chosen_key
from gpuinfra.models.money import Amount
from gpuinfra.models.names import MachineName, ResourceGroupName, TargetName, Username
from gpuinfra.models.paths import YamlPath
from gpuinfra.models.regions import Region
from gpuinfra.models.sizes import GPU_MODELS, SizeName, check_gpu_model, sizes_with
from gpuinfra.models.subscriptions import Subscription
from gpuinfra.models.tags import Tags
from gpuinfra.models.target import DEFAULT_IMAGE

API_VERSION = "gpuinfra/v1"

# Text, as Azure has it; which datacenters a number stands for differs between subscriptions. YAML reads it as a number.
Zone = Annotated[
    Literal["1", "2", "3"],
    one_of("1", "2", "3"),
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    WithJsonSchema({"enum": ["1", "2", "3", 1, 2, 3]}),
]


def _check_api_version(text: str) -> str:
    if text == API_VERSION:
        return text
    label = f"this gpuinfra reads `{API_VERSION}`"
    raise rejection(Code.UNKNOWN_API_VERSION, "unknown apiVersion", label, f"write `apiVersion: {API_VERSION}`")


class Gpu(Model):
    """A wish for GPUs instead of a size; every size that has just these is a candidate, cheapest first."""

    model: Annotated[Literal["T4", "A100", "H100", "RTXPRO6000"], one_of(*GPU_MODELS), check_first(check_gpu_model)] = (
        Field(description="The GPU's model.", examples=["T4"])
    )
    count: int = Field(default=1, ge=1, description="How many of them.", examples=[1])


class Spot(Model):
    """Terms for a spot machine. An evicted one is deallocated, so that nothing is billed for it."""

    max_price: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        description="US dollars an hour; above it Azure evicts. Left out: never evicted for its price.",
        examples=[0.30],
    )


class Admin(Model):
    """Who logs in."""

    username: Username = Field(
        default="azureuser", description="The administrator's name on the machine.", examples=["azureuser"]
    )
    ssh_public_key: PublicKey = Field(
        default=DEFAULT_KEY,
        description="The path of a public key, or the key itself.",
        examples=["~/.ssh/id_ed25519.pub"],
    )

    def key(self) -> str:
        """Return the public key in use, or its path. Where gpuinfra has created one, that may be it."""
        return chosen_key(self.ssh_public_key, is_default="ssh_public_key" not in self.model_fields_set)


class Network(Model):
    """Who can reach the machine."""

    allow_ssh_from: SshSources = Field(
        default=(AUTO,),
        description="IPv4 addresses and ranges that may reach SSH; auto is the caller's own address.",
        examples=[["203.0.113.7/32"]],
    )
    allow_internet: bool = Field(
        default=False,
        description="Consent to ranges of more than 16 million addresses, such as 0.0.0.0/0.",
        examples=[True],
    )


class Disk(Model):
    """The machine's disk; it is billed until it is deleted, machine on or off."""

    size_gib: int = Field(
        default=150,
        alias="sizeGiB",
        ge=30,
        le=4095,
        description="Size in GiB. The Data Science images need 150.",
        examples=[150],
    )
    sku: Annotated[
        Literal["Standard_LRS", "StandardSSD_LRS", "StandardSSD_ZRS", "Premium_LRS", "Premium_ZRS"],
        one_of("Standard_LRS", "StandardSSD_LRS", "StandardSSD_ZRS", "Premium_LRS", "Premium_ZRS"),
    ] = Field(default="StandardSSD_LRS", description="Kind of disk.", examples=["StandardSSD_LRS"])


class TargetOptions(Model):
    """The compute target that `up` writes, as NAME.compute and NAME.runconfig."""

    name: TargetName | None = Field(
        default=None,
        description="Name of the two files. Left out: the machine's name with _ for -.",
        examples=["my_dsvm"],
    )
    type: Annotated[Literal["remotedocker", "remote"], one_of("remotedocker", "remote")] = Field(
        default="remotedocker",
        description="remotedocker runs jobs in a container, remote in the machine's own Python.",
        examples=["remotedocker"],
    )
    base_docker_image: ContainerImage = Field(
        default=DEFAULT_IMAGE,
        description="The container image that a job's environment is built on.",
        examples=[DEFAULT_IMAGE],
    )
    nvidia_docker: bool = Field(
        default=True, description="Whether jobs get the GPUs; a job that finds none fails.", examples=[True]
    )
    framework: Annotated[Literal["Python", "PySpark"], one_of("Python", "PySpark")] = Field(
        default="Python", description="What runs the script.", examples=["Python"]
    )
    conda_dependencies: YamlPath = Field(
        default="aml_config/conda_dependencies.yml",
        description="The project's conda environment file.",
        examples=["aml_config/conda_dependencies.yml"],
    )


class Lifecycle(Model):
    """When the machine goes off. There is always a lease: no machine is billed without an end."""

    after_run: Annotated[Literal["deallocate", "delete", "keep"], one_of("deallocate", "delete", "keep")] = Field(
        default="deallocate",
        description="What happens when a run ends. keep leaves it on until lease or idle end it.",
        examples=["deallocate"],
    )
    lease: Duration = Field(
        default=timedelta(hours=4),
        description="Longest time on, counted from power-on and renewed while a run is alive.",
        examples=["4h"],
    )
    idle: Duration = Field(
        default=timedelta(minutes=20),
        description="Goes off after this long with no job, no login and an idle GPU.",
        examples=["20m"],
    )
    max_cost: Amount | None = Field(
        default=None,
        description="Goes off when this much has been spent since power-on. Left out: no cap.",
        examples=["5 USD"],
    )
    hours: Hours | None = Field(
        default=None,
        description="Off outside these hours unless a lease holds it. Left out: any time.",
        examples=[{"timezone": "America/Chicago", "on": "mon-fri 08:00-19:00"}],
    )


class Spec(Model):
    """One machine. `region` and `size` in a file are read as lists of one."""

    api_version: Annotated[Literal["gpuinfra/v1"], parsed(_check_api_version)] = Field(
        description="The version of this language.", examples=[API_VERSION]
    )
    name: MachineName = Field(description="Names the machine and everything made for it.", examples=["my-dsvm"])
    subscription: Subscription | None = Field(
        default=None,
        description="An Azure subscription's id. Left out: AZURE_SUBSCRIPTION_ID, or the default of az.",
        examples=["00000000-0000-0000-0000-000000000000"],
    )
    resource_group: ResourceGroupName | None = Field(
        default=None,
        description="The resource group that everything is put in. Left out: gpuinfra- and the name.",
        examples=["gpu-team"],
    )
    regions: Annotated[tuple[Region, ...], Field(min_length=1)] = Field(
        description="Azure regions, tried in order.", examples=[["southcentralus", "eastus"]]
    )
    zones: Annotated[tuple[Zone, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="Availability zones, tried in order. Left out: none, Azure places the machine.",
        examples=[["1", "2"]],
    )
    sizes: Annotated[tuple[SizeName, ...], Field(min_length=1)] | None = Field(
        default=None, description="NC sizes, tried in order.", examples=[["Standard_NC4as_T4_v3"]]
    )
    gpu: Gpu | None = Field(
        default=None,
        description="GPUs wished for, in place of sizes.",
        examples=[{"model": "T4", "count": 1}],
    )
    image: MachineImage = Field(
        default=DEFAULT_ALIAS,
        description="An alias, or publisher:offer:sku:version.",
        examples=[DEFAULT_ALIAS],
    )
    accept_image_terms: bool = Field(
        default=False,
        description="Consent to the image's marketplace terms, where it has some.",
        examples=[True],
    )
    security_type: Annotated[Literal["Standard", "TrustedLaunch"], one_of("Standard", "TrustedLaunch")] = Field(
        default="Standard",
        description="Azure's security type. TrustedLaunch adds a virtual TPM; Secure Boot is off with both.",
        examples=["TrustedLaunch"],
    )
    priority: Annotated[Literal["regular", "spot"], one_of("regular", "spot")] = Field(
        default="regular", description="spot is cheaper and can be evicted.", examples=["spot"]
    )
    spot: Spot = Field(default=Spot(), description="Terms for priority: spot.", examples=[{"maxPrice": 0.30}])
    admin: Admin = Field(default=Admin(), description="Who logs in.", examples=[{"username": "azureuser"}])
    network: Network = Field(
        default=Network(),
        description="Who can reach the machine.",
        examples=[{"allowSshFrom": ["203.0.113.7/32"]}],
    )
    disk: Disk = Field(default=Disk(), description="The machine's disk.", examples=[{"sizeGiB": 150}])
    target: TargetOptions = Field(
        default=TargetOptions(),
        description="The compute target that up writes.",
        examples=[{"type": "remotedocker"}],
    )
    power: Annotated[Literal["running", "deallocated"], one_of("running", "deallocated")] = Field(
        default="running",
        description="What the machine should be; deallocated keeps it off.",
        examples=["deallocated"],
    )
    lifecycle: Lifecycle = Field(
        default=Lifecycle(), description="When the machine goes off.", examples=[{"lease": "4h"}]
    )
    tags: Tags = Field(
        default_factory=dict,
        description="Tags for every resource, beside gpuinfra's own.",
        examples=[{"project": "mnist"}],
    )

    @property
    def candidate_sizes(self) -> tuple[str, ...]:
        """The sizes to try, in order."""
        return self.sizes or (sizes_with(self.gpu.model, self.gpu.count) if self.gpu else ())

    @property
    def group_name(self) -> str:
        """The name of the resource group."""
        return self.resource_group or f"gpuinfra-{self.name}"

    @property
    def target_name(self) -> str:
        """The name of the compute target."""
        return self.target.name or self.name.replace("-", "_")

    def as_json(self) -> dict[str, Any]:
        """The spec as a document that loads again as the same spec, defaults written out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=self._unsaid())

    def digest(self) -> str:
        """The same for two specs that mean the same, however they are written."""
        canonical = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"

    def _unsaid(self) -> dict[str, Any]:
        # Fields whose default would contradict another field if it were written out.
        unsaid: dict[str, Any] = {}
        if self.priority != "spot":
            unsaid["spot"] = True
        if self.target.type == "remote":
            unsaid["target"] = {"base_docker_image", "nvidia_docker"}
        return unsaid
