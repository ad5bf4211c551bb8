"""Options and fixtures that all tests share."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-cases", action="store_true", help="write the expected output of case files anew")


@pytest.fixture
def update_cases(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-cases"))
