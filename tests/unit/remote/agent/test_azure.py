"""What the guest agent reads from Azure's answers."""

from typing import Any

import pytest

from gpuinfra.remote.agent.azure import manager_of, read_notice


@pytest.mark.parametrize(
    ("events", "event_id"),
    [
        ([{"EventType": "Preempt", "EventId": "E", "Resources": ["My-VM"]}], "E"),
        ([{"EventType": "Preempt", "EventId": "E", "Resources": ["_my-vm"]}], "E"),
        ([{"EventType": "Preempt", "EventId": "E", "Resources": ["other"]}], None),
        ([{"EventType": "Reboot", "EventId": "E", "Resources": ["my-vm"]}], None),
        ([{"EventType": "Preempt", "Resources": ["my-vm"]}, 7, None], None),
        ({}, None),
        (None, None),
    ],
)
def test_eviction_notice_of_this_machine_is_found(events: Any, event_id: str | None) -> None:
    found = read_notice({"Events": events}, "my-vm")
    assert (found["EventId"] if found else None) == event_id
    assert read_notice(events, "my-vm") is None


@pytest.mark.parametrize(
    ("cloud", "manager"),
    [
        ("AzurePublicCloud", "https://management.azure.com"),
        ("AzureUSGovernmentCloud", "https://management.usgovcloudapi.net"),
        ("AzureChinaCloud", "https://management.chinacloudapi.cn"),
        ("", "https://management.azure.com"),
    ],
)
def test_resource_manager_is_that_of_the_cloud_in_the_metadata(cloud: str, manager: str) -> None:
    assert manager_of(cloud) == manager
