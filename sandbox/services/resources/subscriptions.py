"""The subscription and its locations, the tenant, and the cloud's endpoints."""

from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, Service
from gpuinfra.sandbox.services.common import require_subscription

service = Service()

NAME = "gpuinfra sandbox (simulated)"


def _subscription(cloud: Cloud) -> dict[str, Any]:
    return {
        "id": f"/subscriptions/{cloud.subscription}",
        "authorizationSource": "RoleBased",
        "managedByTenants": [],
        "tags": {},
        "subscriptionId": cloud.subscription,
        "tenantId": cloud.tenant,
        "displayName": NAME,
        "state": "Enabled",
        "subscriptionPolicies": {
            "locationPlacementId": "Public_2014-09-01",
            "quotaId": "PayAsYouGo_2014-09-01",
            "spendingLimit": "Off",
        },
    }


@service.route("GET", "/subscriptions")
def _list_subscriptions(call: Call) -> Answer:
    return Answer(200, {"value": [_subscription(call.cloud)], "count": {"type": "Total", "value": 1}})


@service.route("GET", SUBSCRIPTION)
def _get_subscription(call: Call) -> Answer:
    require_subscription(call)
    return Answer(200, _subscription(call.cloud))


@service.route("GET", "/tenants")
def _list_tenants(call: Call) -> Answer:
    tenant = {
        "id": f"/tenants/{call.cloud.tenant}",
        "tenantId": call.cloud.tenant,
        "countryCode": "US",
        "displayName": NAME,
        "domains": ["sandbox.invalid"],
        "tenantCategory": "Home",
        "defaultDomain": "sandbox.invalid",
        "tenantType": "AAD",
    }
    return Answer(200, {"value": [tenant]})


@service.route("GET", f"{SUBSCRIPTION}/locations")
def _list_locations(call: Call) -> Answer:
    require_subscription(call)
    value = [
        {
            "id": f"/subscriptions/{call.cloud.subscription}/locations/{region.name}",
            "name": region.name,
            "type": "Region",
            "displayName": region.display_name,
            "regionalDisplayName": region.display_name,
            "metadata": {"regionType": "Physical", "regionCategory": "Recommended"},
            "availabilityZoneMappings": [
                {"logicalZone": zone, "physicalZone": f"{region.name}-az{zone}"} for zone in region.zones
            ],
        }
        for region in call.cloud.catalogue.regions()
    ]
    return Answer(200, {"value": value})


@service.route("GET", "/metadata/endpoints")
def get_endpoints(call: Call) -> Answer:
    """Return the endpoints that `az cloud register` reads. There is no graph, gallery or storage."""
    base, nowhere = call.base_url, "sandbox.invalid"
    return Answer(
        200,
        {
            "name": "Sandbox",
            "portal": f"https://portal.{nowhere}",
            "authentication": {
                "loginEndpoint": base,
                "audiences": ["https://management.core.windows.net/", "https://management.azure.com/"],
                "tenant": "common",
                "identityProvider": "AAD",
            },
            "resourceManager": f"{base}/",
            "media": f"https://media.{nowhere}",
            "graph": f"https://graph.{nowhere}/",
            "graphAudience": f"https://graph.{nowhere}/",
            "microsoftGraphResourceId": f"https://graph.{nowhere}/",
            "gallery": f"https://gallery.{nowhere}/",
            "batch": f"https://batch.{nowhere}/",
            "sqlManagement": f"https://sql.{nowhere}:8443/",
            "vmImageAliasDoc": f"https://{nowhere}/aliases.json",
            "activeDirectoryDataLake": f"https://datalake.{nowhere}/",
            "suffixes": {
                "storage": f"core.{nowhere}",
                "keyVaultDns": f"vault.{nowhere}",
                "sqlServerHostname": f"database.{nowhere}",
                "acrLoginServer": f"azurecr.{nowhere}",
            },
        },
    )
