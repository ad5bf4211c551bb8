"""What an hour costs: as it was written down at the time, by Azure's list of today, or by the list that is shipped."""

from __future__ import annotations

from gpuinfra.models.sizes import SIZES
from gpuinfra.provision.costing.facts import Facts
from gpuinfra.provision.market.port import Prices
from gpuinfra.provision.market.price_list import DATE

RECORDED = "recorded when the machine was switched on"
TODAY = "Azure's price list of today"
SHIPPED = f"the list of {DATE} that comes with gpuinfra"
UNKNOWN = "not known for all of the time"

_SIZES = {name.casefold(): name for name in SIZES}


class PriceBook:
    """Finds prices, and remembers where they came from."""

    def __init__(self, today: Prices, shipped: Prices) -> None:
        self._today, self._shipped = today, shipped
        self._used: dict[str, None] = {}

    @property
    def used(self) -> tuple[str, ...]:
        """Where the prices that were asked for came from."""
        return tuple(self._used)

    def __call__(self, facts: Facts) -> float | None:
        """US dollars an hour; None where nobody knows."""
        if facts.price is not None:
            return self._from(RECORDED, facts.price)
        size, region = standard(facts.size or ""), facts.region or ""
        for words, prices in ((TODAY, self._today), (SHIPPED, self._shipped)):
            price = prices.price(size, region, spot=facts.spot)
            if price is not None:
                return self._from(words, price)
        return self._from(UNKNOWN, None)

    def _from(self, words: str, price: float | None) -> float | None:
        self._used[words] = None
        return price


def standard(size: str) -> str:
    """A size as Azure's price list spells it: a machine keeps the case in which it was asked for."""
    return _SIZES.get(size.casefold(), size)
