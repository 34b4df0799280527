"""Report on an experiment that ESPnet's recipe decoded and scored, with hand-made counts."""

import json
import os
from pathlib import Path

import matplotlib.image
import pytest
from cases import cases
from downloads import tree
from exp_folders import error_of, statistics, write_espnet_decoding, write_score
from matplotlib.figure import Figure
from refusals import command_refused, exit_status

from espnet_medusa.bin import report
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.journal import Decoded, Failed, Journal, NBestEntry
from espnet_medusa.recipes.report import results

MODEL = "_asr_model_valid.acc.ave"
BASELINE, EXACT, BEAM = f"decode_baseline{MODEL}", f"decode_exact{MODEL}", f"decode_beam{MODEL}"
REFERENCES = {"s1-a": "one two three four five", "s1-b": "one two three"}
REFERENCES |= dict.fromkeys(("s2-c", "s2-d"), "one two three four")
OLD = 1_700_000_000  # seconds since the epoch: what an earlier run wrote
EPOCH = (
    "INFO: 1epoch results: [train] loss=2.0, acc=0.5, "
    "[valid] loss=3.0, acc=0.4, loss_head1=4.0, acc_head1=0.2\n"
)


def run_job(
    folder: Path, number: int, results: dict[str, tuple[str, DecodingStatistics] | None]
) -> Path:
    """Write the files of our inference command for a job; None: the utterance failed."""
    output = folder / "logdir" / f"output.{number}"
    journal = Journal(output, {})
    for key, result in results.items():
        if result is None:
            journal.fail(Failed(key, f"{key}.wav: {key}: is truncated"))
        else:
            text, counts = result
            journal.add(Decoded(key, [NBestEntry(text, text.split(), [1], "-1.0")], counts))
    journal.write_outputs([*results], {})
    return output / "statistics.json"


def concatenate(folder: Path, jobs: int) -> None:
    """Join the jobs' files as the end of stage 12: `for i in ...; do cat ...; done | sort`."""
    for name in ("text", "token", "token_int", "score"):
        lines = []
        for number in range(1, jobs + 1):
            path = folder / "logdir" / f"output.{number}" / "1best_recog" / name
            lines += path.read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(sorted(lines)))


def score(folder: Path, references: dict[str, str], err: str) -> None:
    """Pair texts and ids by line number, as `paste` in stage 13, and write sclite's report."""
    write_score(folder, "wer", [(4, 0, 0, 0)] * len(references), err)
    labels = [f"\t({key.split('-')[0]}-{key})" for key in references]
    hypotheses = [line.partition(" ")[2] for line in (folder / "text").read_text().splitlines()]
    hypotheses += [""] * (len(labels) - len(hypotheses))
    for name, texts in (("ref", references.values()), ("hyp", hypotheses)):
        lines = [f"{text}{label}\n" for text, label in zip(texts, labels, strict=True)]
        (folder / "score_wer" / f"{name}.trn").write_text("".join(lines))


def write_plain(exp_dir: Path) -> Path:
    folder = exp_dir / BASELINE / "test"
    counts = ((10, 2.0), (6, 1.0), (8, 3.0), (7, 2.0))
    counted = (statistics(tokens, tokens, seconds) for tokens, seconds in counts)
    texts = [*REFERENCES.values()][:3] + ["one two four"]
    run_job(folder, 1, dict(zip(REFERENCES, zip(texts, counted, strict=True), strict=True)))
    concatenate(folder, 1)
    score(folder, REFERENCES, "6.2")
    return folder


def write_exact(exp_dir: Path, scored: bool = True) -> Path:
    """Write two jobs with drafts; the last utterance failed, jobs 3 and 9 are of an earlier run."""
    folder = exp_dir / EXACT / "test"
    run_job(folder, 1, {
        "s1-a": (REFERENCES["s1-a"], statistics(4, 10, 1.0, drafted=[4, 2], accepted=[3, 1])),
        "s1-b": ("one two", statistics(3, 6, 0.5, drafted=[2, 2], accepted=[2, 1])),
    })  # fmt: skip
    counts = statistics(5, 8, 1.5, drafted=[4, 1], accepted=[3, 0])
    run_job(folder, 2, {"s2-c": (REFERENCES["s2-c"], counts), "s2-d": None})
    for number, key in ((3, "s2-c"), (9, "s2-d")):
        path = run_job(folder, number, {key: (REFERENCES[key], statistics(99, 99, 99.0))})
        os.utime(path, (OLD, OLD))
    concatenate(folder, 2)
    if scored:
        score(folder, REFERENCES, "37.5")
    return folder


def write_dev(exp_dir: Path) -> Path:
    """Write a scored utterance of the validation set, which eval_valid_set decodes."""
    folder = exp_dir / EXACT / "org" / "dev"
    counts = statistics(2, 8, 1.0, drafted=[2, 2], accepted=[2, 2])
    run_job(folder, 1, {"s9-x": ("one two three", counts)})
    concatenate(folder, 1)
    score(folder, {"s9-x": "one two three"}, "0.0")
    return folder


@pytest.fixture(autouse=True)
def no_date(monkeypatch):
    monkeypatch.setattr(results, "environment_lines", lambda: ["## Environments"])


@pytest.fixture
def drawn_exp(tmp_path):
    exp = tmp_path / "exp" / "asr_train_block"
    for write in (write_plain, write_exact, write_dev):
        write(exp)
    (exp / "config.yaml").write_text("frontend_conf: {fs: 8k}\n")
    (exp / "train.log").write_text(EPOCH)
    (exp / "RESULTS.md").write_text("<!-- Generated by scripts/utils/show_asr_result.sh -->\n")
    return exp


@pytest.fixture
def exp(drawn_exp, monkeypatch):
    """The experiment; its figures are empty files, because drawing takes most of the time."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())
    return drawn_exp


def run(capsys, *options):
    report.main([*map(str, options)])
    return capsys.readouterr().out.splitlines()


def fails(capsys, *options):
    return error_of(capsys, lambda: report.main([*map(str, options)]))


def lacks(capsys, *options):
    """Return the messages of a report that lists incomplete sets."""
    assert exit_status(report.main, *options) == 3
    return capsys.readouterr().err


def counts(path):
    return json.loads(path.read_text())


def test_files_equal_those_of_our_recipe_and_those_of_a_second_call(drawn_exp, capsys):
    exp = drawn_exp
    names = run(capsys, exp, "--baseline", exp / "decode_baseline")
    images = ["acceptance_org_dev", "acceptance_test", "speedup_test", "training"]
    images += ["tokens_per_call_org_dev", "tokens_per_call_test", "training_heads"]
    sets = (f"{EXACT}/test", f"{BASELINE}/test", f"{EXACT}/org/dev")
    expected = {exp / name / "statistics.json" for name in sets}
    expected |= {exp / "RESULTS.md", exp / "decoding.json"}
    expected |= {exp / "images" / f"{name}.png" for name in images}
    assert sorted(names) == sorted(map(str, expected))
    for name in images:
        pixels = matplotlib.image.imread(exp / "images" / f"{name}.png")
        assert min(pixels.shape[:2]) > 200 and pixels[..., :3].std() > 0.05
    first = tree(exp)
    again = run(capsys, exp, "--baseline", exp / "decode_baseline")
    assert tree(exp) == first
    assert again == [name for name in names if not name.endswith("statistics.json")]


@pytest.mark.parametrize("copied", [False, True])
def test_statistics_are_those_of_the_last_run(exp, capsys, copied):
    if copied:  # without the times of the files
        for path in exp.glob("*/*/logdir/output.*/statistics.json"):
            os.utime(path, (OLD,) * 2)
    run(capsys, exp)
    merged = counts(exp / EXACT / "test" / "statistics.json")
    calls = {key: row["decoder_calls"] for key, row in merged["utterances"].items()}
    assert calls == {"s1-a": 4, "s1-b": 3, "s2-c": 5}
    assert (merged["set"]["tokens"], merged["set"]["accepted"]) == (24, [8, 2])
    eta = {key: row["eta"] for key, row in merged["utterances"].items()}
    assert eta == pytest.approx({"s1-a": 8 / 10, "s1-b": 6 / 5, "s2-c": 10 / 8})
    # Of exact: 12 calls; 5 + 3 + 4 + 4 words in the references, 5 + 2 + 4 in the hypotheses.
    sets = {f"{EXACT}/test": 24 / 23, f"{BASELINE}/test": 62 / 31, f"{EXACT}/org/dev": 4 / 6}
    eta = {name: counts(exp / name / "statistics.json")["set"]["eta"] for name in sets}
    assert eta == pytest.approx(sets)


def test_tables(exp, capsys):
    write_score(exp / EXACT / "test", "cer", [(9, 1, 0, 0)], "12.5")
    run(capsys, exp, "--baseline", exp / "decode_baseline")
    text = (exp / "RESULTS.md").read_text()
    titles = "|dataset|Snt|Wrd|Corr|Sub|Del|Ins|Err|S.Err|\n|---|---|---|---|---|---|---|---|---|\n"
    assert text.startswith("<!-- Generated by") and "### TER" not in text
    assert f"\n## {exp}\n### WER\n\n{titles}" in text
    assert f"### CER\n\n{titles}|{EXACT}/test|1|8|0.0|0.0|0.0|0.0|12.5|0.0|\n\n" in text
    for name, err in ((f"{BASELINE}/test", "6.2"), (f"{EXACT}/test", "37.5")):
        assert f"|{name}|4|8|0.0|0.0|0.0|0.0|{err}|0.0|\n" in text
    assert f"|{EXACT}/org/dev|1|8|" in text
    lines = [line for line in text.split("## Decoding\n")[1].splitlines() if "decode_" in line]
    assert lines == [
        # 2 s of 10 s; four tokens per call.
        "|org/dev|train_block decode_exact|0.0|0.67|4.00|2|100 100|0.0500|0.1000|-|-|-|",
        "|test|train_block decode_baseline|6.2|2.00|1.00|31|-|0.1000|0.2000|1.00|1.00|4/4|",
        # Over a, b and c: 6 s against 3 s; b has another text.
        "|test|train_block decode_exact|37.5|1.04|2.00|12|80 40|0.0500|0.1000|2.00|2.00|2/3|",
    ]
    rows = {(row["test_set"], row["configuration"]): row for row in counts(exp / "decoding.json")}
    exact = rows["test", "train_block decode_exact"]
    assert (exact["wer"], exact["decoder_calls"], exact["speedup"]) == (37.5, 12, 2.0)
    assert exact["eta"] == pytest.approx(24 / 23) and exact["acceptance_per_head"] == [0.8, 0.4]
    assert (exact["identical"], exact["compared"]) == (2, 3)


def test_speedup_over_espnets_search_and_frontends_without_a_sample_rate(exp, capsys):
    # 8 kHz audio: two jobs and a log of an earlier run.
    jobs = [{"s1-a": 8.0, "s1-b": 2.0}, {"s2-c": 6.0, "s2-d": 4.0}, {"s2-d": 0.5}]
    folder = write_espnet_decoding(exp, BEAM, "test", jobs)
    (folder / "text").write_text("".join(f"{key} {text}\n" for key, text in REFERENCES.items()))
    write_score(folder, "wer", [(4, 0, 0, 0)] * 4, "0.0")
    names = run(capsys, exp, "--baseline", exp / BEAM)
    text = (exp / "RESULTS.md").read_text()
    # Over a, b, c: 16 s against 3 s.
    row = "|test|train_block decode_exact|37.5|1.04|2.00|12|80 40|0.0500|0.1000|-|5.33|2/3|"
    assert row in text.splitlines()
    # 160000 samples each are 20 s; the logs have no calls.
    assert "|0.0|-|-|-|-|-|0.2500|-|1.00|4/4|" in text
    assert not (folder / "statistics.json").exists()
    assert str(exp / "images" / "speedup_test.png") in names
    (exp / "config.yaml").write_text("frontend: default\n")
    run(capsys, exp)
    assert "|0.0|-|-|-|-|-|0.5000|-|-|-|" in (exp / "RESULTS.md").read_text()
    (exp / "config.yaml").unlink()
    run(capsys, exp)
    assert "|0.0|-|-|-|-|-|-|-|-|-|" in (exp / "RESULTS.md").read_text()
    (exp / "config.yaml").write_text("frontend_conf: {fs: fast}\n")
    assert f"{exp / 'config.yaml'}: frontend_conf: fs: fast: " in fails(capsys, exp)


def test_decoding_again_is_noticed(exp, capsys):
    run(capsys, exp)
    folder = exp / EXACT / "org" / "dev"
    path = run_job(folder, 1, {"s9-x": ("one two", statistics(3, 9, 1.0))})
    later = (folder / "statistics.json").stat().st_mtime + 10
    os.utime(path, (later, later))
    concatenate(folder, 1)
    (folder / "score_wer" / "hyp.trn").write_text("one two\t(s9-s9-x)\n")
    assert str(folder / "statistics.json") in run(capsys, exp)
    assert counts(folder / "statistics.json")["set"]["eta"] == pytest.approx(2 * 3 / (3 + 2))


def test_scoring_later_adds_eta(tmp_path, capsys):
    folder = write_exact(tmp_path / "asr", scored=False)
    run(capsys, tmp_path / "asr")
    assert "eta" not in counts(folder / "statistics.json")["set"]
    assert "|asr decode_exact|-|-|2.00|12|" in (tmp_path / "asr" / "RESULTS.md").read_text()
    score(folder, REFERENCES, "37.5")
    run(capsys, tmp_path / "asr")
    assert counts(folder / "statistics.json")["set"]["eta"] == pytest.approx(24 / 23)


def test_scores_in_another_order_are_refused(tmp_path, capsys):
    folder = tmp_path / "asr" / EXACT / "test"
    results = {key: (text, statistics(2, 4, 1.0)) for key, text in REFERENCES.items()}
    run_job(folder, 1, {**results, "s1-b": None})
    concatenate(folder, 1)
    score(folder, REFERENCES, "60.0")  # c's text is in the line of b's reference
    message = fails(capsys, tmp_path / "asr")
    assert f"{folder / 'score_wer' / 'hyp.trn'}: has words of s1-s1-b" in message


def test_utterances_without_scores_or_statistics_are_named(exp, capsys):
    folder = exp / EXACT / "test"
    path = folder / "logdir" / "output.1" / "statistics.json"
    before = path.read_text()
    path.unlink()
    assert f"no statistics of 2 utterances of {folder / 'text'}: s1-a, s1-b" in lacks(capsys, exp)
    path.write_text(before)
    path = folder / "score_wer" / "ref.trn"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    assert f"{path}: no line of s1-a; score again" in lacks(capsys, exp)


def test_several_experiments(tmp_path, exp, capsys, monkeypatch):
    other = tmp_path / "exp" / "asr_train_plain"
    write_plain(other)
    names = run(capsys, exp, other, "--baseline", other / BASELINE)
    parent = tmp_path / "exp"
    for name in ("RESULTS.md", "decoding.json", "images/speedup_test.png"):
        assert str(parent / name) in names
    assert str(exp / "images" / "training.png") in names
    assert not (exp / "decoding.json").exists()
    text = (parent / "RESULTS.md").read_text()
    assert "|test|train_plain decode_baseline|" in text and "|2.00|2.00|2/3|" in text
    monkeypatch.chdir(tmp_path)
    names = run(capsys, "exp/asr_train_block", "exp/asr_train_plain")
    assert names[0] == "exp/RESULTS.md"


def test_output_elsewhere_and_a_training_without_a_finished_epoch(tmp_path, exp, capsys):
    before = (exp / "RESULTS.md").read_text()
    (exp / "train.log").write_text("INFO: 1/20epoch started\n")
    names = run(capsys, exp, "--output", tmp_path / "out" / "DECODING.md")
    for name in ("DECODING.md", "decoding.json", "images/acceptance_test.png"):
        assert str(tmp_path / "out" / name) in names
    assert (exp / "RESULTS.md").read_text() == before
    assert not [name for name in names if name.endswith(("training.png", "heads.png"))]


def test_errors_name_folder_or_file(tmp_path, exp, capsys):
    assert f"{tmp_path}/none: no such folder" in fails(capsys, exp, tmp_path / "none")
    empty = tmp_path / "exp" / "asr_new"
    empty.mkdir()
    assert f"{empty}: no decoded set" in lacks(capsys, exp, empty)
    for name in (".backup", "1best_recog"):
        (exp / BASELINE / "test" / name).mkdir()
        (exp / BASELINE / "test" / name / "text").write_text("s1-a one\n")
    assert f"{exp / BASELINE}: no decoded set" in fails(capsys, exp / BASELINE)
    message = fails(capsys, exp, "--baseline", exp / "decode_fast")
    assert "decode_fast: no such decoding of org/dev, test; there is" in message
    path = exp / BASELINE / "test" / "logdir" / "output.1" / "statistics.json"
    (exp / BASELINE / "test" / "statistics.json").unlink()
    path.write_text(path.read_text()[:100])
    assert f"{path}: is malformed" in lacks(capsys, exp)


@pytest.mark.parametrize("content", ['{"utterances"', "[]", '{"set": {}, "utterances": {}}'])
def test_malformed_merged_statistics_are_named(exp, capsys, content):
    run(capsys, exp)
    path = exp / BASELINE / "test" / "statistics.json"
    path.write_text(content)
    assert f"{path}: is malformed" in lacks(capsys, exp)


@cases(([], "requires --output"), (["--output", "x", "--baseline", "y"], "--baseline: not allowed"))
def test_conflicting_options_are_refused(options, message, capsys):
    with command_refused(capsys, message, status=2):
        report.main(["exp", "--config", "plan.yaml", *options])


def test_a_set_that_is_not_complete_does_not_spoil_the_report(tmp_path, exp, capsys):
    other = tmp_path / "exp" / "asr_train_plain"
    write_plain(other)
    (exp / "run.sh").touch()
    grown = exp / EXACT / "test"  # with an utterance that is not scored
    run_job(grown, 3, {"s9-new": ("one", statistics(2, 4, 1.0))})
    concatenate(grown, 3)
    command = f"run {exp}/run.sh --stage 13 --stop_stage 13"
    message = lacks(capsys, exp, other, "--baseline", exp / EXACT)
    assert f"report: not complete: {grown}: " in message and "no line of s9-new" in message
    assert command in message and message.count("not complete") == 1
    text = (tmp_path / "exp" / "RESULTS.md").read_text()
    assert f"## Not complete\n\nThe tables do not contain these sets:\n\n- `{grown}`: " in text
    assert f"|{EXACT}/org/dev|" in text and f"|{EXACT}/test|" not in text
    assert "|test|train_plain decode_baseline|" in text
    # Two utterances with one label, a report without its sum, a job without results.
    trn = exp / EXACT / "org" / "dev" / "score_wer" / "hyp.trn"
    trn.write_text(trn.read_text() * 2)
    later = trn.stat().st_mtime + 10
    os.utime(trn, (later, later))
    (exp / BASELINE / "test" / "score_wer" / "result.txt").write_text("killed")
    message = lacks(capsys, exp, other, "--baseline", exp / EXACT)
    assert "repeated ids" in message and "no `Sum/Avg` line" in message
    assert f"|{BASELINE}/test|" in (tmp_path / "exp" / "RESULTS.md").read_text()
    # Without a complete set there is no report.
    (other / BASELINE / "test" / "statistics.json").write_text("{")
    assert exit_status(report.main, exp, other) == 1
    assert "is malformed" in (message := capsys.readouterr().err)
    assert "run ./run.sh --stage 12 --stop_stage 13" in message
