"""What tests of runtimes share."""

import pytest
from kernel_kinds import kind, some_threads

__all__ = ["kind"]


@pytest.fixture(params=[1, 2])
def threads(request):
    """So many of torch's."""
    with some_threads(request.param):
        yield request.param
