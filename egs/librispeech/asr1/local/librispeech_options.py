"""Options of LibriSpeech's data preparation."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from librispeech_files import OPENSLR, PARTS, SUBSETS, TEST_SETS

from espnet_medusa.data.command_line import positive, str2bool

CHAPTERS = "_chapters"
PLAIN_CASES = {"lower": str.lower, "upper": str.upper}


@dataclass(frozen=True)
class Options:
    """Options of the data preparation."""

    subsets: tuple[str, ...]  # names of LibriSpeech's subsets
    librispeech: tuple[Path, ...] = ()  # folders of existing copies; none: download
    # Ids of training readers whose utterances become the validation set.
    valid_speakers: tuple[str, ...] = ()
    download_dir: Path = Path("downloads")  # folder of downloads
    librispeech_pc: bool = True  # whether to use restored transcripts where LibriSpeech-PC has them
    librispeech_pc_dir: Path | None = None  # existing manifests; None: download
    # Case of other transcripts; upper case takes many more of Whisper's tokens.
    plain_case: str = "lower"
    max_valid_s: float = 30.0  # maximum duration in the validation set `dev`: Whisper's window
    # Number of utterances of each `<set>_part`; None: no such sets.
    test_utterances: int | None = None
    # Names of test subsets whose chapters are also joined, as `<set>_chapters`.
    chapters: tuple[str, ...] = ()
    output_dir: Path = Path("data")  # folder of the data directories
    nj: int = 4  # number of audio files that are read in parallel
    openslr: str = OPENSLR  # address of openslr or of a mirror


def get_parser(description: str) -> argparse.ArgumentParser:
    """Build the parser."""
    defaults = Options(())
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--part", choices=PARTS, default="960", help="hours to train on; 5: mini_librispeech")
    add("--valid_speakers", nargs="+", metavar="ID", help="readers of the training set, such as "
        "7367, whose utterances become the validation set; none: dev subsets")  # fmt: skip
    add("--test_sets", nargs="*", default=[*TEST_SETS], help="test sets to prepare; "
        "<set>_chapters: each chapter's utterances joined",
        choices=[*TEST_SETS, *(f"{name}{CHAPTERS}" for name in TEST_SETS)])  # fmt: skip
    add("--subsets", nargs="+", choices=SUBSETS, help="instead of --part and --test_sets")
    add("--librispeech", nargs="+", type=Path, metavar="FOLDER", help="unpacked LibriSpeech, or "
        "its parent folder; several if subsets are apart; none: download")  # fmt: skip
    add("--download_dir", type=Path, default=defaults.download_dir)
    add("--librispeech_pc", type=str2bool, default=defaults.librispeech_pc,
        help="use restored punctuation and case where available")  # fmt: skip
    add("--librispeech_pc_dir", type=Path, help="unpacked LibriSpeech-PC manifests; none: download")
    add("--plain_case", choices=PLAIN_CASES, default=defaults.plain_case,
        help="case of transcripts that are not restored")  # fmt: skip
    add("--max_valid_s", type=float, default=defaults.max_valid_s,
        help="maximum duration in the validation set dev")  # fmt: skip
    add("--test_utterances", type=positive, help="also make <test set>_part with this number of "
        "utterances or chapters, evenly spaced in the test set")  # fmt: skip
    add("--output_dir", type=Path, default=defaults.output_dir)
    add("--nj", type=positive, default=defaults.nj, help="files that are read in parallel")
    add("--openslr", default=defaults.openslr, help="address of openslr or of a mirror")
    return parser


def parse_options(cmd: Sequence[str] | None, description: str) -> Options:
    """Parse a command line."""
    arguments = vars(get_parser(description).parse_args(cmd))
    part, subsets = PARTS[arguments.pop("part")], arguments.pop("subsets")
    sets = arguments.pop("test_sets")
    tests = [TEST_SETS[name.removesuffix(CHAPTERS)] for name in sets]
    chapters = [TEST_SETS[n.removesuffix(CHAPTERS)] for n in sets if n.endswith(CHAPTERS)]
    if not subsets:
        subsets = [*part.train, *(() if arguments["valid_speakers"] else part.valid), *tests]
    for name in ("librispeech", "valid_speakers"):
        arguments[name] = tuple(arguments[name] or ())
    arguments["chapters"] = tuple(dict.fromkeys(chapters))
    return Options(subsets=tuple(dict.fromkeys(subsets)), **arguments)
