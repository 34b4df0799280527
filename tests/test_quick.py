"""make quick: its tests are those of what has changed, the closest first, within a limit."""

import sys

import pytest

sys.path.append(__file__.rpartition("/tests/")[0] + "/tools")
quick_tests = pytest.importorskip("quick_tests", reason="pip install import-linter")


@pytest.fixture(scope="module")
def imports():
    return quick_tests.Imports()


def test_tests_of_a_module_are_ordered_by_closeness(imports):
    tests, path = quick_tests.all_tests(), "espnet_medusa/data/audio/reader.py"
    found = quick_tests.order_tests([path], tests, imports, {})
    places = {test: place for place, test in enumerate(found)}
    own = [test for test in found if test.startswith("tests/data/audio/")]
    assert found[: len(own)] == own and "tests/data/audio/test_reader.py" in own
    inference, recipe = "tests/inference/test_asr_inference.py", "tests/recipes/test_asr_sh.py"
    assert len(own) <= places[inference] < places[recipe], "asr.sh reads audio in processes"
    assert "tests/decoding/tree/test_top_tokens.py" not in found

    # A support module counts as what imports it; a deleted module and data as their folder.
    found = quick_tests.order_tests(["tests/support/waiting.py", inference], tests, imports, {})
    assert found[0] == inference and recipe in found and len(found) < len(tests) / 2
    for gone in ("espnet_medusa/data/audio/gone.py", "espnet_medusa/data/audio/table.json"):
        found = quick_tests.order_tests([gone], tests, imports, {})
        assert {*own} <= {*found[: len(own)]}
    assert quick_tests.order_tests(["docs/speed.md"], tests, imports, {}) == ["tests/test_docs.py"]


def test_the_estimated_time_is_within_the_limit(monkeypatch):
    monkeypatch.setattr(quick_tests, "START_S", 10.0)
    seconds = {"a": 30.0, "b": 200.0, "c": 80.0, "d": 40.0}
    assert quick_tests.within([*"abcde"], seconds, 80.0) == ["a", "c", "e"]
