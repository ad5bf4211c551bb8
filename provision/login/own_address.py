"""Find the public IP address of this computer."""

import http.client
import ipaddress
import ssl

from gpuinfra.diagnostics import Code, Diagnostic, Problem

# Plain-text services; the second is used if the first does not answer.
SERVICES = (("checkip.amazonaws.com", "/"), ("api.ipify.org", "/"))
SECONDS = 5.0


def own_address() -> str:
    """Return the public IPv4 address of this computer. Raise Problem if no service answers."""
    for host, path in SERVICES:
        found = _ask(host, path)
        if found:
            return found
    raise Problem(
        Diagnostic(
            Code.NO_OWN_ADDRESS,
            "own address is not known",
            note="`allowSshFrom: auto` needs it, and no service would tell",
            help="name the addresses: `network: {allowSshFrom: [203.0.113.7/32]}`",
        )
    )


def _ask(host: str, path: str) -> str | None:
    connection = http.client.HTTPSConnection(host, timeout=SECONDS, context=ssl.create_default_context())
    try:
        connection.request("GET", path, headers={"User-Agent": "gpuinfra"})
        text = connection.getresponse().read(64).decode("ascii").strip()
        return str(ipaddress.IPv4Address(text))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
