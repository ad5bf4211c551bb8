"""A spec: one machine, from one YAML document, with all defaults."""

import hashlib
import json
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import Duration, Model, MoneyField, check_first, one_of, parsed, rejection
from gpuinfra.models.hours import Hours
from gpuinfra.models.images import DEFAULT_ALIAS, ContainerImage, MachineImage
from gpuinfra.models.job import Job, YamlPath
from gpuinfra.models.names import MachineName, Region, ResourceGroupName, Subscription, Tags, TargetName, Username
from gpuinfra.models.sizes import GPU_MODELS, SizeName, check_gpu_model, sizes_with
from gpuinfra.models.ssh import AUTO, DEFAULT_KEY, PublicKey, SshSources, chosen_key

API_VERSION = "gpuinfra/v1"

# Azure's zones are text; YAML reads them as numbers.
Zone = Annotated[
    Literal["1", "2", "3"],
    one_of("1", "2", "3"),
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    WithJsonSchema({"enum": ["1", "2", "3", 1, 2, 3]}),
]


def _check_api_version(text: str) -> str:
    if text == API_VERSION:
        return text
    label = f"this version of gpuinfra reads `{API_VERSION}`"
    raise rejection(Code.UNKNOWN_API_VERSION, "unknown apiVersion", label, f"write `apiVersion: {API_VERSION}`")


class Gpu(Model):
    """GPUs instead of sizes: all sizes with exactly these GPUs are candidates, cheapest first."""

    model: Annotated[Literal["T4", "A100", "H100", "RTXPRO6000"], one_of(*GPU_MODELS), check_first(check_gpu_model)] = (
        Field(description="The GPU's model.", examples=["T4"])
    )
    count: int = Field(default=1, ge=1, description="How many of them.", examples=[1])


class Spot(Model):
    """Options of a spot machine. Azure deallocates it on eviction."""

    max_price: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        description="Highest price in US dollars per hour; above it Azure evicts. Default: no price limit.",
        examples=[0.30],
    )


class Admin(Model):
    """The administrator account."""

    username: Username = Field(
        default="azureuser", description="The administrator's name on the machine.", examples=["azureuser"]
    )
    ssh_public_key: PublicKey = Field(
        default=DEFAULT_KEY,
        description="The path of a public key, or the key itself.",
        examples=["~/.ssh/id_ed25519.pub"],
    )

    def key(self) -> str:
        """Return the public key in use, or its path. It may be a key that gpuinfra created."""
        return chosen_key(self.ssh_public_key, is_default="ssh_public_key" not in self.model_fields_set)


class Network(Model):
    """Access to the machine's SSH port."""

    allow_ssh_from: SshSources = Field(
        default=(AUTO,),
        description="IPv4 addresses and ranges that can reach SSH; auto is your own address.",
        examples=[["203.0.113.7/32"]],
    )
    allow_internet: bool = Field(
        default=False,
        description="Allow ranges of more than 16 million addresses, such as 0.0.0.0/0.",
        examples=[True],
    )


class Disk(Model):
    """The machine's disk. It is billed until it is deleted, even while the machine is off."""

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
    ] = Field(default="StandardSSD_LRS", description="Disk type.", examples=["StandardSSD_LRS"])


class TargetOptions(Model):
    """The compute target that `up` writes, as NAME.compute and NAME.runconfig."""

    name: TargetName | None = Field(
        default=None,
        description="Name of the two files. Default: the machine's name with _ for -.",
        examples=["my_dsvm"],
    )
    type: Annotated[Literal["remotedocker", "remote"], one_of("remotedocker", "remote")] = Field(
        default="remotedocker",
        description="remotedocker runs jobs in a container, remote in the machine's own Python.",
        examples=["remotedocker"],
    )
    base_docker_image: ContainerImage | None = Field(
        default=None,
        description="The base image of a job's environment. Default: the newest for the machine's driver.",
        examples=["mcr.microsoft.com/azureml/openmpi5.0-cuda12.4-ubuntu22.04"],
    )
    nvidia_docker: bool = Field(
        default=True, description="Whether jobs use the GPUs. A job that finds no GPU fails.", examples=[True]
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
    """When the machine is deallocated. Every machine has a lease."""

    after_run: Annotated[Literal["deallocate", "delete", "keep"], one_of("deallocate", "delete", "keep")] = Field(
        default="deallocate",
        description="What happens when a run ends. keep leaves the machine on until its lease or idle time ends.",
        examples=["deallocate"],
    )
    lease: Duration = Field(
        default=timedelta(hours=4),
        description="Longest time on, from power-on. Renewed while a run is active.",
        examples=["4h"],
    )
    idle: Duration = Field(
        default=timedelta(minutes=20),
        description="Deallocate after this time without a job, a login or GPU use.",
        examples=["20m"],
    )
    max_cost: MoneyField | None = Field(
        default=None,
        description="Deallocate when the cost since power-on reaches this. Default: no limit.",
        examples=["5 USD"],
    )
    hours: Hours | None = Field(
        default=None,
        description="Deallocate outside these hours unless a lease keeps the machine on. Default: any time.",
        examples=[{"timezone": "America/Chicago", "on": "mon-fri 08:00-19:00"}],
    )


class Spec(Model):
    """One machine. A file's `region` and `size` become lists of one."""

    api_version: Annotated[Literal["gpuinfra/v1"], parsed(_check_api_version)] = Field(
        description="The version of the spec format.", examples=[API_VERSION]
    )
    name: MachineName = Field(description="Name of the machine and prefix of all its resources.", examples=["my-dsvm"])
    subscription: Subscription | None = Field(
        default=None,
        description="An Azure subscription id. Default: AZURE_SUBSCRIPTION_ID, or the default of az.",
        examples=["00000000-0000-0000-0000-000000000000"],
    )
    resource_group: ResourceGroupName | None = Field(
        default=None,
        description="The resource group of all resources. Default: gpuinfra- and the name.",
        examples=["gpu-team"],
    )
    regions: Annotated[tuple[Region, ...], Field(min_length=1)] = Field(
        description="Azure regions, tried in order.", examples=[["southcentralus", "eastus"]]
    )
    zones: Annotated[tuple[Zone, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="Availability zones, tried in order. Default: Azure chooses.",
        examples=[["1", "2"]],
    )
    sizes: Annotated[tuple[SizeName, ...], Field(min_length=1)] | None = Field(
        default=None, description="NC sizes, tried in order.", examples=[["Standard_NC4as_T4_v3"]]
    )
    gpu: Gpu | None = Field(
        default=None,
        description="GPUs, instead of sizes.",
        examples=[{"model": "T4", "count": 1}],
    )
    image: MachineImage = Field(
        default=DEFAULT_ALIAS,
        description="An alias, or publisher:offer:sku:version.",
        examples=[DEFAULT_ALIAS],
    )
    accept_image_terms: bool = Field(
        default=False,
        description="Accept the image's marketplace terms, if it has any.",
        examples=[True],
    )
    security_type: Annotated[Literal["Standard", "TrustedLaunch"], one_of("Standard", "TrustedLaunch")] = Field(
        default="Standard",
        description="Azure's security type. TrustedLaunch adds a virtual TPM; Secure Boot is off with both.",
        examples=["TrustedLaunch"],
    )
    priority: Annotated[Literal["regular", "spot"], one_of("regular", "spot")] = Field(
        default="regular", description="spot is cheaper, but Azure can evict it.", examples=["spot"]
    )
    spot: Spot = Field(default=Spot(), description="Options for priority: spot.", examples=[{"maxPrice": 0.30}])
    admin: Admin = Field(
        default=Admin(), description="The administrator account.", examples=[{"username": "azureuser"}]
    )
    network: Network = Field(
        default=Network(),
        description="Access to the machine's SSH port.",
        examples=[{"allowSshFrom": ["203.0.113.7/32"]}],
    )
    disk: Disk = Field(default=Disk(), description="The machine's disk.", examples=[{"sizeGiB": 150}])
    target: TargetOptions = Field(
        default=TargetOptions(),
        description="The compute target that up writes.",
        examples=[{"type": "remotedocker"}],
    )
    job: Job | None = Field(
        default=None, description="The job that run runs.", examples=[{"command": "python train.py"}]
    )
    power: Annotated[Literal["running", "deallocated"], one_of("running", "deallocated")] = Field(
        default="running",
        description="The desired power state; deallocated keeps the machine off.",
        examples=["deallocated"],
    )
    lifecycle: Lifecycle = Field(
        default=Lifecycle(), description="When the machine is deallocated.", examples=[{"lease": "4h"}]
    )
    tags: Tags = Field(
        default_factory=dict,
        description="Tags for every resource, in addition to gpuinfra's own.",
        examples=[{"project": "mnist"}],
    )

    @property
    def candidate_sizes(self) -> tuple[str, ...]:
        """The sizes to try, in order."""
        return self.sizes or (sizes_with(self.gpu.model, self.gpu.count) if self.gpu else ())

    @property
    def group_name(self) -> str:
        return self.resource_group or f"gpuinfra-{self.name}"

    @property
    def target_name(self) -> str:
        return self.target.name or self.name.replace("-", "_")

    def as_json(self) -> dict[str, Any]:
        """Return a document with all defaults that loads as the same spec."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=self._omitted_fields())

    def digest(self) -> str:
        """Return a digest that is equal for specs of equivalent machines. The job does not change the machine."""
        machine = {key: value for key, value in self.as_json().items() if key != "job"}
        canonical = json.dumps(machine, sort_keys=True, separators=(",", ":"))
        return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"

    def _omitted_fields(self) -> dict[str, Any]:
        # Fields whose default would contradict another field if it were written out.
        omitted: dict[str, Any] = {}
        if self.priority != "spot":
            omitted["spot"] = True
        if self.target.type == "remote":
            omitted["target"] = {"base_docker_image", "nvidia_docker"}
        return omitted
