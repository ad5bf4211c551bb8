"""List the available sizes with prices and quota, for `gpuinfra sizes`."""

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from gpuinfra.models.offer import Offer, PricedOffer, Quota, Quotas, SizeOffers
from gpuinfra.models.sizes import SIZES, Size
from gpuinfra.provision.market.port import Catalogue, Market, Prices

THREADS = 8

Offers = Mapping[tuple[str, str], Offer]


def list_sizes(
    market: Market, gpu: str | None = None, regions: Collection[str] = (), *, with_quota: bool = False
) -> tuple[SizeOffers, ...]:
    """Return the sizes that a spec can name, filtered by GPU and regions if given."""
    wanted = [size for size in SIZES.values() if gpu in {None, size.gpu_model} and not size.confidential]
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="sizes")
    try:
        prices = pool.submit(market.prices, [size.name for size in wanted])
        # Send the first request alone, so that the next ones find the credential ready.
        asked_for: list[str | None] = [*regions] or [None]
        offers = dict(market.offers(asked_for[0]))
        for more in pool.map(market.offers, asked_for[1:]):
            offers |= more
        found = _places(wanted, regions, offers)
        asked = sorted({offer.region for offer in found}) if with_quota else []
        quotas = dict(zip(asked, pool.map(market.quotas, asked), strict=True))
        return tuple(_listed(wanted, found, prices.result(), quotas))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _places(wanted: Iterable[Size], regions: Collection[str], offers: Offers) -> list[Offer]:
    names = {size.name for size in wanted}
    return [offer for (size, region), offer in offers.items() if size in names and (not regions or region in regions)]


def _listed(
    wanted: Iterable[Size], offers: Collection[Offer], prices: Prices, quotas: Mapping[str, Mapping[str, Quota]]
) -> Iterable[SizeOffers]:
    catalogues = {region: Catalogue(region, quotas=found) for region, found in quotas.items()}
    for size in wanted:
        places = [
            PricedOffer(offer, prices.rate(size.name, offer.region), _quotas(offer, catalogues.get(offer.region)))
            for offer in offers
            if offer.size == size.name
        ]
        if places:
            yield SizeOffers(size, tuple(sorted(places, key=_order)))


def _quotas(offer: Offer, catalogue: Catalogue | None) -> Quotas | None:
    if catalogue is None:
        return None
    return Quotas(catalogue.quota(offer.family), catalogue.cores, catalogue.spot_cores)


def _order(place: PricedOffer) -> tuple[bool, float, str]:
    """Sort offers that fit first, then by price."""
    price = place.rate.regular
    return not place.fits, float("inf") if price is None else price, place.offer.region
