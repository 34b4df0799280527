"""Published figures: reading, refusals, and equality with the papers."""

from pathlib import Path

import pytest
import yaml

from espnet_medusa.errors import InputError
from espnet_medusa.report.plan import read_plan
from espnet_medusa.report.published import read_published

CONFIGS = Path(__file__).parents[2] / "conf" / "report"
WHISPER_MEDUSA, SPEECH_LLAMA = "arXiv 2409.15869, ", "arXiv 2409.08148, "

# Typed from the papers, not from published.yaml: table, system, test set, cells.
PRINTED = """
whisper_medusa_voxpopuli | vanilla | en | wer 8.40, cer 5.03
whisper_medusa_voxpopuli | finetuned | es | wer 9.96, cer 6.43
whisper_medusa_voxpopuli | linear | de | wer 16.90, cer 11.03, speedup 1.31
whisper_medusa_voxpopuli | block | fr | wer 11.87, cer 7.07, speedup 1.30
whisper_medusa_librispeech | vanilla | test-other | wer 6.19, cer 2.96
whisper_medusa_librispeech | finetuned | test-clean | wer 2.23, cer 0.74
whisper_medusa_librispeech | assistant | test-clean | wer 4.00, cer 1.86, speedup 1.57
whisper_medusa_librispeech | linear | test-clean | wer 4.11, cer 2.00, speedup 1.49
whisper_medusa_librispeech | block | test-other | wer 6.16, cer 2.94, speedup 1.29
whisper_medusa_self_supervised | vanilla | nl | wer 13.24, cer 8.13
whisper_medusa_self_supervised | linear | fi | wer 17.41, cer 6.68, speedup 1.60
whisper_medusa_self_supervised | block | cs | wer 13.84, cer 6.66, speedup 1.68
whisper_medusa_heads | heads5 | test-clean | wer 3.64, cer 1.38, speedup 1.42
whisper_medusa_heads | heads20 | test-other | wer 10.87, cer 7.45, speedup 1.21
speech_llama | baseline | test-other | wer 6.9, eta 1.26, decoder_rtf 0.79
speech_llama | projection_top_m | test-other | wer 6.4, eta 0.45, decoder_rtf 0.85
speech_llama | latent_threshold | test-clean | wer 3.7, eta 0.38, decoder_rtf 0.47
speech_llama_mwer | baseline | cv en | wer 12.1
speech_llama_mwer | baseline_mwer | vp de | wer 9.0
speech_llama_mwer | latent | mls it | wer 8.2
speech_llama_mwer | latent_mwer | cv fr | wer 9.7
speech_llama_mwer | latent_mwer | mls es | wer 3.6
draft_models | large_v2_tiny | samples | latency_s 4.19, wer 2.4, speedup 1.92
draft_models | large_v3_tiny | samples | latency_s 8.80, wer 9.09, speedup 1.24
draft_models_beams | beam3 | samples | wer 14.02, cer 3.34, latency_s 23.27
draft_models_beam5 | base | samples | wer 2.4, latency_s 1.77
"""
SOURCES = {
    "whisper_medusa_voxpopuli": (WHISPER_MEDUSA + "Table I", "Whisper large-v2", 40),
    "whisper_medusa_librispeech": (WHISPER_MEDUSA + "Table II", "Whisper large-v2", 26 + 10),
    "whisper_medusa_self_supervised": (WHISPER_MEDUSA + "Table III", "Whisper large-v2", 24),
    "whisper_medusa_heads": (WHISPER_MEDUSA + "Table IV", "Whisper large-v2", 24),
    "speech_llama": (SPEECH_LLAMA + "Table I", "Speech-LLaMA", 42 + 12),
    "speech_llama_mwer": (SPEECH_LLAMA + "Table II", "Speech-LLaMA", 60),
    "draft_models": ("Speculative Decoding, 2025", "Whisper large-v2", 18),
    "draft_models_beams": ("Speculative Decoding, 2025", "Whisper large-v3", 15),
    "draft_models_beam5": ("Speculative Decoding, 2025", "Whisper", 6),
    "ctc_drafts": ("arXiv 2603.11243", "IBM", 0),
}


@pytest.mark.parametrize("line", PRINTED.strip().splitlines())
def test_cells_of_the_papers(line):
    key, system, test_set, cells = line.split(" | ")
    expected = dict(cell.split() for cell in cells.split(", "))
    assert read_published()[key].systems[system].cells[test_set] == expected


def test_each_table_has_its_number_its_model_and_all_its_cells():
    """Counts are cells plus each system's parameters, per test set."""
    tables = read_published()
    assert tables.keys() == SOURCES.keys()
    for key, (source, model, cells) in SOURCES.items():
        assert tables[key].source.endswith(source) and tables[key].model.startswith(model)
        assert len(tables[key].figures) == cells, key


def test_parameters_of_the_papers():
    tables = read_published()
    parameters = {
        key: row.parameters for key, row in tables["whisper_medusa_librispeech"].systems.items()
    }
    whisper = {"vanilla": "1550", "finetuned": "1550", "assistant": "1669"}
    assert parameters == whisper | {"linear": "1568", "block": "1592"}
    for key, row in tables["speech_llama"].systems.items():
        expected = {"baseline": None, "projection": "306", "latent": "234"}
        assert row.parameters == expected[key.split("_")[0]]


def test_each_published_table_belongs_to_a_plan():
    """All cells are next to ours, or none is and the paper's table follows."""
    plans = [table for path in CONFIGS.glob("*.yaml") for table in read_plan(path).tables]
    for key, published in read_published().items():
        tables = [table for table in plans if table.published == key]
        assert tables, key
        for table in tables:
            shown = [
                system in table.systems and label in table.test_sets.values()
                for system, label, _ in published.figures
            ]
            assert all(shown) or not any(shown)
            if any(shown):
                assert {measure for _, _, measure in published.figures} <= set(table.columns)


def test_corpora_of_the_papers_have_published_figures_next_to_ours():
    expected = {
        "librispeech": ["whisper_medusa_librispeech", "whisper_medusa_heads", None, None],
        "librispeech_llama": ["speech_llama"],
        "voxpopuli": ["whisper_medusa_voxpopuli", "whisper_medusa_self_supervised"],
    }
    published = read_published()
    for name, keys in expected.items():
        tables = read_plan(CONFIGS / f"{name}.yaml").tables
        assert [table.published for table in tables] == keys
        for table in tables:
            if table.published:
                labels = set(table.test_sets.values())
                assert labels == set(published[table.published].test_sets)


TABLE = {
    "source": "A paper, Table I",
    "model": "Whisper large-v2",
    "measures": ["wer", "latency_s"],
    "systems": {"x": {"name": "X", "cells": {"t": "8.40 -"}}},
}


def write(tmp_path, content):
    path = tmp_path / "published.yaml"
    path.write_text(yaml.safe_dump({"t": content}))
    return path


def test_numbers_stay_as_printed(tmp_path):
    system = {"name": "X", "parameters": "10", "cells": {"t": "8.40 -"}}
    content = TABLE | {"systems": {"x": system}}
    table = read_published(write(tmp_path, content))["t"]
    assert table.figures == {("x", "t", "wer"): "8.40", ("x", "t", "parameters"): "10"}
    assert table.test_sets == ("t",)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"source": ""}, "t: source missing"),
        ({"model": None}, "t: model missing"),
        ({"page": 3}, "t: unknown option 'page'"),
        ({"measures": ["wer", "ser"]}, "t: measures: 'ser' is not known"),
        ({"measures": ["parameters"]}, "t: measures: 'parameters' is not known"),
        ({"measures": "wer"}, "t: measures: 'wer'; a list"),
        ({"statements": {"text": "t"}}, "t: statements: .*; a list"),
        ({"statements": [{"text": "t"}]}, "t: statements 1: source missing"),
        ({"systems": ["x"]}, "t: systems: .*; a mapping"),
        ({"systems": {"x": {"cells": {"t": "1 2"}}}}, "t: systems: x: name missing"),
        ({"systems": {"x": {"name": "X"}}}, "t: systems: x: cells missing"),
        (
            {"systems": {"x": {"name": "X", "cells": {"t": "1"}}}},
            "x: cells: t: '1'; .* wer latency_s",
        ),
        ({"systems": {"x": {"name": "X", "cells": {"t": "1 2 3"}}}}, "x: cells: t: '1 2 3'"),
        ({"systems": {"x": {"name": "X", "cells": {"t": "1 low"}}}}, "x: cells: t: '1 low'"),
        (
            {"systems": {"x": {"name": "X", "cells": {"t": 8.4}}}},
            "x: cells: t: 8.4; needed in quotes",
        ),
        (
            {"systems": {"x": {"name": "X", "cells": {"t": "1 2"}, "parameters": 1550}}},
            "x: parameters: 1550; needed in quotes",
        ),
        (
            {"systems": {"x": {"name": "X", "cells": {"t": "1 2"}, "source": "s"}}},
            "x: unknown option 'source'",
        ),
    ],
)
def test_bad_published_figures_are_refused(tmp_path, changes, expected):
    path = write(tmp_path, TABLE | changes)
    with pytest.raises(InputError, match=expected) as error:
        read_published(path)
    assert str(error.value).startswith(f"{path}: t: ") and "\n" not in str(error.value)
