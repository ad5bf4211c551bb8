"""ARM's rate limits: a token bucket per caller and kind of request."""

from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError

# Size and refill per second, since 2024: https://learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling
LIMITS = {"reads": (250, 25.0), "writes": (200, 10.0), "deletes": (200, 10.0)}
GLOBAL_FACTOR = 15
_KINDS = {"GET": "reads", "HEAD": "reads", "DELETE": "deletes"}


class Throttle:
    """Counts requests. Only the realistic profile refuses any; the headers are always present."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}

    def clear(self) -> None:
        self._buckets.clear()

    def check(self, call: Call) -> None:
        """Take a token, or raise 429."""
        kind = _KINDS.get(call.method, "writes")
        size, refill = LIMITS[kind]
        now = self.cloud.clock.now()
        left, since = self._buckets.get((call.principal.id, kind), (float(size), now))
        left = min(float(size), left + (now - since) * refill)
        if left < 1 and self.cloud.latency.profile == "realistic":
            seconds = max(1, round(self.cloud.clock.real((1 - left) / refill)))
            raise ArmError(
                429,
                "SubscriptionRequestsThrottled",
                f"Number of {kind} for subscription '{self.cloud.subscription}' exceeded the limit. Please try again "
                f"after '{seconds}' seconds.",
                headers={"Retry-After": str(seconds)},
            )
        self._buckets[call.principal.id, kind] = (max(0.0, left - 1), now)

    def headers(self, call: Call) -> dict[str, str]:
        """Return ARM's headers with the remaining requests."""
        kind = _KINDS.get(call.method, "writes")
        size, _ = LIMITS[kind]
        left = int(self._buckets.get((call.principal.id, kind), (float(size), 0.0))[0])
        return {
            f"x-ms-ratelimit-remaining-subscription-{kind}": str(left),
            f"x-ms-ratelimit-remaining-subscription-global-{kind}": str(size * (GLOBAL_FACTOR - 1) + left),
        }
