"""Join each chapter's utterances of a LibriSpeech set to one long recording.

    python local/join_chapters.py --data_dir data/test_clean --output_dir data/test_clean_chapters

A chapter has one recording, one reference and one speaker. Audio that LibriSpeech left out between
two utterances is missing here, too.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import soundfile

from espnet_medusa.data.audio.reader import read_audio
from espnet_medusa.data.audio.source import source_paths
from espnet_medusa.data.command_line import run_main
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.output_folder import digest_of_inputs, is_up_to_date, staged_output
from espnet_medusa.data.kaldi.data_dir import make_spk2utt
from espnet_medusa.data.kaldi.table import read_table, sort_ids, write_table


def chapters_of(utterances: Sequence[str]) -> dict[str, list[str]]:
    """Group ids READER-CHAPTER-NUMBER by READER-CHAPTER, in order.

    Raises:
        InputError: An id has another form.
    """
    chapters: dict[str, list[str]] = {}
    for key in sort_ids(utterances):
        chapter, _, number = key.rpartition("-")
        if not (chapter and number.isdigit()):
            raise InputError(f"wav.scp: {key}; allowed: ids READER-CHAPTER-NUMBER of LibriSpeech")
        chapters.setdefault(chapter, []).append(key)
    return chapters


def join_audio(entries: Sequence[str], path: Path) -> None:
    """Join the audio of wav.scp values in one FLAC file.

    Raises:
        AudioError: An audio file cannot be read.
        InputError: Their sample rates differ.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _, rate_hz = read_audio(entries[0])
    with soundfile.SoundFile(path, "w", rate_hz, 1, format="FLAC", subtype="PCM_16") as joined:
        for entry in entries:
            samples, entry_hz = read_audio(entry)
            if entry_hz != rate_hz:
                raise InputError(
                    f"{entry}: {entry_hz} Hz; allowed: {rate_hz} Hz, the rate of the chapter"
                )
            joined.write(samples)


def join_chapters(data_dir: Path, output_dir: Path) -> int:
    """Write a data directory of chapters and its audio, unless it is up to date.

    Args:
        data_dir: Data directory of utterances, with wav.scp and text.
        output_dir: Gets wav.scp, text, utt2spk, spk2utt, ``audio/``, and utt2lang if `data_dir`
            has it; written completely or not at all.

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
    made_from = digest_of_inputs([path for path in tables if path.is_file()], files, {})
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
    """Write wav.scp, text, utt2spk and spk2utt to a folder that is later moved to ``place``."""
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
    """Write utt2lang: the language of a chapter's first utterance.

    Raises:
        InputError: A first utterance has no language.
    """
    missing = [keys[0] for keys in chapters.values() if keys[0] not in languages]
    if missing:
        raise InputError(f"utt2lang: {missing[0]}: missing; add its line")
    spoken = {name: languages[keys[0]] for name, keys in chapters.items()}
    write_table(folder / "utt2lang", spoken)


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data_dir", type=Path, required=True, help="directory of utterances")
    parser.add_argument("--output_dir", type=Path, required=True, help="directory to write")
    return parser


def work(args: argparse.Namespace) -> None:
    """Join and print the number of chapters."""
    count = join_chapters(args.data_dir, args.output_dir)
    print(f"{args.output_dir}: {count} chapters")


def main(cmd: Sequence[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("join_chapters", lambda: work(args))


if __name__ == "__main__":
    main()
