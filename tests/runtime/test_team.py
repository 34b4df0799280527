"""Threads of the native kernels: results do not depend on their number or on who calls."""

import multiprocessing
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from espnet_medusa.runtime.native.library import kernels
from espnet_medusa.runtime.native.operations import NativeLinear

pytestmark = pytest.mark.skipif(kernels() is None, reason="no native kernels")


@pytest.fixture
def products():
    """A function that multiplies with a number of threads, and the products of one thread."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    linear, rows = NativeLinear(torch.randn(500, 64), None), torch.randn(7, 64)

    def multiply(count: int) -> torch.Tensor:
        torch.set_num_threads(count)
        return linear(rows)

    yield multiply, multiply(1)
    torch.set_num_threads(threads)


def test_number_of_threads(products):
    multiply, expected = products
    for count in (2, 3, 1, 5, 2, 2):
        assert torch.equal(multiply(count), expected)


def test_callers_at_the_same_time(products):
    multiply, expected = products
    with ThreadPoolExecutor(4) as pool:
        for product in pool.map(lambda _: multiply(2), range(200)):
            assert torch.equal(product, expected)


def test_forked_process(products):
    multiply, expected = products
    multiply(2)  # starts the parent's threads
    process = multiprocessing.get_context("fork").Process(
        target=lambda: sys.exit(not torch.equal(multiply(2), expected))
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0
