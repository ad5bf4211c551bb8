"""Find hourly prices: recorded at the time, from Azure's current list, or from the list shipped with gpuinfra."""

from gpuinfra.provision.costing.facts import Facts
from gpuinfra.provision.market.port import Prices
from gpuinfra.provision.market.price_list import DATE
from gpuinfra.provision.observed_resource import standard_size

RECORDED = "recorded when the machine was switched on"
TODAY = "Azure's price list of today"
SHIPPED = f"the list of {DATE} that comes with gpuinfra"
UNKNOWN = "not known for all of the time"


class PriceBook:
    """A price lookup that remembers the origin of the prices used."""

    def __init__(self, today: Prices, shipped: Prices) -> None:
        self._today, self._shipped = today, shipped
        self._used: dict[str, None] = {}

    @property
    def used(self) -> tuple[str, ...]:
        """The origins of the prices returned so far."""
        return tuple(self._used)

    def __call__(self, facts: Facts) -> float | None:
        """Return US dollars per hour, or None if unknown."""
        if facts.price is not None:
            return self._from(RECORDED, facts.price)
        size, region = standard_size(facts.size or ""), facts.region or ""
        for words, prices in ((TODAY, self._today), (SHIPPED, self._shipped)):
            price = prices.price(size, region, spot=facts.spot)
            if price is not None:
                return self._from(words, price)
        return self._from(UNKNOWN, None)

    def _from(self, words: str, price: float | None) -> float | None:
        self._used[words] = None
        return price
