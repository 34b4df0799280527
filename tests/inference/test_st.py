"""Speech translation: the n-best lists of ESPnet's own st_inference."""

import random

import numpy as np
import pytest
import torch
from espnet2.bin import st_inference as espnet
from espnet2.tasks.st import STTask
from experiment import TOKENS, dry_run, noise, save_random, write_corpus
from job_log import assert_same_nbest_files
from refusals import refused
from s2t_experiment import NETWORKS

from espnet_medusa.bin import st_inference
from espnet_medusa.inference.st import STSpeech2Text


def make_st_experiment(folder, seed, **changes):
    torch.manual_seed(seed)
    (folder / "src_tokens.txt").write_text("\n".join(TOKENS) + "\n")
    config = NETWORKS | {
        "model_conf": {"asr_weight": 0.3, "mtlalpha": 1.0, "st_mtlalpha": 0.3},
        "src_token_type": "char", "src_token_list": str(folder / "src_tokens.txt"),
    } | changes  # fmt: skip
    exp = folder / "exp"
    save_random(STTask, exp, dry_run(STTask, exp, config, "--seed", seed), 0.3)
    return {"st_train_config": exp / "config.yaml", "st_model_file": exp / "model.pth"}


def rows(nbest):
    return [(*row[:3], row[3].yseq.tolist()) for row in nbest]


@pytest.mark.parametrize("seed", range(6))
def test_nbest_lists_are_espnets(tmp_path, seed):
    rng = random.Random(seed)
    files = make_st_experiment(tmp_path, seed)
    options = {
        "beam_size": rng.randint(1, 8),
        "ctc_weight": [0.0, 0.3][seed % 2],
        "penalty": rng.choice([0.0, 0.3]),
        "maxlenratio": rng.choice([-6, -12]),
        "nbest": rng.choice([1, 4]),
    }
    theirs = espnet.Speech2Text(**files, **options)
    assert hasattr(theirs.st_model, "st_ctc")
    speeches = [noise(rng.randrange(1000), rng.randint(12000, 30000)) for _ in range(3)]
    expected = [theirs(speech) for speech in speeches]
    for drafts in ({}, {"drafter": "ctc"}):
        ours = STSpeech2Text(**files, **options, **drafts)
        for speech, right, decoding in zip(speeches, expected, ours.decode(speeches), strict=True):
            result = ours(speech)
            assert rows(result) == rows(decoding.results) == rows(right)
            scores = [[float(row[3].score) for row in nbest] for nbest in (result, right)]
            np.testing.assert_allclose(*scores, rtol=1e-4)
            assert decoding.statistics.decoder_calls > 0
            assert decoding.statistics.audio_seconds == len(speech) / 16000


def test_the_command_writes_espnets_files(tmp_path):
    files = make_st_experiment(tmp_path, 1)
    write_corpus(tmp_path, {"a": 0.9, "b": 1.6, "c": 1.2})
    run = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    run += ["--data_path_and_name_and_type", f"{tmp_path}/wav.scp,speech,sound", "--nbest", "3"]
    run += ["--beam_size", "4", "--maxlenratio", "-9", "--ctc_weight", "0.3"]
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    espnet.main([*run, "--output_dir", str(theirs), "--num_workers", "0"])
    batches = ["--drafter", "ctc", "--batch_size", "2"]
    st_inference.main([*run, "--output_dir", str(ours), *batches])
    assert_same_nbest_files(ours, theirs, ("text", "token", "token_int"))
    (tmp_path / "b.wav").write_text("no audio")
    with pytest.raises(SystemExit, match="1 utterance failed"):
        st_inference.main([*run, "--output_dir", str(ours)])


def test_what_ours_does_not_decode(tmp_path, caplog):
    decoder = {"decoder": "rnn", "decoder_conf": {"num_layers": 1, "hidden_size": 8}}
    files = make_st_experiment(tmp_path, 0, **decoder)
    options = {"maxlenratio": -5, "beam_size": 3}
    ours = STSpeech2Text(**files, **options)
    assert ours.search is None and "ESPnet's own search decodes" in caplog.text
    expected = espnet.Speech2Text(**files, **options)(noise(0))
    assert rows(ours.decode([noise(0)])[0].results) == rows(expected)
    with refused("batch_size: 2", "allows only 1"):
        STSpeech2Text(**files, batch_size=2)
