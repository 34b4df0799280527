"""Compilation and choice of native kernels, and what happens without them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import cases, combinations
from grown_trees import extend_chains, relative_error
from kernel_kinds import NAMES, forget, with_kernels
from refusals import assert_refused
from tiny import random_encoder_out, tiny_decoder

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.runtime.layer import PackedLayer
from espnet_medusa.decoding.runtime.native import build, library
from espnet_medusa.decoding.runtime.native.operations import NativeLinear

pytestmark = with_kernels


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Nothing is loaded, and the cache of compiled kernels is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


@pytest.fixture
def small_source(monkeypatch, tmp_path):
    source = tmp_path / "sources" / "kernels.cpp"
    source.parent.mkdir()
    source.write_text('extern "C" int request_tiles() { return 0; }')
    monkeypatch.setattr(build, "FOLDER", source.parent)


@cases(
    ("CXX", "no-such-compiler", "no C++ compiler (no-such-compiler)"),
    (build.VARIABLE, "none", f"{build.VARIABLE} is none"),
)
def test_without_kernels_torch_computes(variable, value, reason, fresh, caplog):
    fresh.setenv(variable, value)
    decoder = tiny_decoder(0, vocab_size=500)
    runtime = build_runtime(decoder, "int8")
    chains = *random_encoder_out(0, [5, 9]), torch.tensor([[1, 2], [3, 4]])
    hidden = extend_chains(runtime, *chains).hidden
    exact = decoder.hidden_states(*chains).hidden.flatten(0, 1)
    assert relative_error(hidden, exact) < 0.06
    assert relative_error(runtime.logits(hidden), decoder.logits(exact)) < 0.06
    assert isinstance(runtime.layers[0], PackedLayer)
    assert not isinstance(runtime.projection, NativeLinear)
    build_runtime(decoder, "int8")
    assert caplog.text.count(f"torch's kernels, which are slower: {reason}") == 1, "logged once"


def test_unknown_instruction_sets_are_refused(fresh):
    fresh.setenv(build.VARIABLE, "SSE9")
    assert_refused(f"{build.VARIABLE}: 'SSE9'.*AVX2.*, none", build.load_library)
    fresh.setattr(build, "processor_flags", lambda: build.AVX2.flags)
    fresh.setenv(build.VARIABLE, "AMX")
    assert_refused(f"{build.VARIABLE}: 'AMX'.*allowed: AVX2, none", build.load_library)


@pytest.mark.parametrize("best", build.BEST_FIRST, ids=lambda instructions: instructions.name)
def test_a_processor_gets_its_best_instruction_set(fresh, best):
    fresh.delenv(build.VARIABLE, raising=False)
    fresh.setattr(build, "processor_flags", lambda: {*best.flags, "sse2"})
    usable = build.usable_sets()
    assert usable[0] is best and usable[-1] is build.AVX2
    fresh.setattr(build, "processor_flags", lambda: {*best.flags} - {"avx2"})
    assert build.usable_sets() == []


@combinations(best=[build.AMX, build.AVX512_VNNI])
def test_bfloat16_products_of_intels_vectors_are_the_last_choice(fresh, best):
    fresh.delenv(build.VARIABLE, raising=False)
    flags = {*best.flags, *build.AVX512_BF16.flags, build.INTEL}
    fresh.setattr(build, "processor_flags", lambda: flags)
    assert [build.usable_sets()[place] for place in (0, -1)] == [best, build.AVX512_BF16]


def test_flags_and_vendor_are_those_of_the_first_processor(monkeypatch):
    text = (
        "vendor_id\t: GenuineIntel\nflags\t\t: fma avx2\nvmx flags\t: vnmi\n\nflags\t\t: amx_tile\n"
    )
    monkeypatch.setattr(build.Path, "read_text", lambda *_, **__: text)
    assert build.processor_flags() == {build.INTEL, "fma", "avx2"}


def test_missing_instructions_and_compiler_failures_are_reported(fresh, tmp_path):
    fresh.setattr(build, "processor_flags", lambda: {"avx2"})
    assert_refused("lacks bmi2, fma", build.open_best, build.usable_sets(), error=build.Unavailable)
    with pytest.raises(build.Unavailable, match="false fails"):
        build.compiled(build.AVX2, ["false"], tmp_path)


def test_next_set_is_used_if_the_compiler_does_not_support_the_best(fresh, small_source, caplog):
    unknown = build.InstructionSet("NEWER", frozenset(["no_such_instructions"]))
    with caplog.at_level("INFO"):
        assert build.open_best([unknown, build.AVX2])
    assert "native kernels: AVX2; NEWER: " in caplog.text
    assert "mnosuchinstructions" in caplog.text


def test_unusable_folder_and_library_are_reported(tmp_path):
    file = tmp_path / "file"
    file.write_text("no library")
    assert_refused("cannot be cached .*file", build.library_folder, file, error=build.Unavailable)
    assert_refused("cannot be loaded", build.open_library, file, error=build.Unavailable)


def test_concurrent_compilation(small_source, tmp_path):
    folder = build.library_folder(tmp_path / "new")
    assert folder.stat().st_mode & 0o777 == 0o700
    arguments = build.AVX2, build.find_compiler(), folder
    with ThreadPoolExecutor(2) as pool:
        paths = [*pool.map(lambda _: build.compiled(*arguments), range(2))]
    assert paths[0] == paths[1] and [*folder.iterdir()] == [paths[0]]
    assert build.open_library(paths[0])
    compiled = paths[0].stat().st_mtime_ns
    assert build.compiled(*arguments).stat().st_mtime_ns == compiled, "not compiled again"
    paths[0].chmod(0o775)
    with pytest.raises(build.Unavailable, match=f"{paths[0]}: others may write"):
        build.compiled(*arguments)


def test_vendors_whose_caches_differ_have_libraries_of_their_own(fresh, small_source, tmp_path):
    arguments = build.AVX2, build.find_compiler(), build.library_folder(tmp_path / "new")
    paths = []
    for vendor in (build.INTEL, "AuthenticAMD"):
        fresh.setattr(build, "processor_flags", lambda vendor=vendor: {vendor, "avx2"})
        paths.append(build.compiled(*arguments))
    assert paths[0] != paths[1] and all(map(build.open_library, paths))


def test_folders_that_other_users_may_write_to_are_not_used(fresh, tmp_path, caplog):
    folder = build.library_folder(tmp_path / "espnet_medusa" / "kernels")
    folder.chmod(0o777)
    assert library.kernels() is None and library.kernels() is None
    message = f"cannot be cached ({folder}: others may write to it; run `chmod go-w {folder}`"
    assert caplog.text.count(message) == 1 and not [*folder.iterdir()]


def test_the_folder_of_models_may_belong_to_a_group(fresh, small_source, tmp_path):
    (tmp_path / "espnet_medusa" / "models").mkdir(parents=True)
    (tmp_path / "espnet_medusa").chmod(0o775)
    assert build.open_best([build.AVX2])


@combinations(name=NAMES)
def test_the_log_names_the_chosen_instruction_set(name, monkeypatch, caplog):
    monkeypatch.setenv(build.VARIABLE, name)
    with caplog.at_level("INFO"):
        build.open_best(build.usable_sets())
    assert f"native kernels: {name}" in caplog.text
