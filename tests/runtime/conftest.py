"""What tests of runtimes share."""

import pytest
from kernel_kinds import KINDS, forget, some_threads

from espnet_medusa.runtime.native import build, library


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch):
    """Kernels as this processor runs them, and as lesser ones would."""
    compiler = " ".join(build.find_compiler())
    monkeypatch.setenv("CXX", compiler + request.param)
    forget()
    found = library.kernels()
    if KINDS[request.param] == "AVX512_VNNI, AVX512_BF16" and found.kind() == b"AVX512_VNNI":
        pytest.skip("this processor has no instructions for bfloat16")
    assert KINDS[request.param] in (None, found.kind().decode())
    yield request.param
    monkeypatch.undo()
    forget()


@pytest.fixture(params=[1, 2])
def threads(request):
    """So many of torch's."""
    with some_threads(request.param):
        yield request.param
