"""What tests of runtimes share."""

import pytest
from kernel_kinds import KINDS, forget, some_threads

from espnet_medusa.runtime.native import build, library
from espnet_medusa.runtime.native.instruction_sets import VARIABLE


@pytest.fixture(params=KINDS, ids="".join)
def kind(request, monkeypatch):
    """Kernels as this processor runs them, and as lesser ones would."""
    name, options = request.param
    monkeypatch.setenv("CXX", " ".join(build.find_compiler()) + options)
    monkeypatch.setenv(VARIABLE, name)
    forget()
    assert library.kernels() is not None
    yield name + options
    monkeypatch.undo()
    forget()


@pytest.fixture(params=[1, 2])
def threads(request):
    """So many of torch's."""
    with some_threads(request.param):
        yield request.param
