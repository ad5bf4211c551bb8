"""The subscription of a spec against the one of the environment."""

from tests.e2e.azure import Azure
from tests.e2e.user import User

OTHER = "00000000-0000-4000-8000-000000000000"


def test_spec_with_another_subscription_than_the_environment_is_refused(user: User, azure: Azure) -> None:
    environment = {**azure.environment(), "GPUINFRA_CLOUD": "azure"}
    user.spec(subscription=OTHER)
    before = azure.last_request()
    for words in (("plan", "gpu.yaml"), ("up", "gpu.yaml")):
        problem = user.fails(*words, code="other-subscription", sandbox=False, **environment)
        assert OTHER in problem["note"]
        assert azure.description.subscription in problem["note"]
        assert "unset AZURE_SUBSCRIPTION_ID" in problem["help"]
    user.fails("down", "gpu.yaml", code="other-subscription", exit_code=4, sandbox=False, **environment)
    assert azure.requests(before) == []


def test_spec_with_the_subscription_of_the_environment_is_planned(user: User, azure: Azure) -> None:
    environment = {**azure.environment(), "GPUINFRA_CLOUD": "azure"}
    user.spec(subscription=azure.description.subscription)
    (plan,) = user.does("plan", "gpu.yaml", sandbox=False, **environment)["plans"]
    assert plan["subscription"] == azure.description.subscription
