"""Long recordings of a set of LibriSpeech: each chapter's utterances in order, without gaps.

    python local/join_chapters.py --data_dir data/test_clean --output_dir data/test_clean_chapters

Long audio is measured with them: one recording, one reference, one speaker for each chapter. What
LibriSpeech left out between two utterances is missing here, too.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import soundfile

from espnet_medusa.audio.reader import read_audio
from espnet_medusa.audio.source import source_paths
from espnet_medusa.bin.command_line import run_main
from espnet_medusa.errors import InputError
from espnet_medusa.files.output_folder import fingerprint, is_up_to_date, staged_output
from espnet_medusa.kaldi.data_dir import make_spk2utt
from espnet_medusa.kaldi.table import read_table, sort_ids, write_table


def chapters_of(utterances: Sequence[str]) -> dict[str, list[str]]:
    """Ids READER-CHAPTER-NUMBER by READER-CHAPTER, in order.

    Raises:
        InputError: An id is none of LibriSpeech's.
    """
    chapters: dict[str, list[str]] = {}
    for key in sort_ids(utterances):
        chapter, _, number = key.rpartition("-")
        if not (chapter and number.isdigit()):
            raise InputError(f"wav.scp: {key}; allowed: ids READER-CHAPTER-NUMBER of LibriSpeech")
        chapters.setdefault(chapter, []).append(key)
    return chapters


def join_audio(entries: Sequence[str], path: Path) -> None:
    """Write one flac of several wav.scp values.

    Raises:
        AudioError: One cannot be read.
        InputError: Their rates differ.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _, rate_hz = read_audio(entries[0])
    with soundfile.SoundFile(path, "w", rate_hz, 1, format="FLAC", subtype="PCM_16") as joined:
        for entry in entries:
            samples, own_hz = read_audio(entry)
            if own_hz != rate_hz:
                raise InputError(
                    f"{entry}: {own_hz} Hz; allowed: {rate_hz} Hz as the chapter's first utterance"
                )
            joined.write(samples)


def join_chapters(data_dir: Path, output_dir: Path) -> int:
    """Write a data directory of chapters and its audio.

    Args:
        data_dir: Of utterances, with wav.scp and text.
        output_dir: Gets wav.scp, text, utt2spk, spk2utt, utt2lang where utterances have one, and
            ``audio/``; all at once, and nothing where it is there already.

    Returns:
        Number of chapters.

    Raises:
        InputError: A table lacks an utterance, or audio cannot be joined.
    """
    if (data_dir / "segments").exists():
        raise InputError(f"{data_dir}: has segments; allowed: a file for each utterance")
    audio, texts = read_table(data_dir / "wav.scp"), read_table(data_dir / "text")
    missing = sort_ids(audio.keys() - texts.keys())
    if missing:
        raise InputError(f"{data_dir}/text: {missing[0]}: missing; add its line")
    chapters = chapters_of([*audio])
    tables = [data_dir / name for name in ("wav.scp", "text", "utt2lang")]
    files = [Path(path) for entry in audio.values() for path in source_paths(entry)]
    made_from = fingerprint([path for path in tables if path.is_file()], files, {})
    if not is_up_to_date(output_dir, made_from):
        with staged_output(output_dir, made_from) as staging:
            for chapter, keys in chapters.items():
                entries = [audio[key] for key in keys]
                join_audio(entries, staging / "audio" / f"{chapter}.flac")
            write_tables(staging, output_dir, chapters, texts)
            if tables[-1].is_file():
                write_languages(staging, chapters, read_table(tables[-1]))
    return len(chapters)


def write_tables(
    folder: Path, place: Path, chapters: Mapping[str, Sequence[str]], texts: Mapping[str, str]
) -> None:
    """Write wav.scp, text, utt2spk and spk2utt to a folder that will be at ``place``."""
    recordings = {name: str(place / "audio" / f"{name}.flac") for name in chapters}
    write_table(folder / "wav.scp", recordings)
    references = {name: " ".join(texts[key] for key in keys) for name, keys in chapters.items()}
    write_table(folder / "text", references)
    speakers = {name: name for name in chapters}
    write_table(folder / "utt2spk", speakers)
    write_table(folder / "spk2utt", make_spk2utt(speakers))


def write_languages(
    folder: Path, chapters: Mapping[str, Sequence[str]], languages: Mapping[str, str]
) -> None:
    """Write utt2lang: a chapter's language is its first utterance's.

    Raises:
        InputError: That has none.
    """
    missing = [keys[0] for keys in chapters.values() if keys[0] not in languages]
    if missing:
        raise InputError(f"utt2lang: {missing[0]}: missing; add its line")
    spoken = {name: languages[keys[0]] for name, keys in chapters.items()}
    write_table(folder / "utt2lang", spoken)


def get_parser() -> argparse.ArgumentParser:
    """The script's options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data_dir", type=Path, required=True, help="of utterances")
    parser.add_argument("--output_dir", type=Path, required=True, help="of chapters, to write")
    return parser


def work(args: argparse.Namespace) -> None:
    """Join and say how much there is."""
    count = join_chapters(args.data_dir, args.output_dir)
    print(f"{args.output_dir}: {count} chapters")


def main(cmd: Sequence[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("join_chapters", lambda: work(args))


if __name__ == "__main__":
    main()
