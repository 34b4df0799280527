"""Words of scored texts by utterance: labels join speaker and utterance with a hyphen."""

from espnet_medusa.recipe.score import words_by_utterance


def test_utterance_ids_are_separated_from_speakers(tmp_path):
    lines = ["a b (spk-u1)", "a (1089-1089-134686-0000)", "(x-y-u2)", "a b c (s-s-u1)"]
    (tmp_path / "ref.trn").write_text("\n".join(lines))
    ids = {"u1", "1089-134686-0000", "u2", "s-u1", "0000"}
    assert words_by_utterance(tmp_path / "ref.trn", ids) == {
        "u1": 2, "1089-134686-0000": 1, "u2": 0, "s-u1": 3,
    }  # fmt: skip


def test_words_of_unknown_utterances_keep_their_labels(tmp_path):
    (tmp_path / "ref.trn").write_text("a b (s-u1)\na b c (s-t-u1)\na (s-v-w)\n")
    result = words_by_utterance(tmp_path / "ref.trn", {"u1"})
    assert result == {"u1": 2, "s-t-u1": 3, "s-v-w": 1}
