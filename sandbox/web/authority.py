"""The OpenID authority of the one tenant, its tokens, and the certificates of the server."""

import base64
import hashlib
import hmac
import ipaddress
import json
import secrets
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpuinfra.sandbox.kernel.call import Principal
from gpuinfra.sandbox.kernel.clock import Clock
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.store import Store

LIFETIME = 3600
AUDIENCE = "https://management.azure.com/"
_AUDIENCES = {AUDIENCE.rstrip("/"), "https://management.core.windows.net", "https://management.usgovcloudapi.net"}
"""Of tokens for Azure Resource Manager. It refuses those for other services, such as registries."""


class Authority:
    """Issues and verifies tokens. They expire by the simulated clock."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store, self.clock = store, clock

    def openid_configuration(self, base_url: str, tenant: str) -> dict[str, Any]:
        root = f"{base_url}/{tenant}"
        return {
            "token_endpoint": f"{root}/oauth2/v2.0/token",
            "token_endpoint_auth_methods_supported": ["client_secret_post", "private_key_jwt"],
            "jwks_uri": f"{root}/discovery/v2.0/keys",
            "response_modes_supported": ["query", "fragment", "form_post"],
            "subject_types_supported": ["pairwise"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "response_types_supported": ["code", "id_token", "code id_token", "id_token token"],
            "scopes_supported": ["openid", "profile", "email", "offline_access"],
            "issuer": f"{root}/v2.0",
            "authorization_endpoint": f"{root}/oauth2/v2.0/authorize",
            "device_authorization_endpoint": f"{root}/oauth2/v2.0/devicecode",
            "end_session_endpoint": f"{root}/oauth2/v2.0/logout",
            "tenant_region_scope": None,
            "cloud_instance_name": "sandbox",
        }

    def token_for_client(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Answer the token endpoint for the tenant's own client."""
        if form.get("grant_type") != "client_credentials":
            return 400, _refusal("unsupported_grant_type", "AADSTS70003: The app requested an unsupported grant type.")
        if not hmac.compare_digest(form.get("client_id", ""), self.store.setting("client-id")):
            return 400, _refusal("unauthorized_client", "AADSTS700016: Application was not found in the directory.")
        if not hmac.compare_digest(form.get("client_secret", ""), self.store.setting("client-secret")):
            return 401, _refusal("invalid_client", "AADSTS7000215: Invalid client secret provided.")
        return 200, self.token(self.store.setting("client-object-id"), form["client_id"], owner=True)

    def token(self, object_id: str, application_id: str, *, owner: bool, audience: str = AUDIENCE) -> dict[str, Any]:
        """Return a token. `expires_in` is in real seconds."""
        now = self.clock.now()
        tenant = self.store.setting("tenant")
        claims = {
            "aud": audience,
            "iss": f"https://sts.windows.net/{tenant}/",
            "iat": int(now),
            "nbf": int(now),
            "exp": int(now) + LIFETIME,
            "appid": application_id,
            "oid": object_id,
            "sub": object_id,
            "tid": tenant,
            "ver": "1.0",
            "idtyp": "app",
            "own": owner,
        }
        seconds = max(1, int(self.clock.real(LIFETIME)))
        return {
            "token_type": "Bearer",
            "expires_in": seconds,
            "ext_expires_in": seconds,
            "access_token": self._sign(claims),
        }

    def principal(self, header: str | None) -> Principal:
        """Return the caller of a request, or raise ARM's 401."""
        if not header:
            raise _unauthorized("AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
        kind, _, token = header.partition(" ")
        claims = self._read(token.strip()) if kind.lower() == "bearer" else None
        if claims is None:
            raise _unauthorized("InvalidAuthenticationToken", "The access token is invalid.")
        if claims["exp"] <= self.clock.now():
            message = "The access token expiry UTC time is earlier than current UTC time."
            raise _unauthorized("ExpiredAuthenticationToken", message)
        if claims["aud"].rstrip("/") not in _AUDIENCES:
            message = f"The access token has been obtained for wrong audience or resource '{claims['aud']}'."
            raise _unauthorized("InvalidAuthenticationTokenAudience", message)
        return Principal(claims["oid"], bool(claims["own"]))

    def _sign(self, claims: dict[str, Any]) -> str:
        head = _encode(json.dumps({"typ": "JWT", "alg": "HS256", "kid": "sandbox"}).encode())
        body = _encode(json.dumps(claims).encode())
        return f"{head}.{body}.{self._signature(f'{head}.{body}')}"

    def _signature(self, text: str) -> str:
        key = self.store.setting("token-key").encode()
        return _encode(hmac.new(key, text.encode(), hashlib.sha256).digest())

    def _read(self, token: str) -> dict[str, Any] | None:
        parts = token.split(".")
        if len(parts) != 3 or not token.isascii():
            return None
        if not hmac.compare_digest(self._signature(f"{parts[0]}.{parts[1]}"), parts[2]):
            return None
        claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return claims


def new_secret() -> str:
    """Return a random secret that does not begin with `-`, which `az login -p` and others read as an option."""
    while (found := secrets.token_urlsafe(32)).startswith("-"):
        pass
    return found


def make_identities(store: Store) -> None:
    """Create the ids and secrets of a sandbox, once."""
    for name in ("tenant", "subscription", "client-id", "client-object-id"):
        if store.setting(name) is None:
            store.set_setting(name, str(uuid.uuid4()))
    for name in ("client-secret", "token-key"):
        if store.setting(name) is None:
            store.set_setting(name, new_secret())


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _refusal(code: str, description: str) -> dict[str, Any]:
    return {
        "error": code,
        "error_description": description,
        "error_codes": [int("".join(filter(str.isdigit, description.partition(":")[0])))],
    }


def _unauthorized(code: str, message: str) -> ArmError:
    challenge = f'Bearer error="invalid_token", error_description="{message}"'
    return ArmError(401, code, message, headers={"WWW-Authenticate": challenge})


YEARS = timedelta(days=3650)


def make_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Return the files of the CA certificate, the server certificate and the server key; created once."""
    authority, server, key_file = folder / "ca.pem", folder / "server.pem", folder / "server.key"
    if not (authority.exists() and server.exists() and key_file.exists()):
        ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        ca = _authority(ca_key)
        certificate = _server(key, ca, ca_key)
        key_file.touch(mode=0o600)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        server.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        authority.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    return authority, server, key_file


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + YEARS)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    unused = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only".split()
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **dict.fromkeys(unused, False))
    return (
        _builder("gpuinfra sandbox", _name("gpuinfra sandbox"), key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _server(
    key: ec.EllipticCurvePrivateKey, authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    return (
        _builder("localhost", authority.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
