"""Audio that is too short for the encoder: an empty hypothesis, as in ESPnet's command."""

from cases import cases
from experiment import read_lines, write_corpus
from job_log import log_to
from stock_experiment import stock_experiment

from espnet_medusa.bin import asr_inference, stage
from espnet_medusa.decoding.search.statistics import read_statistics
from espnet_medusa.inference.too_short import is_too_short
from espnet_medusa.recipes.rtf import read_timings

SECONDS = {"a": 0.6, "b": 0.02, "c": 0.5, "d": 0.012}


@cases(("conformer", 1, "bd"), ("conformer", 4, "bd"), ("vgg_rnn", 1, "d"))
def test_short_utterances_have_empty_hypotheses(encoder, batch_size, short, tmp_path, capsys):
    write_corpus(tmp_path, SECONDS)
    sizes = {"num_layers": 1, "hidden_size": 8, "output_size": 8}
    conf = {} if encoder == "conformer" else {"encoder_conf": sizes, "frontend_conf": {}}
    experiment = stock_experiment(tmp_path / "exp", encoder=encoder, **conf)
    log_dir, output = tmp_path / "log", tmp_path / "merged"
    log_dir.mkdir()
    speech = f"{tmp_path / 'wav.scp'},speech,sound"
    command = [*experiment.options(), "--output_dir", str(log_dir / "output.1")]
    command += ["--data_path_and_name_and_type", speech, "--maxlenratio", "-3", "--beam_size", "1"]
    with log_to(log_dir / "asr_inference.1.log"):
        asr_inference.main([*command, "--batch_size", str(batch_size)])
    texts = read_lines(log_dir / "output.1" / "1best_recog" / "text")
    assert list(texts) == [*"abcd"] and {texts[key] for key in short} == {""}
    assert len(read_timings(log_dir / "asr_inference.1.log")) == 4
    keys = ["--keys", str(tmp_path / "wav.scp"), "--log_dir", str(log_dir)]
    stage.main(["merge_outputs", *keys, "--output_dir", str(output)])  # status 0
    printed = capsys.readouterr()
    assert "4 of 4 utterances decoded" in printed.out
    assert "warning: d: 12 ms are too short for the encoder (" in printed.err
    assert read_lines(output / "short_utterances").keys() == {*short}
    statistics = read_statistics(output / "statistics.json")["d"]
    assert statistics.audio_seconds == 0.012 and statistics.total_seconds > 0


def test_other_errors_are_failures():
    message = "Kernel size can't be greater than actual input size"
    assert is_too_short(RuntimeError(message), 0.1)
    assert not is_too_short(RuntimeError(message), 5.0), "of a wrong shape, for example"
    assert not is_too_short(RuntimeError("shape mismatch"), 0.1)
    assert not is_too_short(ValueError(message), 0.1)
    assert not is_too_short(None, 0.1)
