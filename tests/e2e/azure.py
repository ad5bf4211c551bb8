"""An embedded Azure, inspected by plain HTTP and without the program's own code."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from gpuinfra.sandbox import running as process
from gpuinfra.sandbox.running import Client

GROUP = "gpuinfra-my-dsvm"
API_VERSIONS = {
    "microsoft.compute/virtualmachines": "2024-07-01",
    "microsoft.compute/disks": "2024-03-02",
    "microsoft.devtestlab": "2018-09-15",
    "microsoft.network": "2024-05-01",
}
RESOURCES_API = "2021-04-01"


class Azure:
    """An embedded Azure: its resources, its request log and its faults, inspected by plain HTTP."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.description = process.start(folder)
        self.subscription = f"/subscriptions/{self.description.subscription}"
        self._client = Client(folder, self.description)
        self._trusted = ssl.create_default_context(cafile=self.description.ca)
        self._token = ""

    def control(self, method: str, path: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a control endpoint: what `gpuinfra sandbox log`, `fault`, `bill` use, without a process for each."""
        running = process.status(self.folder)
        assert running is not None, "the sandbox has ended"
        if running != self.description:  # a test has restarted it
            self.description, self._client = running, Client(self.folder, running)
        if path in {"clock", "reset"}:
            self._token = ""  # it may have expired by the sandbox's clock
        match method:
            case "GET":
                return self._client.get(path)
            case "POST":
                return self._client.post(path, payload or {})
            case _:
                return self._client.delete(path)

    def fault(self, name: str, **fields: Any) -> None:
        self.control("POST", "faults", {"name": name, **fields})

    def clear_faults(self) -> None:
        self.control("DELETE", "faults")

    def limit(self, region: str, limit: int, family: str = "Standard NCASv3_T4 Family") -> None:
        self.control("POST", "quota", {"region": region, "family": family, "limit": limit})

    # Requests

    def last_request(self) -> int:
        """Return the number of the last request so far."""
        return max((int(request["number"]) for request in self.control("GET", "log")["requests"]), default=0)

    def requests(self, after: int = 0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.control("GET", f"log?after={after}")["requests"]
        return found

    def writes(self, after: int = 0) -> list[str]:
        """Return all requests except reads, such as `PUT virtualMachines/my-dsvm`."""
        return [
            f"{request['method']} {'/'.join(request['path'].split('/')[-2:])}"
            for request in self.requests(after)
            if request["method"] not in {"GET", "HEAD"}
        ]

    # Resources

    def everything(self) -> list[str]:
        """Return every group and every resource, such as `disks/my-dsvm-disk`."""
        groups = self.get(f"{self.subscription}/resourcegroups")["value"]
        resources = self.get(f"{self.subscription}/resources")["value"]
        kinds = [(each["type"].rsplit("/", 1)[-1], each["name"]) for each in resources]
        return sorted(
            [f"{kind}/{name}" for kind, name in kinds] + [f"resourceGroups/{each['name']}" for each in groups]
        )

    def bodies(self) -> list[dict[str, Any]]:
        """Return every resource in full, as a GET returns it."""
        found = [self.get(each["id"]) for each in self.get(f"{self.subscription}/resources")["value"]]
        return sorted(found, key=lambda body: str(body["id"]))

    def id(self, kind: str, name: str, group: str = GROUP) -> str:
        """Return an ARM id; `kind` is a full type such as Microsoft.Compute/disks."""
        return f"{self.subscription}/resourceGroups/{group}/providers/{kind}/{name}"

    def group(self, name: str = GROUP) -> dict[str, Any]:
        return self.get(f"{self.subscription}/resourcegroups/{name}")

    def machine(self, name: str = "my-dsvm", group: str = GROUP) -> dict[str, Any]:
        """Return the VM, with its power state in `powerState`."""
        body = self.get(f"{self.id('Microsoft.Compute/virtualMachines', name, group)}?$expand=instanceView")
        codes = [status["code"] for status in body["properties"]["instanceView"]["statuses"]]
        return {**body, "powerState": next((code for code in codes if code.startswith("PowerState/")), None)}

    def part(self, kind: str, name: str, group: str = GROUP) -> dict[str, Any]:
        return self.get(self.id(kind, name, group))

    def disk(self) -> dict[str, Any]:
        return self.part("Microsoft.Compute/disks", "my-dsvm-disk")

    def address(self) -> str:
        return str(self.part("Microsoft.Network/publicIPAddresses", "my-dsvm-ip")["properties"]["ipAddress"])

    def bill(self) -> list[dict[str, Any]]:
        machines: list[dict[str, Any]] = self.control("GET", "bill")["machines"]
        return machines

    def is_billed(self) -> bool:
        """Return whether any machine is billed now."""
        return any(machine["powerState"] not in {"deallocated", "deleted"} for machine in self.bill())

    # Direct requests

    def get(self, path: str) -> dict[str, Any]:
        status, body = self.send("GET", path)
        assert status == 200, (path, status, body)
        return body

    def put(self, path: str, body: dict[str, Any]) -> None:
        status, answer = self.send("PUT", path, body)
        assert status in {200, 201, 202}, (path, status, answer)

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Send one request with the permissions of the sandbox's own client."""
        joint = "&" if "?" in path else "?"
        where = f"{path}{joint}api-version={_api_version(path)}"
        content = None if body is None else json.dumps(body)
        self._token = self._token or self.new_token()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        return self._ask(method, where, content, headers)

    def environment(self) -> dict[str, Any]:
        """Return what `gpuinfra sandbox env` prints."""
        credentials, description = self.control("GET", "credentials"), self.description
        return {
            "AZURE_TENANT_ID": credentials["tenant"],
            "AZURE_CLIENT_ID": credentials["clientId"],
            "AZURE_CLIENT_SECRET": credentials["clientSecret"],
            "AZURE_SUBSCRIPTION_ID": credentials["subscription"],
            "AZURE_AUTHORITY_HOST": description.authority,
            "GPUINFRA_ARM_ENDPOINT": description.endpoint,
            "REQUESTS_CA_BUNDLE": description.ca,
            "GPUINFRA_SSH_PORT": str(description.ssh_port),
        }

    def new_token(self) -> str:
        """Log in as the sandbox's own client."""
        credentials = self.control("GET", "credentials")
        form = {
            "grant_type": "client_credentials",
            "client_id": credentials["clientId"],
            "client_secret": credentials["clientSecret"],
            "scope": "https://management.azure.com/.default",
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        status, body = self._ask("POST", f"/{credentials['tenant']}/oauth2/v2.0/token", urlencode(form), headers)
        assert status == 200, body
        return str(body["access_token"])

    def _ask(self, method: str, path: str, content: str | None, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        host = urlsplit(self.description.endpoint)
        connection = http.client.HTTPSConnection(str(host.hostname), host.port, timeout=30, context=self._trusted)
        try:
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else {}
        finally:
            connection.close()


def _api_version(path: str) -> str:
    lowered = path.lower()
    return next((version for kind, version in API_VERSIONS.items() if kind in lowered), RESOURCES_API)


def advance(azure: Azure, seconds: float) -> None:
    """Advance the sandbox's clock."""
    azure.control("POST", "clock", {"advance": seconds})


def change_power(azure: Azure, verb: str) -> None:
    """Deallocate or start the VM, as a user does in the portal, or Azure itself."""
    status, answer = azure.send("POST", f"{azure.id('Microsoft.Compute/virtualMachines', 'my-dsvm')}/{verb}")
    assert status in {200, 202}, answer


def reset(azure: Azure) -> None:
    """Delete everything, and set the fastest profile."""
    azure.control("POST", "reset")
    azure.control("POST", "profile", {"profile": "instant"})
    azure.control("POST", "clock", {"speed": 1})
