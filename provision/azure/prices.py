"""Query the Retail Prices API, which needs no login.

https://learn.microsoft.com/rest/api/cost-management/retail-prices
Errors never propagate: if a request fails, the price is unknown.
"""

import http.client
import json
import os
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from gpuinfra.models.sizes import Rate
from gpuinfra.provision.azure.access import LOOPBACK
from gpuinfra.provision.market import Prices
from gpuinfra.workspace import write_text

# This version has pages of 1000 items; the version before it has 100.
API_VERSION = "2023-01-01-preview"
TIMEOUT = 10
THREADS = 4
MAX_PAGES = 20
DAY = 24 * 3600

Rates = dict[str, Rate]
"""The rates of one size by region."""
Fetch = Callable[[str], Mapping[str, Any]]


class PriceService:
    """A client that requests each size once, for all regions, and caches the result for a day."""

    def __init__(self, endpoint: str | None, ca: str | None = None, fetch: Fetch | None = None) -> None:
        self.endpoint = endpoint
        self._fetch = fetch or _fetcher(ca)
        host = urlsplit(endpoint).hostname if endpoint else None
        # Prices of a server on this computer are not worth caching.
        self._cache = Cache(cache_folder() / f"prices-{host}.json") if host and host not in LOOPBACK else None
        self._known: dict[str, Rates] = {}
        self._is_down = False

    def prices(self, sizes: Iterable[str]) -> Prices:
        """Return the prices of these sizes in all regions where they are sold."""
        wanted = list(dict.fromkeys(sizes))
        if self.endpoint is None:
            return Prices()
        if self._cache and not self._known:
            self._known = self._cache.read()
        missing = [size for size in wanted if size not in self._known]
        if missing:
            with ThreadPoolExecutor(THREADS, thread_name_prefix="prices") as pool:
                answers = dict(zip(missing, pool.map(self._ask, missing), strict=True))
            found = {size: rates for size, rates in answers.items() if rates is not None}
            self._known = {**self._known, **found}
            if self._cache and found:
                self._cache.write(self._known)
        return Prices({(size, region): rate for size in wanted for region, rate in self._known.get(size, {}).items()})

    def _ask(self, size: str) -> Rates | None:
        if self._is_down:
            return None  # do not wait for another timeout
        wanted = f"serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and armSkuName eq '{size}'"
        link: str | None = f"{self.endpoint}?api-version={API_VERSION}&$filter={quote(wanted)}"
        items: list[Mapping[str, Any]] = []
        try:
            for _ in range(MAX_PAGES):
                if not link:
                    break
                page = self._fetch(link)
                items += page["Items"]
                link = self._next(page.get("NextPageLink"))
            return rates_of(items)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
            self._is_down = True
            return None

    def _next(self, link: str | None) -> str | None:
        # The service sometimes adds a port to its own name, so compare only the host.
        if link and urlsplit(link).hostname != urlsplit(self.endpoint or "").hostname:
            raise ValueError("the next page is somewhere else")
        return link


def rates_of(items: Iterable[Mapping[str, Any]]) -> Rates:
    """Return the Linux prices by region. Windows and low priority are sold under the same size name."""
    rates: dict[str, dict[str, tuple[str, float]]] = {}
    for item in items:
        kind = _kind(item)
        if kind is None:
            continue
        mine = rates.setdefault(str(item["armRegionName"]), {})
        since = str(item.get("effectiveStartDate") or "")
        if kind not in mine or since > mine[kind][0]:
            mine[kind] = (since, float(item["retailPrice"]))
    return {
        region: Rate(*(mine[kind][1] if kind in mine else None for kind in ("regular", "spot")))
        for region, mine in rates.items()
    }


def _kind(item: Mapping[str, Any]) -> str | None:
    product, sku = str(item.get("productName") or ""), str(item.get("skuName") or "")
    meter = str(item.get("meterName") or "")
    if product.endswith((" Windows", " Win")) or "CloudServices" in product.replace(" ", ""):
        return None
    if sku.endswith(" Low Priority") or meter.endswith(" Low Priority"):
        return None
    if item.get("currencyCode") != "USD" or item.get("unitOfMeasure") != "1 Hour" or not item.get("armRegionName"):
        return None
    return "spot" if sku.endswith(" Spot") else "regular"


def _fetcher(ca: str | None) -> Fetch:
    trusted, lock = cache(_trusted), threading.Lock()

    def fetch(link: str) -> Mapping[str, Any]:
        if urlsplit(link).scheme != "https":
            raise ValueError("prices are asked for over https only")
        with lock:
            context = trusted(ca)
        with urllib.request.urlopen(link, timeout=TIMEOUT, context=context) as answer:  # noqa: S310 https, see above
            page: Mapping[str, Any] = json.load(answer)
            return page

    return fetch


def _trusted(ca: str | None) -> ssl.SSLContext:
    """Return the authorities to trust: only `ca` if given, since loading the system's takes long."""
    context = ssl.create_default_context(cafile=ca)
    bundle = None if ca else os.environ.get("REQUESTS_CA_BUNDLE")
    if bundle and Path(bundle).is_dir():
        context.load_verify_locations(capath=bundle)
    elif bundle:
        context.load_verify_locations(bundle)
    return context


class Cache:
    """A price cache on disk. Read and write errors are ignored."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.path, self._now = path, now

    def read(self) -> dict[str, Rates]:
        """Return the cached prices, or an empty dict if they are older than a day."""
        try:
            if not 0 <= self._now() - self.path.stat().st_mtime < DAY:
                return {}
            kept = json.loads(self.path.read_text("utf-8"))
            return {
                size: {region: Rate(*map(_number, rate)) for region, rate in rates.items()}
                for size, rates in kept["sizes"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def write(self, prices: Mapping[str, Rates]) -> None:
        """Save the prices. A file less than a day old keeps its timestamp, so that no price is used after a day."""
        plain = {
            size: {region: [rate.regular, rate.spot] for region, rate in rates.items()}
            for size, rates in prices.items()
        }
        try:
            since = self.path.stat().st_mtime if self.read() else None
            write_text(self.path, json.dumps({"sizes": plain}), replace=True)
            if since is not None:
                os.utime(self.path, (since, since))
        except OSError:
            pass


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def cache_folder() -> Path:
    """Return the folder for data that can be downloaded again."""
    home = os.environ.get("XDG_CACHE_HOME") or ""
    # The XDG Base Directory Specification says to ignore a relative path.
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "gpuinfra"
