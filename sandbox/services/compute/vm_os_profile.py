"""The `osProfile` of a VM: the admin user, its keys, and custom data."""

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Any

from gpuinfra.sandbox.kernel.errors import invalid_parameter
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.compute.fields import boolean, choice, invalid_value, required, text

# https://learn.microsoft.com/rest/api/compute/virtual-machines/create-or-update, adminUsername and adminPassword
_FORBIDDEN_NAMES = frozenset(
    "administrator admin user user1 test user2 test1 user3 admin1 1 123 a actuser adm admin2 aspnet backup console "
    "david guest john owner root server sql support support_388945a0 sys test2 test3 user4 user5".split()
)
_FORBIDDEN_PASSWORDS = frozenset(
    "abc@123 P@$$w0rd P@ssw0rd P@ssword123 Pa$$word pass@word1 Password! Password1 Password22 iloveyou!".split()
)
_MAX_CUSTOM_DATA = 87380
_MIN_RSA_BITS = 2048


@dataclass
class Profile:
    """The profile as Azure shows it, and the parts that Azure never shows."""

    shown: dict[str, Any]
    secrets: dict[str, Any] = field(default_factory=dict)


def read_profile(properties: dict[str, Any], machine_name: str) -> Profile:
    """Check the profile of a new VM."""
    given = properties.get("osProfile")
    if given is None:
        raise required("osProfile")
    profile = section(properties, "osProfile")
    if profile.get("windowsConfiguration") is not None:
        raise invalid_parameter(
            "windowsConfiguration", "The windowsConfiguration is not valid for a machine whose osType is Linux."
        )
    username = _username(profile.get("adminUsername"))
    password = _password(profile.get("adminPassword"))
    configuration = section(profile, "linuxConfiguration")
    keys = _keys(configuration, username)
    disabled = boolean(
        configuration.get("disablePasswordAuthentication"), "linuxConfiguration.disablePasswordAuthentication", False
    )
    _check_authentication(keys, password, disabled)
    custom_data = _custom_data(profile.get("customData"))
    shown = {
        "computerName": _computer_name(profile.get("computerName"), machine_name),
        "adminUsername": username,
        "linuxConfiguration": _linux(configuration, keys, disabled),
        "secrets": [],
        "allowExtensionOperations": boolean(profile.get("allowExtensionOperations"), "allowExtensionOperations", True),
        "requireGuestProvisionSignal": True,
    }
    secrets: dict[str, Any] = {"authorizedKeys": [key["keyData"].strip() for key in keys]}
    if custom_data:
        secrets["customData"] = custom_data
    if password:
        secrets["adminPassword"] = password
    return Profile(shown, secrets)


def _computer_name(value: Any, machine_name: str) -> str:
    name = text(value, "computerName") or machine_name
    if not re.fullmatch(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9.-]{0,63}", name):
        raise invalid_parameter(
            "computerName",
            "Linux host name cannot exceed 64 characters in length, be all numeric or contain the following "
            "characters: ` ~ ! @ # $ % ^ & * ( ) = + _ [ ] { } \\ | ; : ' \" , < > / ?.",
        )
    return name


def _username(value: Any) -> str:
    name = text(value, "adminUsername")
    if not name:
        raise required("adminUsername")
    if name.lower() in _FORBIDDEN_NAMES or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(?<!\.)", name):
        raise invalid_parameter("adminUsername", "The Admin Username specified is not allowed.")
    return name


def _password(value: Any) -> str | None:
    password = text(value, "adminPassword")
    if password is None:
        return None
    kinds = sum(bool(re.search(kind, password)) for kind in (r"[A-Z]", r"[a-z]", r"[0-9]", r"[^A-Za-z0-9]"))
    if not 6 <= len(password) <= 72 or kinds < 3 or re.search(r"[\x00-\x1f\x7f]", password):
        raise invalid_parameter(
            "adminPassword",
            "The supplied password must be between 6-72 characters long and must satisfy at least 3 of password "
            "complexity requirements from the following:\r\n1) Contains an uppercase character\r\n2) Contains a "
            "lowercase character\r\n3) Contains a numeric digit\r\n4) Contains a special character\r\n5) Control "
            "characters are not allowed",
        )
    if password in _FORBIDDEN_PASSWORDS:
        raise invalid_parameter("adminPassword", "The specified password is not allowed.")
    return password


def _check_authentication(keys: list[dict[str, str]], password: str | None, disabled: bool) -> None:
    if disabled and not keys:
        raise invalid_parameter(
            "linuxConfiguration",
            "Authentication using either SSH or by user name and password must be enabled in Linux profile.",
        )
    if not disabled and not keys and password is None:
        raise required("adminPassword")


def _keys(configuration: dict[str, Any], username: str) -> list[dict[str, str]]:
    name = "linuxConfiguration.ssh.publicKeys"
    path = f"/home/{username}/.ssh/authorized_keys"
    keys = []
    for given in section(section(configuration, "ssh"), "publicKeys", list):
        if not isinstance(given, dict):
            raise invalid_value(name)
        if given.get("path") not in (None, path):
            raise invalid_parameter(
                f"{name}.path",
                f"Destination path for SSH public keys is currently limited to its default value {path} due to a known "
                "issue in Linux provisioning agent.",
            )
        data = given.get("keyData")
        if not isinstance(data, str) or not _is_usable_key(data):
            raise invalid_value(f"{name}.keyData")
        keys.append({"path": path, "keyData": data})
    return keys


def _is_usable_key(line: str) -> bool:
    """Whether Azure accepts the key: RSA of at least 2048 bits, or Ed25519."""
    parts = line.split()
    if len(parts) < 2 or parts[0] not in {"ssh-rsa", "ssh-ed25519"}:
        return False
    try:
        fields = _fields(base64.b64decode(parts[1], validate=True))
    except (binascii.Error, ValueError):
        return False
    if not fields or fields[0] != parts[0].encode():
        return False
    if parts[0] == "ssh-ed25519":
        return len(fields) == 2 and len(fields[1]) == 32
    return len(fields) == 3 and int.from_bytes(fields[2], "big").bit_length() >= _MIN_RSA_BITS


def _fields(blob: bytes) -> list[bytes]:
    """Return the strings of RFC 4253 that make up a key."""
    fields = []
    while blob:
        length = int.from_bytes(blob[:4], "big")
        if len(blob) < 4 + length:
            raise ValueError("cut short")
        fields.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    return fields


def _custom_data(value: Any) -> str | None:
    data = text(value, "customData")
    if not data:
        return None
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        valid = False
    else:
        valid = len(data) <= _MAX_CUSTOM_DATA
    if not valid:
        raise invalid_parameter(
            "customData",
            "Custom data in OSProfile must be in Base64 encoding and with a maximum length of "
            f"{_MAX_CUSTOM_DATA} characters.",
        )
    return data


def _linux(configuration: dict[str, Any], keys: list[dict[str, str]], disabled: bool) -> dict[str, Any]:
    patches = section(configuration, "patchSettings")
    modes, assessments = ("ImageDefault", "AutomaticByPlatform"), ("ImageDefault", "AutomaticByPlatform")
    shown: dict[str, Any] = {"disablePasswordAuthentication": disabled}
    if keys:
        shown["ssh"] = {"publicKeys": keys}
    return shown | {
        "provisionVMAgent": boolean(configuration.get("provisionVMAgent"), "linuxConfiguration.provisionVMAgent", True),
        "patchSettings": {
            "patchMode": choice(patches.get("patchMode"), "patchSettings.patchMode", modes) or "ImageDefault",
            "assessmentMode": choice(patches.get("assessmentMode"), "patchSettings.assessmentMode", assessments)
            or "ImageDefault",
        },
    }
