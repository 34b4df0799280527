"""Speech-LLaMA's decoder: padding, positions, pretrained models, low-rank adapters, options."""

import copy

import torch
from cases import cases
from grown_trees import CLOSE, branched, halve, relative_error
from refusals import assert_refused, refuses
from tiny import HIDDEN_SIZE, VOCAB_SIZE, batch, model_of, random_encoder_out, tiny_decoder
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.tree.token_tree import ROOT
from espnet_medusa.networks.llama_decoder import SpeechLlamaDecoder

SIZES = {
    "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
LORA = {"r": 2, "target_modules": ["q_proj", "v_proj", "up_proj"]}


def save_language_model(folder, vocab_size=VOCAB_SIZE, config=LlamaConfig, **changes):
    torch.manual_seed(0)
    fields = SIZES | {"num_key_value_heads": 2, "max_position_embeddings": 64} | changes
    model = AutoModelForCausalLM.from_config(config(vocab_size=vocab_size, **fields))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model.eval()


def test_speech_is_a_prefix_without_padding(no_gradients):
    """Equal to transformers' model on one utterance's embeddings, without a mask."""
    decoder = tiny_decoder(0, "llama none")
    assert decoder.llama.config.pad_token_id is None
    encoder_out, lengths = random_encoder_out(0, [9, 4, 1])
    tokens = torch.randint(0, VOCAB_SIZE, (3, 6))
    hidden = decoder.hidden_states(encoder_out, lengths, tokens).hidden
    for row, frames in enumerate(lengths.tolist()):
        used = torch.cat([encoder_out[row, :frames], torch.zeros(-frames % 3, HIDDEN_SIZE)])
        speech = decoder.adapter.linear(used.reshape(-1, 3 * HIDDEN_SIZE))
        embeddings = torch.cat([speech, decoder.embed_tokens(tokens[row])])
        expected = decoder.llama.model(inputs_embeds=embeddings[None]).last_hidden_state
        torch.testing.assert_close(hidden[row], expected[0, len(speech) :], **CLOSE)


def test_keys_and_values_of_the_speech_are_computed_once(no_gradients):
    runtime = build_runtime(tiny_decoder(0, "llama latent"))
    state = runtime.start(*random_encoder_out(0, [9, 4]))
    assert (state.cache.num_prefix, state.offsets, state.calls) == (3, [3, 2], 0)
    prefix = state.cache.slots[:, :, :3].clone()
    runtime.extend(state, [[1, 2, 3], [4]], [[ROOT, 0, 0], [ROOT]])
    runtime.keep(state, [[0, 2], [0]])
    runtime.select(state, [1, 0])
    assert torch.equal(state.cache.slots[:, :, :3], prefix[:, [1, 0]])
    assert state.offsets == [2, 3]


@cases(
    (LlamaConfig, {"tie_word_embeddings": True}),
    (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}}),
    (MistralConfig, {"sliding_window": None, "head_dim": 8}),
    ids=["tied", "linear rope", "mistral"],
)
def test_pretrained_language_model_and_its_conf(config, changes, tmp_path, no_gradients):
    model = save_language_model(tmp_path, config=config, **changes)
    conf = {"llama_model": str(tmp_path), "heads": "latent"}
    decoder = SpeechLlamaDecoder(VOCAB_SIZE, HIDDEN_SIZE, **conf).eval()
    encoder_out, lengths = random_encoder_out(0, [7])
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    speech, _ = decoder.adapter(encoder_out, lengths)
    embeddings = torch.cat([speech, model.get_input_embeddings()(tokens)], dim=1)
    expected = model(inputs_embeds=embeddings).logits[:, speech.size(1) :]
    result, _ = decoder(encoder_out, lengths, tokens, torch.tensor([5]))
    torch.testing.assert_close(result, expected, **CLOSE)
    runtime = build_runtime(decoder)
    outputs = runtime.extend(
        runtime.start(encoder_out, lengths), tokens.tolist(), [[ROOT, 0, 1, 2, 3]]
    )
    torch.testing.assert_close(runtime.logits(outputs.hidden), expected[0], **CLOSE)
    rebuilt = SpeechLlamaDecoder(VOCAB_SIZE, HIDDEN_SIZE, **decoder.conf, heads="latent").eval()
    rebuilt.load_state_dict(decoder.state_dict())
    torch.testing.assert_close(rebuilt(encoder_out, lengths, tokens, None)[0], expected, **CLOSE)


def test_embeddings_after_the_vocabulary_are_dropped(tmp_path):
    model = save_language_model(tmp_path, vocab_size=VOCAB_SIZE + 5)
    decoder = SpeechLlamaDecoder(VOCAB_SIZE, HIDDEN_SIZE, llama_model=str(tmp_path))
    assert torch.equal(decoder.projection, model.lm_head.weight[:VOCAB_SIZE])
    message = "token_list has 17 tokens, .* 16: use the tokens that"
    assert_refused(message, SpeechLlamaDecoder, 17, HIDDEN_SIZE, llama_model=str(tmp_path))


def trained_names(decoder):
    model = model_of(decoder, ctc_weight=0.0).train()
    loss, *_ = model(**batch())
    before = copy.deepcopy(decoder.state_dict())
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    loss.backward()
    optimizer.step()
    after = decoder.state_dict()
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


def test_only_adapter_and_heads_of_a_frozen_model_are_trained():
    decoder = tiny_decoder(0, "llama latent", freeze_llama=True)
    assert {name.split(".")[0] for name in trained_names(decoder)} == {"adapter", "heads"}


def test_low_rank_adapters_are_trained_and_merged_for_searches(no_gradients):
    with torch.enable_grad():
        decoder = tiny_decoder(0, "llama block", lora=LORA)
        changed = trained_names(decoder)
    inside = {name for name in changed if name.startswith("llama.")}
    assert inside and all("lora_" in name for name in inside)
    assert {name.split(".")[0] for name in changed} == {"llama", "adapter", "heads"}
    encoder_out, lengths = random_encoder_out(0, [7, 3])
    tokens = torch.randint(0, VOCAB_SIZE, (2, 4))
    expected = decoder.eval().hidden_states(encoder_out, lengths, tokens)
    runtime = build_runtime(decoder)
    result = runtime.extend(
        runtime.start(encoder_out, lengths), tokens.tolist(), [[ROOT, 0, 1, 2]] * 2
    )
    torch.testing.assert_close(result.hidden, expected.hidden.flatten(0, 1), **CLOSE)
    torch.testing.assert_close(result.head_input, expected.head_input.flatten(0, 1), **CLOSE)
    bare = tiny_decoder(0, "llama block").state_dict().keys()
    assert all(name.replace(".base_layer", "") in bare or "lora_" in name
               for name in decoder.state_dict())  # fmt: skip


def test_dropout_of_embeddings_in_training():
    decoder = tiny_decoder(0, "llama none", dropout_rate=0.5)
    tokens = torch.zeros(1, 3, dtype=torch.long)
    for training in (False, True):
        decoder.train(training)
        once, again = (decoder(*random_encoder_out(0, [7]), tokens, None)[0] for _ in range(2))
        assert torch.equal(once, again) != training


def test_int8_is_near_float32(no_gradients):
    sizes = {"hidden_size": 64, "head_dim": 16}
    decoder, result = halve(tiny_decoder(0, "llama latent", llama_conf=sizes)), []
    for name in ("int8", "float32"):
        runtime = build_runtime(decoder, name)
        outputs, proposer = branched(runtime, *random_encoder_out(0, [9, 4])), runtime.proposer()
        states = proposer.start_from(outputs.head_input)
        drafted = proposer.logits(proposer.advance(states, torch.tensor([5, 1, 6, 7, 8])))
        result.append(torch.cat([runtime.logits(outputs.hidden), drafted]))
    assert 0 < relative_error(*result) < 0.1


def test_texts_longer_than_the_positions_are_refused():
    decoder = tiny_decoder(0, "llama none", llama_conf={"max_position_embeddings": 22})
    assert decoder.max_depth(25) == build_runtime(decoder).max_depth(25) == 13
    frames = model_of(decoder).encode(*(batch()[name] for name in ("speech", "speech_lengths")))[1]
    assert [decoder.max_depth(int(size)) - 1 for size in frames] == [4, 8, 12]
    given = batch() | {"text_lengths": torch.tensor([4, 9, 2]), "utt_id": ["first", "second", "c"]}
    assert_refused("second: a text of 9 tokens; .* positions for 8", model_of(decoder), **given)


@refuses(
    ({"llama_conf": {"model_type": "bert"}}, "model_type: 'bert' is not known.*allowed: llama"),
    ({"llama_conf": SIZES | {"hidden_size": 25}}, "llama_conf: .*size .25."),
    ({"llama_conf": SIZES | {"attn_implementation": "kernels-community/x"}}, "slash: kernels"),
    ({"llama_conf": SIZES | {"hidden_act": "gelu"}}, "hidden_act: 'gelu'.*allowed: silu"),
    ({"llama_conf": SIZES | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0,
      "rope_theta": 1e4}}}, "rope_type: 'dynamic'.*allowed: default"),
    ({"llama_conf": SIZES | {"model_type": "mistral", "sliding_window": 8}},
     "sliding_window: 8; allowed: null"),
    ({"llama_model": "./nothing"}, "llama_model: './nothing': .*; give a hub name or a folder"),
    ({"llama_model": "x", "llama_conf": SIZES}, "llama_model and llama_conf; allowed: one"),
    ({"llama_conf": SIZES, "stacked_frames": 0}, "stacked_frames: 0 is too small"),
    ({"llama_conf": SIZES, "lora": {"rank": 2}}, "decoder_conf.lora: .*rank"),
    ({"llama_conf": SIZES, "lora": {"target_modules": ["query"]}}, "_conf.lora: .*query"),
    ({"llama_conf": SIZES, "heads": "attending"}, "heads: attending.*cross-attention"),
    ({"llama_conf": SIZES, "stacked_frame": 2}, "did you mean 'stacked_frames'"),
)  # fmt: skip
def test_invalid_options_are_refused(options):
    SpeechLlamaDecoder(VOCAB_SIZE, HIDDEN_SIZE, **options)
