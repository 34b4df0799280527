"""Report plans, corpus sizes and published figures: reading, refusals, the papers' cells."""

from pathlib import Path

import pytest
import yaml
from cases import cases
from refusals import assert_refused

from espnet_medusa.recipes.report.plan import DEFAULT_COLUMNS, CallsAndWer, FigurePlan, read_plan
from espnet_medusa.recipes.report.published import read_corpora, read_published

CONFIGS = Path(__file__).parents[3] / "conf" / "report"
SYSTEM = "{name: N, exp: asr_x, decoding: plain}"
CALLS_AGAINST_WER = "kind: calls_against_wer, points: K, wer_of: CTC, groups: {g: {v: {2: %s}}}"
TABLE = f"{{title: T, test_sets: {{a: b}}, baseline: x, systems: {{x: {SYSTEM}}}}}"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_plans_of_the_recipes_fit_the_figures_and_sizes(path):
    corpora, published = read_corpora(), read_published()
    for table in read_plan(path).tables:
        assert table.published is None or table.published in published
        if table.corpus is not None:
            assert set(table.test_sets.values()) <= set(corpora[table.corpus])


def with_entries(entries: str) -> str:
    return f"title: R\ntables: [{TABLE[:-1]}, {entries}}}]\n"


def read_table(tmp_path, more):
    path = tmp_path / "plan.yaml"
    path.write_text(with_entries(more))
    (table,) = read_plan(path).tables
    return table


@cases(
    (
        "kind: wer_against_eta, title: F, points: K, groups: {g: {v: {2: x}}}",
        dict(groups={"g": {"v": {"2": "x"}}}, points="K"),
    ),
    (
        "title: F, " + CALLS_AGAINST_WER % "{calls: x, wer: x}",
        dict(groups={"g": {"v": {"2": CallsAndWer("x", "x")}}}, points="K", wer_of="CTC"),
    ),
    ("kind: calls_per_word, title: F, groups: {g: {v: x}}", dict(groups={"g": {"v": "x"}})),
    ("title: F, systems: [x]", dict(systems=("x",))),
    ids=["wer_against_eta", "calls_against_wer", "calls_per_word", "speedup_by_length"],
)
def test_columns_and_figures_as_read(figure, expected, tmp_path, request):
    table = read_table(tmp_path, f"columns: [eta, wer], figure: {{{figure}}}")
    assert table.columns == ("eta", "wer") and table.corpus is None
    assert table.systems["x"].exp == "asr_x"
    assert read_table(tmp_path, f"figure: {{{figure}}}").columns == DEFAULT_COLUMNS
    assert table.figure == FigurePlan(request.node.callspec.id, "F", **expected)


def test_plan_of_the_speech_llama_recipe_has_the_papers_grid():
    main, counts, training = read_plan(CONFIGS / "mini_synth_llama.yaml").tables
    assert main.test_sets == {"test": "English", "test_de": "German"}
    rules = {"top-1": "exact", "top-5": "top_m", "threshold 0.8": "threshold"}
    for heads in ("projection", "latent"):
        for shown, decoding in rules.items():
            for k, key in counts.figure.groups[heads][shown].items():
                system = counts.systems[key]
                assert (system.exp, system.decoding) == (f"asr_llama_{heads}_{k}", decoding)
                assert system.name == f"{heads} {k}, {shown}"
            assert list(counts.figure.groups[heads][shown]) == list("23456")
            system = main.systems[main.figure.groups[heads][shown]]
            assert (system.exp, system.decoding) == (f"asr_llama_{heads}_4", decoding)
            assert system.name == f"{heads}, {shown}"
    seeds = [kind + seed for kind in ("ce", "mwer") for seed in ("", "_seed2", "_seed3")]
    ways = ("exact", "threshold", "beam4_threshold")
    systems = [(system.exp, system.decoding) for system in training.systems.values()]
    expected = [(f"asr_llama_latent_4_{seed}", way) for way in ways for seed in seeds]
    assert systems == [("asr_llama", "baseline"), *expected]


# A plan with a gap, and what the messages begin with, to contents of the gap and parts of messages.
BAD_PLANS = {
    ("%s", ""): {
        "": "a mapping",
        "a: [": "cannot be read .*; correct the file",
        "tables: []": "title, tables missing",
        "title: R\ntables: {a: b}": "a list of tables is needed",
        f"title: R\ntables: [{TABLE}]\nmore: 1": "unknown option 'more'",
        "title: R\ntables: [{title: T}]": "test_sets, systems, baseline missing",
        f"title: R\ntables: [{TABLE.replace('baseline: x', 'baseline: y')}]": "'y' is not known",
        f"title: R\ntables: [{TABLE.replace('exp: asr_x', 'exq: 1')}]": "exp missing",
    },
    (with_entries("%s"), ""): {
        "corpsu: c": "did you mean 'corpus'",
        "utterances: {b: many}": "'many'",
        "figure: {title: F, systems: [y]}": "'y' is not",
        "figure: {title: F, systems: x}": "list of keys",
        "figure: {title: F, systems: [x], bin_tokens: 0}": "allowed: 1 or more",
        "published: p": "table 1: model: None",
        "published: p, model: 2": "model: 2",
        "columns: [weer]": "did you mean 'wer'",
        "columns: []": "a list of wer, cer",
        "figure: {kind: pie}": "'pie' is not known",
    },
    (with_entries("figure: {title: F, %s}"), ""): {
        "kind: calls_per_word": "groups missing",
        "kind: calls_per_word, groups: {g: {v: y}}": "groups: g: v: 'y' is not known",
        "kind: calls_per_word, groups: {g: x}": "groups: g: 'x'; a mapping",
        "kind: calls_per_word, groups: {g: {v: x}}, points: K": "option: 'points'",
        "kind: wer_against_eta, groups: {g: {v: {2: x}}}": "points missing",
        "kind: wer_against_eta, points: K, groups: {g: {v: x}}": "v: 'x'; a mapping",
        "kind: wer_against_eta, points: K, groups: {g: {v: {2: y}}}": "v: 2: 'y' is not",
        "kind: calls_against_wer, points: K, groups: {g: {v: {2: x}}}": "wer_of missing",
    },
    (f"title: R\ntables: [{TABLE}]\nincluded: %s", "included: "): {
        "x.md": "'x.md'; a list of title and file",
        "[x.md]": "1: 'x.md'; a mapping",
        "[{title: T}]": "1: file missing; needed: title, file",
        "[{title: T, file: x.md, level: 2}]": "1: unknown option 'level'",
    },
    (with_entries(f"figure: {{title: F, {CALLS_AGAINST_WER}}}"), "groups: g: v: 2: "): {
        "x": "'x'; a mapping",
        "{calls: x}": "wer missing; needed: calls, wer",
        "{calls: x, wer: y}": "wer: 'y' is not known",
        "{calls: x, wer: x, cer: x}": "unknown option 'cer'",
    },
}


@cases(
    *((plan % gap, begin + end) for (plan, begin), x in BAD_PLANS.items() for gap, end in x.items())
)
def test_bad_plans_are_refused(text, expected, tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    assert_refused(f"^{path}.*{expected}", read_plan, path)


def test_missing_plans_and_sizes_without_a_source_are_refused(tmp_path):
    assert_refused("No such file", read_plan, tmp_path / "nonesuch.yaml")
    path = tmp_path / "corpora.yaml"
    path.write_text("libri: {test: {utterances: 7}}")
    assert_refused("libri: test: 7 without a source", read_corpora, path)


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
    expected = {(system, test_set, *cell.split()) for cell in cells.split(", ")}
    found = {(*place, value) for place, value in read_published()[key].figures.items()}
    of_cell = {entry for entry in found if entry[:2] == (system, test_set)}
    assert {entry for entry in of_cell if entry[2] != "parameters"} == expected


def test_each_table_has_its_number_its_model_its_parameters_and_all_its_cells():
    """Per test set, each system's parameters count as a cell."""
    tables = read_published()
    assert tables.keys() == SOURCES.keys()
    for key, (source, model, cells) in SOURCES.items():
        assert tables[key].source.endswith(source) and tables[key].model.startswith(model)
        assert len(tables[key].figures) == cells, key
    whisper = tables["whisper_medusa_librispeech"].systems
    expected = {"vanilla": "1550", "finetuned": "1550", "assistant": "1669"}
    expected |= {"linear": "1568", "block": "1592"}
    assert {key: row.parameters for key, row in whisper.items()} == expected
    expected = {"baseline": None, "projection": "306", "latent": "234"}
    for key, row in tables["speech_llama"].systems.items():
        assert row.parameters == expected[key.split("_")[0]]


def test_each_published_table_belongs_to_a_plan():
    """Our table has all its measures, or none if it has no system of the paper."""
    plans = [table for path in CONFIGS.glob("*.yaml") for table in read_plan(path).tables]
    for key, published in read_published().items():
        tables = [table for table in plans if table.published == key]
        assert tables, key
        for table in tables:
            shown = [
                system in table.systems and label in table.test_sets.values()
                for system, label, _ in published.figures
            ]
            if any(shown):
                assert {measure for _, _, measure in published.figures} <= set(table.columns)


PAPER_SYSTEM = {"name": "X", "cells": {"t": "8.40 -"}}
PAPER = {"source": "A paper, Table I", "model": "Whisper large-v2", "systems": {"x": PAPER_SYSTEM}}
PAPER["measures"] = ["wer", "latency_s"]


def write(tmp_path, content):
    path = tmp_path / "published.yaml"
    path.write_text(yaml.safe_dump({"t": content}))
    return path


def test_numbers_stay_as_printed(tmp_path):
    content = PAPER | {"systems": {"x": PAPER_SYSTEM | {"parameters": "10"}}}
    table = read_published(write(tmp_path, content))["t"]
    assert table.figures == {("x", "t", "wer"): "8.40", ("x", "t", "parameters"): "10"}
    assert table.test_sets == ("t",)


@cases(
    ({"source": ""}, "source missing"),
    ({"model": None}, "model missing"),
    ({"page": 3}, "unknown option 'page'"),
    ({"measures": ["wer", "ser"]}, "measures: 'ser' is not known"),
    ({"measures": ["parameters"]}, "measures: 'parameters' is not known"),
    ({"measures": "wer"}, "measures: 'wer'; a list"),
    ({"statements": {"text": "t"}}, "statements: .*; a list"),
    ({"statements": [{"text": "t"}]}, "statements: 1: source missing"),
    ({"systems": ["x"]}, "systems: .*; a mapping"),
    *(
        ({"systems": {"x": PAPER_SYSTEM | changes}}, f"systems: x: {expected}")
        for changes, expected in (
            ({"name": None}, "name missing"),
            ({"cells": None}, "cells missing"),
            ({"cells": {"t": "1"}}, "cells: t: '1'; .* wer latency_s"),
            ({"cells": {"t": "1 2 3"}}, "cells: t: '1 2 3'"),
            ({"cells": {"t": "1 low"}}, "cells: t: '1 low'"),
            ({"cells": {"t": 8.4}}, "cells: t: 8.4; needed in quotes"),
            ({"parameters": 1550}, "parameters: 1550; needed in quotes"),
            ({"source": "s"}, "unknown option 'source'"),
        )
    ),
)
def test_bad_published_figures_are_refused(changes, expected, tmp_path):
    path = write(tmp_path, PAPER | changes)
    assert_refused(f"^{path}: t: {expected}", read_published, path)
