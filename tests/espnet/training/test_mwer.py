"""Word errors, log-probabilities of hypotheses, and the loss: against brute force."""

import random
from typing import NamedTuple

import jiwer
import pytest
import test_training
import torch
from cases import cases, combinations
from tiny import EOS, LLAMA, TOKENS, VOCAB_SIZE, batch, model_of, random_encoder_out, tiny_decoder

from espnet_medusa.espnet.training import mwer
from espnet_medusa.networks.whisper.tokens import make_tokenizer

SYMBOLS = {"<blank>", "<sos/eos>"}
HEADS = ["none", "linear", "block", "recurrent", "attending", "llama projection", "llama latent"]
corpus = test_training.corpus


class Scored(NamedTuple):
    tokens: tuple[int, ...]
    heads: tuple[int, ...]


@cases(
    (["<blank>", "<unk>", "▁a", "b", "▁", "<sos/eos>"], [2, 3, 4, 3, 2, 5], "ab b a"),
    (["<blank>", "<unk>", "<space>", "a", "b", "<sos/eos>"], [3, 4, 2, 2, 3, 0, 4, 5], "ab ab"),
    (["<blank>", "<unk>", "Ġa", "b", "<|en|>", "<sos/eos>"], [4, 2, 3, 2, 5], "ab a"),
    (["<blank>", "<unk>", "one", "two", "<sos/eos>"], [2, 2, 3, 1, 4], "one one two <unk>"),
    # Maltese: Ġ is a letter in a list with another space symbol.
    (["<blank>", "<unk>", "▁Ġ", "Ġ", "<sos/eos>"], [2, 3, 2, 4], "ĠĠ Ġ"),
)
def test_words_of_token_lists(token_list, tokens, words):
    assert mwer.words_of(tokens, mwer.word_pieces(token_list, SYMBOLS)) == words.split()


def word_errors(hypothesis: str, reference: str) -> int:
    counts = jiwer.process_words(reference, hypothesis)
    return counts.substitutions + counts.deletions + counts.insertions


def test_word_errors_of_bytes_are_those_of_the_text():
    tokenizer = make_tokenizer(51865)
    token_list = tokenizer.convert_ids_to_tokens(range(51865))
    pieces = mwer.word_pieces(token_list, {"<|startoftranscript|>", "<|endoftext|>"})
    rng = random.Random(0)
    vocabulary = ["the", "grüße", "straße", "naïve", "日本語", "cat", "cats", "it's", "Ġ", "a"]
    for _ in range(50):
        pair = [" ".join(rng.choices(vocabulary, k=rng.randint(1, 8))) for _ in range(2)]
        ids = [tokenizer(f"<|startoftranscript|><|de|> {text}<|endoftext|>").input_ids
               for text in pair]  # fmt: skip
        hypothesis, reference = (mwer.words_of(row, pieces) for row in ids)
        assert mwer.Levenshtein.distance(hypothesis, reference) == word_errors(*pair)
        assert len(reference) == len(pair[1].split())


def random_hypotheses(seed: int, sizes: list[int], num_heads: int) -> list[list[Scored]]:
    """Return lists of random hypotheses; any possible head produced each token."""
    rng = random.Random(seed)

    def draw() -> Scored:
        tokens = [*(rng.randrange(VOCAB_SIZE - 1) for _ in range(rng.randint(0, 7))), EOS]
        heads = [rng.randint(0, min(place, num_heads)) for place in range(len(tokens))]
        return Scored(tuple(tokens), tuple(heads))

    return [[draw() for _ in range(size)] for size in sizes]


def one_by_one(decoder, encoder_out, frames, hypothesis: Scored, start=EOS) -> torch.Tensor:
    """Oracle: one pass and all heads' logits for every token of a single utterance."""
    total = torch.zeros((), dtype=encoder_out.dtype)
    encoder_out, lengths = encoder_out[None, :frames], torch.tensor([frames])
    for place, (token, head) in enumerate(zip(*hypothesis, strict=True)):
        node = place - head  # the head drafts after this many tokens
        inputs = torch.tensor([[start, *hypothesis.tokens[:node]]])
        outputs = decoder.hidden_states(encoder_out, lengths, inputs)
        hidden = decoder.unroll_hidden(
            outputs._replace(
                hidden=outputs.hidden[:, -1:].expand(-1, head + 1, -1),
                head_input=outputs.head_input[:, -1:].expand(-1, head + 1, -1),
            ),
            torch.tensor([hypothesis.tokens[: place + 1]])[:, node:],
        )[head][0, 0]
        total = total + (decoder.projections[head] @ hidden).log_softmax(-1)[token]
    return total


@pytest.mark.parametrize("heads", HEADS)
def test_loss_and_gradient_equal_those_token_by_token(heads, monkeypatch):
    decoder = tiny_decoder(7, heads, 3).double()
    n_best = random_hypotheses(9, [4, 1, 0, 3], decoder.num_heads)
    encoder_out, lengths = random_encoder_out(8, [9, 6, 5, 7])
    encoder_out = encoder_out.double().requires_grad_()
    errors = torch.tensor([[0, 1, 2, 4], [3, 0, 0, 0], [0, 0, 0, 0], [2, 5, 0, 0]])
    # Several chunks of rows.
    monkeypatch.setattr("espnet_medusa.espnet.training.mwer.CHUNK_LOGITS", 5 * VOCAB_SIZE)
    log_probs = mwer.hypothesis_log_probs(decoder, encoder_out, lengths, n_best, EOS)
    assert log_probs.shape == errors.shape
    # transformers' LlamaRMSNorm computes in float32, whatever the weights are.
    atol = 1e-4 if heads.startswith(LLAMA) else 1e-9
    expected = 0.0
    for row, hypotheses in enumerate(n_best):
        count = len(hypotheses)
        assert (log_probs[row, count:] == -torch.inf).all()
        if count:
            each = [
                one_by_one(decoder, encoder_out[row], int(lengths[row]), one) for one in hypotheses
            ]
            whole, wrong = torch.stack(each), errors[row, :count].double()
            torch.testing.assert_close(log_probs[row, :count], whole, atol=atol, rtol=1e-5)
            expected += (whole.softmax(0) @ wrong - wrong.mean()) / len(n_best)
    loss = mwer.mwer_loss(log_probs, errors)
    torch.testing.assert_close(loss, expected, atol=atol, rtol=1e-5)
    parameters = {"memory": encoder_out, **dict(decoder.named_parameters())}
    weights = [*parameters.values()]
    found, brute = (
        torch.autograd.grad(one, weights, allow_unused=True) for one in (loss, expected)
    )
    for name, ours, theirs in zip(parameters, found, brute, strict=True):
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            torch.testing.assert_close(ours, theirs, atol=atol, rtol=1e-4, msg=name)
    assert sum(float(gradient.abs().sum()) for gradient in found if gradient is not None) > 0.1


def test_no_logits_are_saved_for_the_gradient():
    decoder = tiny_decoder(1, "linear", 3, vocab_size=50)
    shapes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: shapes.append(tensor.shape) or tensor, lambda tensor: tensor
    ):
        n_best = random_hypotheses(2, [4, 4], decoder.num_heads)
        mwer.hypothesis_log_probs(
            decoder, *random_encoder_out(3, [9, 6]), n_best, EOS
        ).sum().backward()
    assert shapes and all(50 not in shape[1:] for shape in shapes)


def test_an_end_appended_at_maximum_length_is_not_scored():
    decoder = tiny_decoder(1, "linear", 2, max_target_positions=4)
    encoder_out, lengths = random_encoder_out(3, [5])
    full = Scored((1, 2, 3, 1, EOS), (0, 1, 2, 0))
    log_probs = mwer.hypothesis_log_probs(decoder, encoder_out, lengths, [[full]], EOS)
    expected = one_by_one(decoder, encoder_out[0], 5, Scored((1, 2, 3, 1), full.heads))
    torch.testing.assert_close(log_probs[0, 0], expected)


@pytest.mark.parametrize("width", [0, 1])
def test_without_a_choice_there_is_nothing_to_learn(width):
    log_probs = torch.zeros(2, width, requires_grad=True)
    loss = mwer.mwer_loss(log_probs, torch.ones(2, width))
    loss.backward()
    assert float(loss.detach()) == 0 and (log_probs.grad == 0).all()


@combinations(heads=HEADS, max_length=[3, 12, 100])
def test_log_probs_equal_the_scores_of_the_search(heads, max_length):
    decoder = tiny_decoder(11, heads, 3)
    encoder_out, lengths = random_encoder_out(12, [8, 5, 6, 9])
    objective = mwer.MWERObjective(mwer.word_pieces(TOKENS, SYMBOLS), EOS, EOS, 4, 0.15)
    n_best = objective.search(decoder, encoder_out, lengths, max_length)
    assert min(map(len, n_best)) > 1
    drafted = {head for found in n_best for one in found for head in one.heads}
    assert (drafted > {0}) == (heads != "none")
    log_probs = mwer.hypothesis_log_probs(decoder, encoder_out, lengths, n_best, EOS)
    for row, found in enumerate(n_best):
        scores = torch.tensor([one.score for one in found])
        torch.testing.assert_close(log_probs[row, : len(found)], scores, atol=1e-4, rtol=0)


def test_stats_are_those_of_the_lists(no_gradients):
    model = model_of(tiny_decoder(0, "linear", 2), mwer_weight=1.0, mwer_threshold=0.3).eval()
    data = batch()
    _, stats, _ = model(**data)
    encoder_out, lengths = model.encode(data["speech"], data["speech_lengths"])
    n_best = model.mwer.search(model.decoder, encoder_out, lengths, 16)
    best, expected, words = 0, 0.0, 0
    for text, found in zip(["abcdef", "bbdh", "ga"], n_best, strict=True):
        weights = torch.tensor([one.score for one in found]).softmax(-1).tolist()
        texts = [[TOKENS[token] for token in one.tokens] for one in found]  # each a word
        texts = [" ".join(word for word in tokens if word not in SYMBOLS) for tokens in texts]
        errors = [word_errors(hypothesis, " ".join(text)) for hypothesis in texts]
        best += errors[0]
        expected += sum(weight * error for weight, error in zip(weights, errors, strict=True))
        words += len(text)
    assert float(stats["wer_best"]) == pytest.approx(best / words)
    assert float(stats["wer_nbest"]) == pytest.approx(expected / words, rel=1e-4)


@pytest.mark.parametrize("heads", HEADS)
def test_the_loss_gains_the_weighted_errors(heads):
    conf = {"ctc_weight": 0.3, "mwer_threshold": 0.3}
    plain = model_of(tiny_decoder(0, heads, 2), **conf).eval()
    loss, stats, _ = model_of(tiny_decoder(0, heads, 2), mwer_weight=5.0, **conf).eval()(**batch())
    assert float(stats["mwer"]) != 0
    torch.testing.assert_close(loss, plain(**batch())[0] + 5.0 * stats["mwer"])


def test_frozen_parts_do_not_move():
    conf = {"mwer_weight": 1.0, "mwer_threshold": 0.2, "freeze_whisper": "all"}
    model = model_of(tiny_decoder(0, "linear", 2), ctc_weight=0.0, **conf)
    model.train()
    model(**batch())[0].backward()
    moved = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert moved and all(name.startswith("decoder.heads.") for name in moved)


def test_hypotheses_stay_within_the_decoders_positions():
    model = model_of(tiny_decoder(3, "linear", 2, max_target_positions=7), mwer_weight=1.0)
    loss, stats, _ = model(**batch())
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(stats["wer_nbest"])


def test_training_keeps_the_model_with_the_fewest_word_errors(corpus, tmp_path, caplog):
    config = test_training.config_of(
        "linear",
        model_conf={"mwer_weight": 1.0, "mwer_threshold": 0.2},
        best_model_criterion=[["valid", "wer_best", "min"]],
    )
    with caplog.at_level("INFO"):
        test_training.train(corpus, tmp_path / "exp", config)
    epoch = next(text for text in caplog.messages if "epoch results" in text)
    for name in ("mwer", "wer_nbest", "wer_best"):
        for part in epoch.split("[valid]"):
            assert f" {name}=" in part and f" {name}=nan" not in part
    assert (tmp_path / "exp" / "valid.wer_best.best.pth").is_symlink()


def test_no_search_runs_without_weight(monkeypatch):
    monkeypatch.setattr(mwer.MWERObjective, "search", None)
    _, stats, _ = model_of(tiny_decoder(0))(**batch())
    assert "mwer" not in stats
