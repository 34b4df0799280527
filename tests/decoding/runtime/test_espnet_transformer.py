"""ESPnet's transformer decoder in our searches, against ESPnet's results."""

import random
import re

import torch
from cases import cases, combinations
from espnet2.asr.decoder import transformer_decoder
from grown_trees import CLOSE, Grown, branched, extend_chains, grow_raggedly, halve, relative_error
from searches import assert_random_nbest_is_espnets, decode_exactly
from tiny import HIDDEN_SIZE, VOCAB_SIZE, random_encoder_out

from espnet_medusa.decoding.runtime import cross_attention, precision
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.runtime.native_decoder import NativeStack
from espnet_medusa.networks import espnet_compat as compat
from espnet_medusa.networks import espnet_transformer
from espnet_medusa.networks.espnet_transformer import searchable
from espnet_medusa.networks.multi_token_decoder import HiddenStates

KINDS = [
    {},
    {"normalize_before": False},
    {"concat_after": True},
    {"normalize_before": False, "concat_after": True},
    {"pos_enc_class": compat.ScaledPositionalEncoding, "layer_drop_rate": 0.5},
    {"pos_enc_class": compat.LearnableFourierPosEnc, "attention_heads": 1},
]


def espnet_decoder(seed: int, **options) -> transformer_decoder.TransformerDecoder:
    torch.manual_seed(seed)
    sizes = {"attention_heads": 4, "linear_units": 48, "num_blocks": 2}
    module = transformer_decoder.TransformerDecoder(VOCAB_SIZE, HIDDEN_SIZE, **sizes | options)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module.eval()


class Module(espnet_transformer.TransformerMedusaDecoder):
    """ESPnet's module with the methods that ``Grown`` calls."""

    def __init__(self, module):
        self._wrap(module)

    def hidden_states(self, encoder_out, lengths, tokens):
        sizes = torch.full((len(tokens),), tokens.size(1))
        (_, hidden), _ = self.transformer(encoder_out, lengths, tokens, sizes, return_hs=True)
        return HiddenStates(hidden, hidden, hidden)

    def logits(self, hidden):
        return self.transformer.output_layer(hidden)


@combinations(options=KINDS, seed=range(4))
def test_branching_ragged_trees_equal_forward_of_each_path(options, seed):
    grown = Grown(Module(espnet_decoder(seed, **options)), *random_encoder_out(seed, [8, 1, 5, 12]))
    grow_raggedly(random.Random(f"{seed} {options}"), grown)


@combinations(options=[KINDS[0], *KINDS[-2:]])
def test_positions_never_run_out(options, monkeypatch):
    """Neither the runtime's first 7 nor ESPnet's first 5000."""
    module = espnet_decoder(0, **options)
    encoder_out, lengths = random_encoder_out(0, [3])
    tokens = torch.randint(0, VOCAB_SIZE, (1, 300))
    expected, _ = module(encoder_out, lengths, tokens, torch.tensor([300]))
    monkeypatch.setattr(cross_attention, "FIRST_POSITIONS", 7)
    runtime = build_runtime(searchable(module))
    logits = runtime.logits(extend_chains(runtime, encoder_out, lengths, tokens).hidden)
    torch.testing.assert_close(logits, expected[0], **CLOSE)
    assert len(runtime._position_table(6000)) >= 6000
    long = module.embed[1](torch.zeros(1, 6000, HIDDEN_SIZE))[0]
    torch.testing.assert_close(runtime._position_table(6000)[:6000], long, **CLOSE)


@combinations(options=KINDS[:4])
def test_other_precisions_stay_near(options):
    module, result = halve(espnet_decoder(0, **options)), {}
    for name in (None, precision.BFLOAT16, precision.INT8):
        runtime = build_runtime(searchable(module), name)
        result[name] = runtime.logits(branched(runtime, *random_encoder_out(0, [9, 4])).hidden)
    if runtime.precision.kernels:  # native kernels support pre-norm only
        assert isinstance(runtime.layers, NativeStack) == (not options)
    for name in (precision.BFLOAT16, precision.INT8):
        assert 0 < relative_error(result[name], result[None]) < 0.06


def test_float64_modules():
    (encoder_out, lengths), tokens = random_encoder_out(0, [5]), torch.tensor([[1, 9, 2]])
    for options in KINDS:
        module = espnet_decoder(0, **options).double()
        expected, _ = module(encoder_out.double(), lengths, tokens, torch.tensor([3]))
        runtime = build_runtime(searchable(module))
        result = runtime.logits(
            extend_chains(runtime, encoder_out.double(), lengths, tokens).hidden
        )
        torch.testing.assert_close(result, expected[0], rtol=1e-6, atol=1e-6)


def test_the_runtime_does_not_need_the_modules_weights():
    module = espnet_decoder(0, concat_after=True)
    scorer = searchable(module)
    runtime, chain = build_runtime(scorer), (*random_encoder_out(0, [5]), torch.tensor([[1, 2]]))
    before = runtime.logits(extend_chains(runtime, *chain).hidden)
    scorer.release()
    assert not any(parameter.numel() for parameter in module.parameters())
    assert torch.equal(runtime.logits(extend_chains(runtime, *chain).hidden), before)


@combinations(seed=range(24))
def test_nbest_equals_that_of_espnets_search(seed):
    """ESPnet's search uses the module itself, with ESPnet's cache."""
    module = espnet_decoder(seed, **KINDS[seed % len(KINDS)])
    decoder = build_runtime(searchable(module))
    assert_random_nbest_is_espnets(random.Random(seed), seed, decoder, module)


@combinations(options=KINDS)
def test_greedy_equals_plain_greedy(options):
    module, audio = espnet_decoder(3, **options), random_encoder_out(3, [6, 3, 9])
    decode_exactly(module, *audio, [20, 30, 12], decoder=build_runtime(searchable(module)))


class Streaming(compat.PositionalEncoding):
    """A positional encoding that is not supported."""


class LoraLinear(torch.nn.Linear):
    """A layer that would add something to its product."""


def changed(part: str, value: torch.nn.Module) -> transformer_decoder.TransformerDecoder:
    module = espnet_decoder(0)
    module.set_submodule(part, value)
    return module


@cases(
    (lambda: espnet_decoder(0, input_layer="linear"), "input_layer: linear"),
    (lambda: espnet_decoder(0, use_output_layer=False), "use_output_layer: false"),
    (lambda: espnet_decoder(0, qk_norm=True), "qk_norm: true"),
    (lambda: espnet_decoder(0, pos_enc_class=Streaming), "pos_enc_class: Streaming"),
    (lambda: changed("decoders.1.src_attn.linear_q", LoraLinear(HIDDEN_SIZE, HIDDEN_SIZE)),
     "decoder.decoders.1.src_attn.linear_q: .*"),
    (lambda: changed("decoders.0.feed_forward.activation", torch.nn.SiLU()), ".*SiLU.*"),
    (lambda: torch.quantization.quantize_dynamic(espnet_decoder(0), {torch.nn.Linear}),
     ".*quantized.*"),
    (lambda: transformer_decoder.LightweightConvolutionTransformerDecoder(
        VOCAB_SIZE, HIDDEN_SIZE, num_blocks=1, conv_kernel_length=[3]
    ), "decoder: LightweightConvolutionTransformerDecoder"),
)  # fmt: skip
def test_unknown_parts_are_named(make, reason):
    module = make()
    assert re.fullmatch(reason, espnet_transformer.unknown_part(module))
    assert searchable(module) is None
