"""Fixtures of runtime tests."""

import pytest
from kernel_kinds import kind, some_threads

__all__ = ["kind"]


@pytest.fixture(params=[1, 2])
def threads(request):
    with some_threads(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def without_gradients(no_gradients):
    """Run the tests of this folder without gradients."""
