"""The names of Azure's regions. Which of them offer GPUs, only Azure knows."""

from __future__ import annotations

from typing import Annotated

from pydantic import WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import checked, rejection
from gpuinfra.suggest import did_you_mean

PUBLIC = frozenset(
    """australiacentral australiacentral2 australiaeast australiasoutheast austriaeast belgiumcentral
    brazilsouth brazilsoutheast canadacentral canadaeast centralindia centralus chilecentral denmarkeast
    eastasia eastus eastus2 francecentral francesouth germanynorth germanywestcentral indonesiacentral
    israelcentral italynorth japaneast japanwest jioindiacentral jioindiawest koreacentral koreasouth
    malaysiawest mexicocentral newzealandnorth northcentralus northeurope norwayeast norwaywest
    polandcentral qatarcentral southafricanorth southafricawest southcentralus southeastasia southindia
    spaincentral swedencentral swedensouth switzerlandnorth switzerlandwest uaecentral uaenorth uksouth
    ukwest westcentralus westeurope westindia westus westus2 westus3""".split()
)
SOVEREIGN = frozenset(
    """chinaeast chinaeast2 chinaeast3 chinanorth chinanorth2 chinanorth3 usdodcentral usdodeast
    usgovarizona usgovtexas usgovvirginia""".split()
)
REGIONS = PUBLIC | SOVEREIGN


def check_region(name: str) -> None:
    """Reject names that are not Azure regions, such as `southcentralus`."""
    if name not in REGIONS:
        raise rejection(
            Code.UNKNOWN_REGION,
            "unknown region",
            "Azure has no region with this name",
            did_you_mean(name, REGIONS) or "for example `southcentralus`; `az account list-locations` lists all",
        )


Region = Annotated[str, checked(check_region), WithJsonSchema({"type": "string", "enum": sorted(REGIONS)})]
