"""Roles: sets of actions that are allowed. Azure's own that matter here, and those a subscription makes itself."""

from __future__ import annotations

import re
from typing import Any

OWNER, READER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635", "acdd72a7-3385-48ef-bd42-f606fba81ae7"
BUILT_IN: dict[str, dict[str, Any]] = {
    OWNER: {
        "roleName": "Owner",
        "description": "Grants full access to manage all resources, including the ability to assign roles in Azure "
        "RBAC.",
        "actions": ["*"],
        "notActions": [],
    },
    "b24988ac-6180-42a0-ab88-20f7382dd24c": {
        "roleName": "Contributor",
        "description": "Grants full access to manage all resources, but does not allow you to assign roles in Azure "
        "RBAC, manage assignments in Azure Blueprints, or share image galleries.",
        "actions": ["*"],
        "notActions": [
            "Microsoft.Authorization/*/Delete",
            "Microsoft.Authorization/*/Write",
            "Microsoft.Authorization/elevateAccess/Action",
            "Microsoft.Blueprint/blueprintAssignments/write",
            "Microsoft.Blueprint/blueprintAssignments/delete",
            "Microsoft.Compute/galleries/share/action",
        ],
    },
    READER: {
        "roleName": "Reader",
        "description": "View all resources, but does not allow you to make any changes.",
        "actions": ["*/read"],
        "notActions": [],
    },
    "9980e02c-c2be-4d73-94e8-173b1dc7cf3c": {
        "roleName": "Virtual Machine Contributor",
        "description": "Lets you manage virtual machines, but not access to them, and not the virtual network or "
        "storage account they're connected to.",
        "actions": [
            "Microsoft.Authorization/*/read",
            "Microsoft.Compute/availabilitySets/*",
            "Microsoft.Compute/locations/*",
            "Microsoft.Compute/virtualMachines/*",
            "Microsoft.Compute/virtualMachineScaleSets/*",
            "Microsoft.Compute/disks/write",
            "Microsoft.Compute/disks/read",
            "Microsoft.Compute/disks/delete",
            "Microsoft.DevTestLab/schedules/*",
            "Microsoft.Insights/alertRules/*",
            "Microsoft.Network/locations/*",
            "Microsoft.Network/networkInterfaces/*",
            "Microsoft.Network/networkSecurityGroups/join/action",
            "Microsoft.Network/networkSecurityGroups/read",
            "Microsoft.Network/publicIPAddresses/join/action",
            "Microsoft.Network/publicIPAddresses/read",
            "Microsoft.Network/virtualNetworks/read",
            "Microsoft.Network/virtualNetworks/subnets/join/action",
            "Microsoft.ResourceHealth/availabilityStatuses/read",
            "Microsoft.Resources/deployments/*",
            "Microsoft.Resources/subscriptions/resourceGroups/read",
            "Microsoft.SerialConsole/serialPorts/connect/action",
            "Microsoft.Support/*",
        ],
        "notActions": [],
    },
}


def built_in_body(name: str, subscription: str) -> dict[str, Any] | None:
    """A role of Azure's own, as ARM shows it."""
    role = BUILT_IN.get(name.lower())
    if role is None:
        return None
    permission = {"actions": role["actions"], "notActions": role["notActions"], "dataActions": [], "notDataActions": []}
    return {
        "properties": {
            "roleName": role["roleName"],
            "type": "BuiltInRole",
            "description": role["description"],
            "assignableScopes": ["/"],
            "permissions": [permission],
            "createdOn": "2015-02-02T21:55:09.8806423Z",
            "updatedOn": "2023-07-10T15:10:53.8810757Z",
            "createdBy": None,
            "updatedBy": None,
        },
        "id": f"/subscriptions/{subscription}/providers/Microsoft.Authorization/roleDefinitions/{name.lower()}",
        "type": "Microsoft.Authorization/roleDefinitions",
        "name": name.lower(),
    }


def allows(definition: dict[str, Any], action: str) -> bool:
    """Whether a role allows an action: one of its permissions names it and does not take it away again."""
    return any(
        _matches(permission.get("actions"), action) and not _matches(permission.get("notActions"), action)
        for permission in definition["properties"]["permissions"]
    )


def _matches(patterns: list[str] | None, action: str) -> bool:
    return any(
        re.fullmatch(".*".join(re.escape(part) for part in pattern.lower().split("*")), action.lower())
        for pattern in patterns or []
    )
