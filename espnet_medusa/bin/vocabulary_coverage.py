"""Print how many tokens of one vocabulary have an equivalent in another one, both ways.

    python -m espnet_medusa.bin.vocabulary_coverage whisper_en whisper_large_v3

TOKENIZER is whisper_en, whisper_multilingual or whisper_large_v3 (no network needed), the name of
an OpenAI model, a Hugging Face folder or name, a sentencepiece .model file, a token list of ESPnet,
an ESPnet config or its folder.
"""

import argparse
from collections.abc import Iterable, Iterator

from espnet_medusa.data.command_line import make_main
from espnet_medusa.data.vocabulary.mapping import VocabularyMap, map_vocabularies
from espnet_medusa.data.vocabulary.vocabulary import Vocabulary
from espnet_medusa.networks.tokenizers import BUNDLED, open_vocabulary
from espnet_medusa.networks.whisper.text import VOCAB_SIZES

_BUNDLED_NAMES = {size: name for name, size in BUNDLED.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tokenizers", nargs=2, metavar="TOKENIZER", help="name, folder or file")
    parser.add_argument("--examples", type=int, default=5, help="tokens to show of each kind")


def describe(mapped: VocabularyMap, names: tuple[str, str], examples: int) -> Iterator[str]:
    """Yield the report's lines for one direction."""
    coverage = mapped.coverage()
    lost = [name for name, target in coverage.special.items() if target is None]
    renamed = [f"{a} = {b}" for a, b in coverage.special.items() if b not in (None, a)]
    ordinary = coverage.exact + coverage.multi_token + coverage.unmapped
    lengths = [len(pieces) for pieces in mapped.pieces.values()]
    average = f", {sum(lengths) / len(lengths):.2f} tokens each" if lengths else ""
    unmapped = [token for token in mapped.unmapped if mapped.source.contents[token] is not None]
    several = (
        f"{_show(mapped.source, token)} = {' '.join(_show(mapped.target, p) for p in pieces)}"
        for token, pieces in [*mapped.pieces.items()][:examples]
    )
    without = (_show(mapped.source, token) for token in unmapped[:examples])
    yield f"{names[0]} ({len(mapped.source)}) -> {names[1]} ({len(mapped.target)})"
    yield _row("exact", coverage.exact, ordinary)
    yield _row("multi-token", coverage.multi_token, ordinary) + average + _list(several)
    yield _row("unmapped", coverage.unmapped, ordinary) + _list(without)
    special = len(coverage.special)
    yield _row("special", special - len(lost), special) + _list(renamed[:examples])
    yield _row("special, unmapped", len(lost), special) + _list(lost[:examples])
    if coverage.unused:
        yield f"  {'unused ids':<18}{coverage.unused:>7}"


def _row(kind: str, count: int, total: int) -> str:
    share = 100 * count / total if total else 0.0
    return f"  {kind:<18}{count:>7} of {total:>6} {share:6.2f} %"


def _list(examples: Iterable[str]) -> str:
    shown = ", ".join(examples)
    return f": {shown}" if shown else ""


def _show(vocabulary: Vocabulary, token: int) -> str:
    text = vocabulary.contents[token] or b""
    try:
        return repr(text.decode())
    except UnicodeDecodeError:
        return repr(text)


def work(args: argparse.Namespace) -> None:
    names = tuple(args.tokenizers)
    known = [_BUNDLED_NAMES.get(VOCAB_SIZES.get(name), name) for name in names]
    first, second = map(open_vocabulary, known)
    print(*describe(map_vocabularies(first, second), names, args.examples), sep="\n")
    print()
    print(*describe(map_vocabularies(second, first), names[::-1], args.examples), sep="\n")


main = make_main("vocabulary_coverage", __doc__, add_options, work)

if __name__ == "__main__":
    main()
