"""Parts of ESPnet3 recipes: metrics, the model that returns decodings, and its runner."""

import json
import random

import pytest
from experiment import noise
from refusals import assert_refused
from tiny_whisper import save_whisper_of_bytes

pytest.importorskip("espnet3.systems.esp2_asr", reason="ESPnet 202511 has none")
from espnet3.systems.esp2_asr.metrics.wer import WER
from splet.bin import measure as splet

from espnet_medusa.espnet3 import inference, metrics
from espnet_medusa.espnet3.dataset import ScriptBuilder

SHORT = {"maxlenratio": -6, "search": "greedy", "heads": "none"}


def write(folder, **columns):
    """Write columns as ESPnet3's tables; return their paths by name."""
    paths = {}
    for name, values in columns.items():
        paths[name] = folder / f"{name}.scp"
        lines = (f"s{row % 2}-u{row} {value}\n" for row, value in enumerate(values))
        paths[name].write_text("".join(lines))
    return paths


@pytest.mark.parametrize("seed", range(4))
def test_word_error_rates_are_those_of_espnet_and_splet(tmp_path, seed, capsys):
    chance = random.Random(seed)
    texts = [[chance.choice("abc") * 2 for _ in range(chance.randrange(1, 7))] for _ in range(20)]
    wrong = [[word for word in text if chance.random() > 0.3] for text in texts]
    data = write(tmp_path, ref=map(" ".join, texts), hyp=map(" ".join, wrong))
    report = metrics.ScliteReport()
    [ours], [theirs] = report(data, "t", tmp_path).values(), WER()(data, "t").values()
    assert ours == theirs
    lines = (tmp_path / "t" / "sclite.txt").read_text()
    assert "| s0 " in lines and f"{sum(map(len, texts))} |" in lines
    (tmp_path / "metrics.yaml").write_text("- name: wer\n")
    words = [
        "--pred",
        data["hyp"],
        "--gt",
        data["ref"],
        "--metrics_config",
        tmp_path / "metrics.yaml",
    ]
    splet.main([*map(str, words)])
    assert json.loads(capsys.readouterr().out)["wer"] == pytest.approx(ours / 100, abs=1e-4)


def test_calls_and_seconds(tmp_path):
    (tmp_path / "baseline" / "t").mkdir(parents=True)
    write(tmp_path / "baseline" / "t", seconds=[3, 5.0])
    data = write(
        tmp_path, tokens=[6, 4], decoder_calls=[2, 2], seconds=[1, 1.5], audio_seconds=[5, 5]
    )

    def measure(metric, *names):
        return metric({name: data[name] for name in names}, "t", None)

    assert measure(metrics.TokensPerCall(), "tokens", "decoder_calls") == {"tokens_per_call": 2.5}
    assert measure(metrics.RealTimeFactor(), "seconds", "audio_seconds") == {"rtf": 0.25}
    speedup = metrics.Speedup(str(tmp_path / "baseline"))
    assert measure(speedup, "seconds") == {"speedup": 3.2}
    write(tmp_path / "baseline" / "t", seconds=[3, 5.0, 9.0])
    assert measure(metrics.Speedup(str(tmp_path / "baseline")), "seconds") == {"speedup": 3.2}
    write(tmp_path / "baseline" / "t", seconds=[3])
    fewer = metrics.Speedup(str(tmp_path / "baseline"))
    assert_refused("baseline: .*seconds.scp: lacks s1-u1", measure, fewer, "seconds")
    other = metrics.Speedup(str(tmp_path / "none"))
    assert_refused("baseline: .*seconds.scp: no such file; run", measure, other, "seconds")


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return str(save_whisper_of_bytes(tmp_path_factory.mktemp("whisper"), timestamps=True))


def test_long_audio_is_decoded_in_windows_and_short_audio_in_one_batch(whisper):
    decoder = inference.Decoder(whisper, long_form={}, **SHORT)
    given = [noise(0), noise(1, 31 * 16000), noise(2)[None]]
    decodings, speech2text = decoder(given), decoder.speech2text
    assert (
        decodings[0].results[0][0] == speech2text(given[0])[0][0] == decoder(given[0]).results[0][0]
    )
    assert decodings[1].segments == tuple(speech2text.transcribe(given[1]))
    assert decodings[1].statistics.audio_seconds == 31
    short = inference.Decoder(whisper, **SHORT)
    assert_refused("utterance 2 of 3: .*31", short, given)
    assert_refused(
        "unknown option 'words'", inference.Decoder, whisper, long_form={"words": 1}, **SHORT
    )


def test_the_runner_returns_text_segments_and_counts(whisper):
    decoder = inference.Decoder(whisper, **SHORT)
    decodings = decoder([noise(0), noise(1)])
    one, two = inference.MedusaRunner.format_output(decodings, batched=True)
    assert one == inference.MedusaRunner.format_output(decodings[0], batched=False)
    assert one["audio_seconds"] == len(noise(0)) / 16000 and two["decoder_calls"] > 0
    assert [part["text"] for part in one["segments"]] == [one["text"]]


def test_a_script_that_writes_other_folders(tmp_path):
    class Builder(ScriptBuilder):
        script = "prepare.py"

    def prepare(folder):
        path = f"__import__('pathlib').Path({folder!r})"
        code = f"{path}.mkdir(); ({path} / 'wav.scp').touch()"
        (tmp_path / "prepare.py").write_text(code)
        Builder().build(recipe_dir=tmp_path, data_dirs=["train"])

    assert_refused("data_dirs: train; prepare.py writes no such folder", prepare, "train_5")
    prepare("train")
    assert Builder().is_built(tmp_path, ["train"])
    (tmp_path / "prepare.py").write_text("raise SystemExit(1)")
    assert_refused("prepare.py failed", Builder().build, tmp_path, ["train"])
