"""Files and folders that usually hold credentials, recognized by their names."""

from __future__ import annotations

import re

FILES = (
    r"\.env.*",
    r".*\.env",
    r".*\.(?:key|pem|pfx|p12|ppk|jks|keystore|kdbx|publishsettings)",
    # OpenSSH's private keys. `id_map.json` is data, and `id_rsa.pub` is public.
    r"id_[^.]*",
    r"id_(?:rsa|dsa|ecdsa|ecdsa_sk|ed25519|ed25519_sk)\.(?!pub$).*",
    r"[._]netrc",
    r"\.(?:pgpass|my\.cnf|npmrc|pypirc|git-credentials|htpasswd|boto|s3cfg|vault-token|databrickscfg|dockercfg)",
    r"credentials",
    r"(?:credentials|token|application_default_credentials|client_secret.*|service[-_]account.*|kaggle)\.json",
    r"secrets\.(?:ya?ml|json|toml|env)",
    r"terraform\.tfstate.*",
    r"(?:azureprofile|accesstokens|msal_token_cache.*|service_principal_entries)\.(?:json|bin)",
    r"kubeconfig",
)
FOLDERS = (r"\.(?:azure|aws|ssh|gnupg|kube|docker|gcloud)",)
_FILE, _FOLDER = (re.compile("|".join(names), re.IGNORECASE) for names in (FILES, FOLDERS))


def may_hold_credentials(name: str, is_folder: bool) -> bool:
    """Return whether a file or folder with this name usually holds credentials."""
    return (_FOLDER if is_folder else _FILE).fullmatch(name) is not None
