"""Names of machines, groups, targets, users, subscriptions and regions, and tags. Each check names the broken rule."""

import re
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from gpuinfra.diagnostics import Code, did_you_mean
from gpuinfra.models.base import checked, parsed, rejection, whole

# https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
MACHINE_NAME_LENGTH = 64
RESOURCE_GROUP_LENGTH = 90
_NOT_IN_RESOURCE_GROUP = r"[^A-Za-z0-9_().-]"

# https://learn.microsoft.com/azure/azure-resource-manager/troubleshooting/error-reserved-resource-name
# Only words that could be a machine name: those with an underscore or a period are invalid anyway.
RESERVED_NAMES = frozenset(
    """access azure bing bizspark biztalk cortana directx dotnet dynamics excel exchange forefront
    groove hololens hyperv kinect lync msdn o365 office office365 onedrive onenote outlook powerpoint
    sharepoint skype visio visualstudio xbox""".split()
)
RESERVED_ANYWHERE = ("microsoft", "windows")
RESERVED_AT_START = "login"

# `submit -c local` and `submit -c docker` run on this computer.
BUILT_IN_TARGETS = frozenset({"local", "docker"})

# https://learn.microsoft.com/rest/api/compute/virtual-machines/create-or-update#osprofile
DISALLOWED_USERNAMES = frozenset(
    """1 123 a actuser adm admin admin1 admin2 administrator aspnet backup console david guest john
    owner root server sql support support_388945a0 sys test test1 test2 test3 user user1 user2 user3
    user4 user5""".split()
)


def check_machine_name(name: str) -> None:
    """Check Azure's rules for a Linux VM, which also fit the resources named after it."""
    if not name:
        raise _bad_name("it is empty", "use 1 to 64 letters, digits and hyphens")
    if len(name) > MACHINE_NAME_LENGTH:
        raise _bad_name(f"{len(name)} characters; Azure allows {MACHINE_NAME_LENGTH}")
    if found := re.search(r"[^A-Za-z0-9-]", name):
        raise _bad_name(
            f"{_shown(found.group())} is not allowed; use letters, digits and hyphens",
            _suggestion(name),
        )
    if name.startswith("-"):
        raise _bad_name("it starts with a hyphen; network resources must start with a letter or digit")
    if name.endswith("-"):
        raise _bad_name("it ends with a hyphen, which Azure does not allow")
    _check_reserved(name.lower())


def _check_reserved(name: str) -> None:
    if name in RESERVED_NAMES:
        raise _bad_name(f"Azure reserves the word `{name}`", f"add to it: `{name}-gpu`")
    for word in RESERVED_ANYWHERE:
        if word in name:
            raise _bad_name(f"Azure reserves the word `{word}`, even inside a name")
    if name.startswith(RESERVED_AT_START):
        raise _bad_name(f"Azure reserves `{RESERVED_AT_START}` at the start of a name")
    if name in BUILT_IN_TARGETS:
        raise _bad_name(f"`{name}` is the built-in target for this computer", f"add to it: `{name}-gpu`")


def _bad_name(label: str, help: str | None = None) -> Exception:  # noqa: A002
    return rejection(Code.BAD_NAME, "invalid machine name", label, help)


def _suggestion(name: str) -> str | None:
    candidate = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
    try:
        check_machine_name(candidate)
    except ValueError:
        return None
    return f"for example `{candidate}`"


def _shown(character: str) -> str:
    if character == " ":
        return "a space"
    return f"`{character}`" if character.isprintable() else f"U+{ord(character):04X}"


def check_resource_group(name: str) -> None:
    """Check Azure's rules for a resource group, limited to ASCII."""
    if not name:
        raise _bad_group("it is empty")
    if len(name) > RESOURCE_GROUP_LENGTH:
        raise _bad_group(f"{len(name)} characters; Azure allows {RESOURCE_GROUP_LENGTH}")
    meant = re.sub(f"{_NOT_IN_RESOURCE_GROUP}+", "-", name).strip("-.")
    if found := re.search(_NOT_IN_RESOURCE_GROUP, name):
        label = f"{_shown(found.group())} is not allowed; use letters, digits, `_`, `-`, `.` and parentheses"
        raise _bad_group(label, meant)
    if name.endswith("."):
        raise _bad_group("it ends with a period, which Azure does not allow", meant)


def _bad_group(label: str, meant: str = "") -> Exception:
    help_line = (
        f"for example `{meant}`" if meant else "remove the line for the default, `gpuinfra-` and the machine's name"
    )
    return rejection(Code.BAD_NAME, "invalid resource group name", label, help_line)


def check_target_name(name: str) -> None:
    """Check a target's name, which is also the name of `NAME.compute` and `NAME.runconfig`."""
    if name.lower() in BUILT_IN_TARGETS:
        raise rejection(Code.BAD_NAME, "invalid target name", f"`{name}` is the built-in target for this computer")
    if not re.fullmatch(TARGET_NAME, name):
        raise rejection(
            Code.BAD_NAME,
            "invalid target name",
            "use 1 to 64 letters, digits, `_` and `-`, starting with a letter or digit",
        )


def check_username(name: str) -> None:
    """Check Azure's list of refused names, and what `useradd` on Ubuntu accepts."""
    if name.lower() in DISALLOWED_USERNAMES:
        raise rejection(
            Code.BAD_USERNAME,
            "invalid administrator name",
            f"Azure does not allow `{name}`",
            "for example `azureuser`",
        )
    if not re.fullmatch(USERNAME, name):
        raise rejection(
            Code.BAD_USERNAME,
            "invalid administrator name",
            "use 1 to 32 lower-case letters, digits, `_` and `-`, starting with a letter or `_`",
        )


def _any_case(words: frozenset[str]) -> str:
    # JSON Schema has no case-insensitive flag.
    spelt = ("".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in word) for word in sorted(words))
    return f"(?:{'|'.join(spelt)})"


TARGET_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
USERNAME = r"[a-z_][a-z0-9_-]{0,31}"
RESOURCE_GROUP = r"[A-Za-z0-9_().-]{0,89}[A-Za-z0-9_()-]"

_MACHINE_NAME = (
    rf"(?!{_any_case(RESERVED_NAMES | BUILT_IN_TARGETS)}$)"
    rf"(?!.*{_any_case(frozenset(RESERVED_ANYWHERE))})"
    rf"(?!{_any_case(frozenset({RESERVED_AT_START}))})"
    r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}[A-Za-z0-9])?"
)

MachineName = Annotated[
    str,
    checked(check_machine_name),
    WithJsonSchema({"type": "string", "pattern": whole(_MACHINE_NAME)}),
]
ResourceGroupName = Annotated[
    str,
    checked(check_resource_group),
    WithJsonSchema({"type": "string", "pattern": whole(RESOURCE_GROUP)}),
]
TargetName = Annotated[
    str,
    checked(check_target_name),
    WithJsonSchema({"type": "string", "pattern": whole(rf"(?!{_any_case(BUILT_IN_TARGETS)}$){TARGET_NAME}")}),
]
Username = Annotated[
    str,
    checked(check_username),
    WithJsonSchema(
        {"type": "string", "pattern": whole(rf"(?!(?:{'|'.join(sorted(DISALLOWED_USERNAMES))})$){USERNAME}")}
    ),
]


SUBSCRIPTION = "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"


def parse_subscription(text: str) -> str:
    """Return a subscription's id in lower case: Azure ignores case."""
    if re.fullmatch(SUBSCRIPTION, text):
        return text.lower()
    # People paste `/subscriptions/ID`, and ids in braces.
    found = re.search(SUBSCRIPTION, text)
    raise rejection(
        Code.BAD_SUBSCRIPTION,
        "invalid subscription",
        "expected a subscription id (a UUID)",
        f"did you mean `{found.group()}`?" if found else "`az account list --output table` lists names and ids",
    )


Subscription = Annotated[
    str,
    parsed(parse_subscription),
    WithJsonSchema({"type": "string", "pattern": whole(SUBSCRIPTION)}),
]


# Azure allows 50 per resource; gpuinfra uses 10.
MAX_TAGS = 40
OUR_PREFIX = "gpuinfra:"

_FORBIDDEN = r"<>%&\\?/"
_RESERVED = "[Mm][Ii][Cc][Rr][Oo][Ss][Oo][Ff][Tt]|[Aa][Zz][Uu][Rr][Ee]|[Ww][Ii][Nn][Dd][Oo][Ww][Ss]"
_OURS = "[Gg][Pp][Uu][Ii][Nn][Ff][Rr][Aa]:"
TAG_NAME = rf"(?!{_OURS}|{_RESERVED})[^{_FORBIDDEN}\x00-\x1f\x7f]{{1,512}}"
TAG_VALUE = r"[^\x00-\x1f\x7f]{0,256}"


def check_tag_name(name: str) -> None:
    """Reject tag names that Azure does not allow, and reserved prefixes."""
    if re.fullmatch(TAG_NAME, name):
        return
    if re.match(_OURS, name):
        label = f"names starting with `{OUR_PREFIX}` are reserved: gpuinfra finds its machines by them"
    elif re.match(_RESERVED, name):
        label = "Azure reserves names starting with `microsoft`, `azure` or `windows`"
    elif found := re.search(f"[{_FORBIDDEN}]", name):
        label = f"Azure does not allow `{found.group()}` in tag names"
    else:
        label = "expected 1 to 512 printable characters"
    raise rejection(Code.BAD_TAG, "invalid tag", label)


def check_tag_value(value: str) -> None:
    """Reject values with more than 256 characters or more than one line."""
    if not re.fullmatch(TAG_VALUE, value):
        label = f"{len(value)} characters; Azure allows 256" if len(value) > 256 else "expected one line of text"
        raise rejection(Code.BAD_TAG, "invalid tag", label)


def _check_count(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > MAX_TAGS:
        label = f"{len(tags)} tags; Azure allows 50, and gpuinfra uses 10 of them"
        raise rejection(Code.BAD_TAG, "too many tags", label)
    return tags


Tags = Annotated[
    dict[Annotated[str, checked(check_tag_name)], Annotated[str, checked(check_tag_value)]],
    AfterValidator(_check_count),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": MAX_TAGS,
            "propertyNames": {"pattern": whole(TAG_NAME)},
            "additionalProperties": {"type": "string", "pattern": whole(TAG_VALUE)},
        }
    ),
]


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
