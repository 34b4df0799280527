"""Report plans and corpus sizes: reading and refusals."""

from pathlib import Path

import pytest

from espnet_medusa.errors import InputError
from espnet_medusa.report.plan import DEFAULT_COLUMNS, CallsAndWer, FigurePlan, read_plan
from espnet_medusa.report.published import read_corpora, read_published

CONFIGS = Path(__file__).parents[2] / "conf" / "report"
SYSTEM = "{name: N, exp: asr_x, decoding: plain}"
TABLE = f"{{title: T, test_sets: {{a: b}}, plain: x, systems: {{x: {SYSTEM}}}}}"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_plans_of_the_recipes_fit_the_figures_and_sizes(path):
    corpora, published = read_corpora(), read_published()
    plan = read_plan(path)
    for table in plan.tables:
        assert table.published is None or table.published in published
        if table.corpus is not None:
            assert set(table.test_sets.values()) <= set(corpora[table.corpus])


def test_plan_as_read(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(f"title: R\ntables: [{TABLE[:-1]}, figure: {{title: F, systems: [x]}}}}]\n")
    (table,) = read_plan(path).tables
    assert table.systems["x"].exp == "asr_x" and table.corpus is None
    assert table.figure == FigurePlan("speedup_by_length", "F", ("x",))
    assert table.columns == DEFAULT_COLUMNS


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        *(
            (
                f"kind: {kind}, title: F, points: K, groups: {{g: {{v: {{2: x}}}}}}",
                FigurePlan(kind, "F", groups={"g": {"v": {"2": "x"}}}, points="K"),
            )
            for kind in ("wer_against_eta", "wer_against_latency", "wer_against_calls")
        ),
        (
            "kind: calls_against_wer, title: F, points: K, wer_of: CTC, "
            "groups: {g: {v: {2: {calls: x, wer: x}}}}",
            FigurePlan(
                "calls_against_wer",
                "F",
                groups={"g": {"v": {"2": CallsAndWer("x", "x")}}},
                points="K",
                wer_of="CTC",
            ),
        ),
        (
            "kind: calls_per_word, title: F, groups: {g: {v: x}}",
            FigurePlan("calls_per_word", "F", groups={"g": {"v": "x"}}),
        ),
    ],
)
def test_columns_and_figures_as_read(tmp_path, figure, expected):
    path = tmp_path / "plan.yaml"
    more = f"columns: [eta, wer], figure: {{{figure}}}"
    path.write_text(f"title: R\ntables: [{TABLE[:-1]}, {more}}}]\n")
    (table,) = read_plan(path).tables
    assert table.columns == ("eta", "wer")
    assert table.figure == expected


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
    assert systems == [("asr_llama", "plain"), *expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a mapping"),
        ("- a", "a mapping"),
        ("a: [", "cannot be read .*; mend the file"),
        ("tables: []", "title, tables missing"),
        ("title: R\ntables: {a: b}", "a list of tables is needed"),
        (f"title: R\ntables: [{TABLE}]\nmore: 1", "unknown option 'more'"),
        ("title: R\ntables: [{title: T}]", "test_sets, systems, plain missing"),
        (f"title: R\ntables: [{TABLE.replace('plain: x', 'plain: y')}]", "'y' is not known"),
        (f"title: R\ntables: [{TABLE.replace('exp: asr_x', 'exq: 1')}]", "exp missing"),
        *(
            (f"title: R\ntables: [{TABLE[:-1]}, {entry}}}]", expected)
            for entry, expected in (
                ("corpsu: c", "did you mean 'corpus'"),
                ("utterances: {b: many}", "'many'"),
                ("figure: {title: F, systems: [y]}", "'y' is not"),
                ("figure: {title: F, systems: x}", "list of keys"),
                ("figure: {title: F, systems: [x], bin_tokens: 0}", "allowed: 1 or more"),
                ("published: p", "table 1: model: None"),
                ("published: p, model: 2", "model: 2"),
                ("columns: [weer]", "did you mean 'wer'"),
                ("columns: wer", "a list of wer, cer"),
                ("columns: []", "a list of wer, cer"),
                ("figure: {kind: pie}", "'pie' is not known"),
            )
        ),
        *(
            (f"title: R\ntables: [{TABLE[:-1]}, figure: {{title: F, {figure}}}}}]", expected)
            for figure, expected in (
                ("kind: calls_per_word", "groups missing"),
                ("kind: calls_per_word, groups: {g: {v: y}}", "groups: g: v: 'y' is not known"),
                ("kind: calls_per_word, groups: {g: x}", "groups: g: 'x'; a mapping"),
                ("kind: calls_per_word, groups: {g: {v: x}}, points: K", "option: 'points'"),
                ("kind: wer_against_eta, groups: {g: {v: {2: x}}}", "points missing"),
                ("kind: wer_against_eta, points: K, groups: {g: {v: x}}", "v: 'x'; a mapping"),
                ("kind: wer_against_latency, groups: {g: {v: {2: x}}}", "points missing"),
                (
                    "kind: wer_against_latency, points: K, groups: {g: {v: {2: y}}}",
                    "groups: g: v: 2: 'y' is not known",
                ),
                ("kind: calls_against_wer, points: K, groups: {g: {v: {2: x}}}", "wer_of missing"),
            )
        ),
        *(
            (f"title: R\ntables: [{TABLE}]\nincluded: {content}", f"included: {expected}")
            for content, expected in (
                ("x.md", "'x.md'; a list of title and file"),
                ("[x.md]", "1: 'x.md'; a mapping"),
                ("[{title: T}]", "1: file missing; needed: title, file"),
                ("[{title: T, file: x.md, level: 2}]", "1: unknown option 'level'"),
            )
        ),
        *(
            (
                f"title: R\ntables: [{TABLE[:-1]}, figure: {{kind: calls_against_wer, title: F, "
                f"points: K, wer_of: CTC, groups: {{g: {{v: {{2: {point}}}}}}}}}}}]",
                f"groups: g: v: 2: {expected}",
            )
            for point, expected in (
                ("x", "'x'; a mapping"),
                ("{calls: x}", "wer missing; needed: calls, wer"),
                ("{calls: x, wer: y}", "wer: 'y' is not known"),
                ("{calls: x, wer: x, cer: x}", "unknown option 'cer'"),
            )
        ),
    ],
)  # fmt: skip
def test_bad_plans_are_refused(tmp_path, text, expected):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=expected) as error:
        read_plan(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_a_missing_plan_is_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_plan(tmp_path / "nonesuch.yaml")


def test_a_size_needs_a_source(tmp_path):
    path = tmp_path / "corpora.yaml"
    path.write_text("libri: {test: {utterances: 7}}")
    with pytest.raises(InputError, match="libri: test: 7 without a source"):
        read_corpora(path)


def test_figures_and_sizes_of_the_package_are_usable():
    assert all(read_published().values())
    assert read_corpora()["librispeech"]["test-other"].utterances == 2939
    assert read_corpora()["voxpopuli"]["de"].utterances is None
