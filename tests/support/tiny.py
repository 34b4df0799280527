"""Tiny random models for tests, seeded; some drafts are right and some are wrong."""

from functools import cache

import torch
from espnet2.asr.ctc import CTC

from espnet_medusa.decoding.runtime.espnet_scorer import ScoringLlamaDecoder, ScoringWhisperDecoder
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.espnet.training.asr_model import MedusaASRModel
from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder

VOCAB_SIZE = 11
HIDDEN_SIZE = 32
EOS = VOCAB_SIZE - 1
SIZES = {"num_blocks": 2, "attention_heads": 4, "linear_units": 48}
HEADS = ["linear", "block", "recurrent", "attending"]  # of Whisper decoders
LLAMA = "llama "  # Speech-LLaMA's heads: "llama latent"


def tiny_decoder(seed: int, heads: str = "linear", num_heads: int = 4, **options):
    """A decoder whose small vocabulary makes random heads agree with it now and then."""
    # ``torch.manual_seed`` would also store a stack trace for each kind of device.
    torch.default_generator.manual_seed(seed)
    vocab_size = options.pop("vocab_size", VOCAB_SIZE)
    options["heads_conf"] = {"num_heads": num_heads, **options.get("heads_conf", {})}
    if heads.startswith(LLAMA):
        sizes = {
            "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96,
        }  # fmt: skip
        options["llama_conf"] = sizes | options.get("llama_conf", {})
        options["heads"] = heads.removeprefix(LLAMA)
        decoder = ScoringLlamaDecoder(vocab_size, HIDDEN_SIZE, **options)
    else:
        options = {"max_target_positions": 64, "heads": heads} | SIZES | options
        decoder = ScoringWhisperDecoder(vocab_size, HIDDEN_SIZE, **options)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return decoder.eval()


# For tests that do not change the decoder and draw no random numbers without a generator.
shared_decoder = cache(tiny_decoder)


def tiny_encoder(seed: int, **options) -> HFWhisperEncoder:
    torch.manual_seed(seed)
    sizes = {"output_size": HIDDEN_SIZE, "num_mel_bins": 80, "max_source_positions": 100}
    return HFWhisperEncoder(input_size=1, **SIZES | sizes | options).eval()


def bounds(most: list[int], least: list[int] | None = None) -> list[LengthLimits]:
    pairs = zip(most, least or [0] * len(most), strict=True)
    return [LengthLimits(-high, -low) for high, low in pairs]


def random_encoder_out(seed: int, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(U, S, D) memory with random padding, and the lengths."""
    generator = torch.Generator().manual_seed(seed)
    encoder_out = torch.randn(len(lengths), max(lengths), HIDDEN_SIZE, generator=generator)
    return encoder_out, torch.tensor(lengths)


def utterances(encoder_out: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
    """Return the memory (1, S, D) of each utterance without padding."""
    return [row[None, :size] for row, size in zip(encoder_out, lengths, strict=True)]


@torch.no_grad()
def all_logits(decoder, encoder_out, tokens) -> torch.Tensor:
    """Return the teacher-forced logits (L, V) after each token, for one memory (1, S, D)."""
    frames, sizes = torch.tensor([encoder_out.size(1)]), torch.tensor([len(tokens)])
    return decoder(encoder_out, frames, torch.tensor([[*tokens]]), sizes)[0][0]


def next_logits(decoder, encoder_out, tokens) -> torch.Tensor:
    """Return the teacher-forced logits (V,) after tokens, for one memory (1, S, D)."""
    return all_logits(decoder, encoder_out, tokens)[-1]


def plain_greedy(decoder, encoder_out, prompt, max_length, min_length=0, rules=None, guess=()):
    """Greedy search with a teacher-forced forward pass of the whole prefix per token.

    One forward pass serves all prefixes of ``guess``, the tokens to be compared with the result.
    Returns tokens, the sum of log-probabilities, and whether the end symbol was reached.
    """
    tokens, score, guess = [], 0.0, [*prompt, *guess][: len(prompt) + max_length - 1]
    guessed = all_logits(decoder, encoder_out, guess)
    while len(tokens) < max_length:
        prefix = [*prompt, *tokens]
        known = guess[: len(prefix)] == prefix
        logits = guessed[len(prefix) - 1] if known else next_logits(decoder, encoder_out, prefix)
        if rules is not None:
            [logits] = rules(logits[None], torch.tensor([prefix]))
        log_probs = torch.log_softmax(logits, dim=-1)
        if len(tokens) < min_length:
            logits[EOS] = -torch.inf
        token = int(logits.argmax())
        score += float(log_probs[token])
        if token == EOS:
            return tokens, score, True
        tokens.append(token)
    return tokens, score, False


TOKENS = ["<blank>", "<unk>", *"abcdefgh", "<sos/eos>"]


def model_of(decoder, tokens=TOKENS, **conf) -> MedusaASRModel:
    torch.manual_seed(0)
    return MedusaASRModel(
        vocab_size=len(tokens), token_list=tokens, frontend=None, specaug=None, normalize=None,
        preencoder=None, encoder=tiny_encoder(0), postencoder=None, decoder=decoder,
        ctc=CTC(len(tokens), HIDDEN_SIZE), joint_network=None,
        **{"report_cer": False, "report_wer": False} | conf,
    )  # fmt: skip


def batch():
    return {
        "speech": 0.1 * torch.randn(3, 16000, generator=torch.Generator().manual_seed(1)),
        "speech_lengths": torch.tensor([16000, 12000, 8000]),
        "text": torch.tensor([[2, 3, 4, 5, 6, 7], [3, 3, 5, 9, -1, -1], [8, 2, -1, -1, -1, -1]]),
        "text_lengths": torch.tensor([6, 4, 2]),
    }
