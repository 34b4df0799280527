"""Write a data directory of ESPnet's s2t task from Kaldi directories, one for each language.

    python3 local/s2t_data.py dump/raw/train eng=data/train deu=data/train_de

Timestamps in `text` are start and end of the audio. `text.prev` is the preceding text of the same
speaker, `<na>` for the first one. `text.ctc` has no symbols.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import soundfile

from espnet_medusa.data.kaldi.data_dir import make_spk2utt
from espnet_medusa.data.kaldi.table import read_table, write_table


def make_tables(language: str, folder: Path) -> dict[str, dict[str, str]]:
    """Return the tables of a language by name."""
    audio, texts, utt2spk = (read_table(folder / name) for name in ("wav.scp", "text", "utt2spk"))
    timed, preceding, latest = {}, {}, defaultdict(lambda: "<na>")
    for key, text in texts.items():
        end = round(soundfile.info(audio[key]).duration, 1)
        timed[key] = f"<{language}><asr><0.00> {text}<{end:.2f}>"
        preceding[key], latest[utt2spk[key]] = latest[utt2spk[key]], text
    tables = {"wav.scp": audio, "text": timed, "text.prev": preceding, "text.ctc": texts}
    return tables | {"utt2lang": dict.fromkeys(texts, language), "utt2spk": utt2spk}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("sources", metavar="LANGUAGE=FOLDER", nargs="+")
    args = parser.parse_args()
    joined = defaultdict(dict)
    for source in args.sources:
        language, _, folder = source.partition("=")
        for name, table in make_tables(language, Path(folder)).items():
            joined[name] |= table
    for name, table in (joined | {"spk2utt": make_spk2utt(joined["utt2spk"])}).items():
        write_table(args.output_dir / name, table)


if __name__ == "__main__":
    main()
