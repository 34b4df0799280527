"""Training: losses per head, frozen bases, divergence from the original last layer."""

import pytest
import torch
from cases import combinations
from grown_trees import states_after
from rapidfuzz.distance import Levenshtein
from refusals import refuses
from tiny import EOS, batch, model_of, tiny_decoder
from tokenizers.pre_tokenizers import ByteLevel
from whole_logits import head_cross_entropy, head_divergence

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.networks.whisper.tokens import END, START


@combinations(
    heads=["none", "linear", "block", "recurrent", "attending", "llama latent", "llama projection"]
)
def test_joint_training_logs_every_head_and_reaches_every_weight(heads):
    model = model_of(tiny_decoder(0, heads, 3), ctc_weight=0.3)
    loss, stats, _ = model(**batch())
    loss.backward()
    count = 0 if heads == "none" else 3
    for head in range(1, count + 1):
        assert torch.isfinite(stats[f"loss_head{head}"]) and f"acc_head{head}" in stats
    assert f"loss_head{count + 1}" not in stats
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert [name for name, weight in trained.items() if weight.grad is None] == []


@pytest.mark.parametrize("heads", ["linear", "block", "recurrent", "attending"])
def test_head_losses_use_later_labels(heads, no_gradients):
    """Compare with the search's drafts after each position, without padding."""
    model = model_of(tiny_decoder(0, heads, 2), ctc_weight=0.0, length_normalized_loss=True)
    model.eval()
    data = batch()
    _, stats, _ = model(**data)
    encoder_out, lengths = model.encode(data["speech"], data["speech_lengths"])
    runtime = build_runtime(model.decoder)
    expected = []
    for row, length in enumerate(data["text_lengths"]):
        labels = [*data["text"][row, :length].tolist(), EOS]
        tokens = torch.tensor([[EOS, *labels[:-1]]])
        alone = encoder_out[row : row + 1, : lengths[row]]
        outputs = model.decoder.hidden_states(alone, lengths[row : row + 1], tokens)
        for position in range(len(labels) - 2):
            inputs = outputs.head_input[:, position], alone, lengths[row : row + 1]
            begun, states = states_after(runtime, *inputs)
            for token in labels[position : position + 2]:
                states = begun.advance(states, torch.tensor([token]))
            expected.append(-begun.logits(states)[0].log_softmax(-1)[labels[position + 2]])
    assert float(stats["loss_head2"]) == pytest.approx(float(torch.stack(expected).mean()), 1e-4)


@pytest.mark.parametrize("heads", ["block", "recurrent"])
def test_frozen_base_gets_no_gradient_and_no_dropout(heads):
    model = model_of(tiny_decoder(0, heads, 3, dropout_rate=0.5), ctc_weight=0.3)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("decoder.heads")
    model.train()
    assert model.decoder.heads.training and not model.decoder.whisper.training
    first, second = model(**batch())[1], model(**batch())[1]
    assert first["acc"] == second["acc"] and first["loss_att"] == second["loss_att"]
    assert "loss_ctc" not in first
    model(**batch())[0].backward()
    assert all(parameter.grad is None for parameter in model.decoder.whisper.parameters())
    assert all(parameter.grad is not None for parameter in model.decoder.heads.parameters())


def test_divergence_by_hand():
    logits = torch.tensor([[[0.0, 1.0], [2.0, 0.0], [0.5, 0.5]]])
    teacher = torch.tensor([[[1.0, 0.0], [0.0, 3.0], [1.0, 2.0]]])
    labels = torch.tensor([[0, 1, -1]])
    # Head 1 at position 0 against the teacher at position 1, whose label is padding.
    p, q = teacher[0, 1].softmax(-1), logits[0, 0].softmax(-1)
    expected = float((p * (p / q).log()).sum())
    assert float(head_divergence(logits, teacher, labels, 1)) == pytest.approx(expected, rel=1e-5)


def test_a_head_without_labels_has_no_loss():
    logits = torch.randn(2, 3, 5)
    for head in (3, 7):
        assert float(head_cross_entropy(logits, torch.zeros(2, 3, dtype=torch.long), head)) == 0.0


def test_ctc_over_units_trains_and_logs_its_error_rate():
    tokens = [*sorted(ByteLevel.alphabet()), "ab", "abc", START, END]
    decoder = tiny_decoder(0, "none", vocab_size=len(tokens))
    model = model_of(decoder, tokens, ctc_weight=0.9, ctc_units=257, report_cer=True)
    given = batch() | {"text": torch.tensor([[258, 257, 9], [256, 9, 257], [7, 256, 257]])}
    given["text_lengths"] = torch.tensor([3, 3, 3])
    loss, stats, _ = model(**given)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.ctc.parameters())
    _, stats, _ = model.eval()(**given)
    encoder_out, lengths = model.encode(given["speech"], given["speech_lengths"])
    frames = torch.minimum(model.encoder.frames_of_speech(given["speech_lengths"]), lengths)
    silent = torch.arange(encoder_out.size(1)) >= frames[:, None]
    encoder_out = encoder_out.masked_fill(silent[:, :, None], 0.0)[:, : frames.max()]
    wrong, count = 0, 0
    for row, tokens_of_row in zip(encoder_out, given["text"].tolist(), strict=True):
        # ESPnet counts padded frames, too.
        labels = model.ctc.argmax(row[None])[0].unique_consecutive().tolist()
        spoken = "".join(tokens[token] for token in tokens_of_row if token < 258)
        text = "".join(tokens[label - 1] for label in labels if label)
        wrong += Levenshtein.distance(text, spoken)
        count += len(spoken)
    assert stats["cer_ctc"] == pytest.approx(wrong / count)


@refuses(
    ({"kl_wieght": 1.0}, "model_conf: unknown option 'kl_wieght'.*did you mean 'kl_weight'"),
    ({"head_loss_decay": -0.5}, "model_conf.head_loss_decay: -0.5 is too small"),
    ({"ctc_weight": 1.0}, "model: medusa needs decoder: whisper_medusa, speech_llama"),
    ({"ctc_units": 300}, "model_conf.ctc_units: allowed with ctc_weight above 0"),
    ({"ctc_block": "rnn", "ctc_weight": 0.3}, "model_conf.ctc_block: allowed with ctc_units"),
    ({"ctc_units": 300, "ctc_weight": 0.3}, "ctc_units: 300 .* allowed: Whisper's tokens"),
    ({"mwer_weight": -1.0}, "model_conf.mwer_weight: -1.0 is too small"),
    ({"lang_token_id": 5}, "model_conf.lang_token_id: not allowed"),
    ({"draft_vocab_size": 1}, "model_conf.draft_vocab_size: 1 is too small"),
    ({"mwer_beam": 1}, "model_conf.mwer_beam: 1 is too small; allowed: 2 or more"),
    ({"mwer_threshold": 1.5}, "model_conf.mwer_threshold: 1.5; allowed: above 0, at most 1"),
)
def test_bad_options_are_refused(conf):
    model_of(tiny_decoder(0), **conf)


@pytest.mark.parametrize("heads", ["linear", "recurrent", "attending"])
def test_state_loss_is_the_distance_to_later_decoder_states(heads):
    """Position by position; padding and positions without a drafted token are ignored."""
    weight = 0.7
    decoder = tiny_decoder(0, heads, 2)
    losses = {}
    for state_weight in (0.0, weight):
        model = model_of(decoder, ctc_weight=0.0, state_weight=state_weight).eval()
        losses[state_weight], stats, _ = model(**batch())
    data = batch()
    text = data["text"]
    labels = torch.nn.functional.pad(text, (0, 1), value=-1)
    tokens = torch.nn.functional.pad(text.clamp(min=0), (1, 0), value=EOS)
    for row, length in enumerate(data["text_lengths"]):
        labels[row, length] = EOS
    outputs = decoder.hidden_states(*model.encode(data["speech"], data["speech_lengths"]), tokens)
    distances = []
    for head, states in enumerate(decoder.unroll_hidden(outputs, labels.clamp(min=0))[1:], 1):
        for row, place in (labels[:, head:] >= 0).nonzero().tolist():
            apart = (states[row, place] - outputs.hidden[row, place + head]).abs()
            distances += torch.where(apart < 1, apart**2 / 2, apart - 0.5).tolist()
    expected = sum(distances) / len(distances)
    assert float(stats["loss_state"]) == pytest.approx(expected, rel=1e-4)
    difference = losses[weight] - losses[0.0]
    assert float(difference.detach()) == pytest.approx(weight * expected, rel=1e-3)
