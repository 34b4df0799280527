"""Score trn files with sclite's arguments, and print sclite's reports.

espnet-medusa-sclite -r ref.trn trn -h hyp.trn trn -i rm -o all stdout
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from espnet_medusa.data.command_line import str2bool
from espnet_medusa.data.errors import list_some
from espnet_medusa.recipes.scoring.sclite import ID_TYPES, Score, read_joined, score_trn
from espnet_medusa.recipes.scoring.sclite_report import (
    DEFAULT_LINE_WIDTH,
    alignment_report,
    summary_report,
)

# By report, in sclite's order: suffix of its file, and the function that makes it.
_REPORTS = {
    "sum": (".sys", lambda score, line_width: summary_report(score)),
    "rsum": (".raw", lambda score, line_width: summary_report(score, raw=True)),
    "pralign": (".pra", alignment_report),
}
_STDOUT = "stdout"
_OUTPUTS = {name: {name} for name in (*_REPORTS, _STDOUT)}
_OUTPUTS |= {"pra": {"pralign"}, "all": set(_REPORTS)}
BRACES = "'{' is a character of its word here; NIST's program reads it as alternatives, or fails"
_ENCODINGS = ("ascii", "utf-8")


class _Parser(argparse.ArgumentParser):
    """Lists the supported arguments in its errors."""

    def error(self, message: str):
        options = " ".join(action.option_strings[0] for action in self._actions)
        self.exit(2, f"{self.prog}: {message}; supported: {options} (see --help)\n")


def get_parser() -> argparse.ArgumentParser:
    """Make the parser; options with one dash are sclite's (`-h` is the hypothesis)."""
    description = "Score trn files as NIST sclite does."
    parser = _Parser(prog="sclite", description=description, add_help=False, allow_abbrev=False)
    add, given = parser.add_argument, {"nargs": "+", "required": True}
    add("-r", dest="reference", metavar=("FILE", "trn"), **given)
    title = "hypothesis, its format, and its title in the reports; may be repeated"
    form = ("FILE", "trn TITLE")
    add("-h", dest="hypotheses", action="append", metavar=form, help=title, **given)
    add("-i", dest="id_type", choices=ID_TYPES, required=True, help="type of the utterance ids")
    reports = f"{', '.join(_OUTPUTS)}; repeating a name turns it off (default: sum stdout)"
    add("-o", dest="outputs", nargs="+", action="extend", metavar="REPORT", help=reports)
    add("-s", dest="case_sensitive", action="store_true", help="compare case")
    units = "score characters; with NOASCII, runs of ASCII characters stay whole"
    add("-c", dest="characters", nargs="*", metavar="NOASCII", help=units)
    add("-e", dest="encoding", default="ascii", type=str.lower, choices=_ENCODINGS)
    add("-l", dest="line_width", type=int, default=DEFAULT_LINE_WIDTH, help="bytes per line")
    add("-O", dest="output_dir", help="folder of the reports (default: that of the hypothesis)")
    add("-n", dest="name", help="name of the reports (default: that of the hypothesis)")
    missing = "count utterances without hypothesis as deletions"
    add("--allow_missing", type=str2bool, default=False, help=missing)
    add("--sclite", metavar="PATH", help="NIST's program, which then makes the reports")
    add("--help", action="help", help="show this message")
    return parser


def _file_and_title(values: list[str], option: str, n_values: int) -> tuple[str, str | None]:
    """Split `FILE [trn [TITLE]]`."""
    if len(values) > n_values:
        raise ValueError(f"{option}: too many values: {' '.join(values)}; use FILE trn")
    if len(values) > 1 and values[1] != "trn":
        raise ValueError(f"{option}: format '{values[1]}' is not supported; use trn")
    return values[0], values[2] if len(values) > 2 else None


def _outputs(names: list[str] | None) -> set[str]:
    """Return the reports to make; as in sclite, a repeated name turns its report off."""
    chosen: set[str] = set()
    for name in names or ["sum", _STDOUT]:
        if name not in _OUTPUTS:
            raise ValueError(f"-o: report '{name}' is not supported; use {', '.join(_OUTPUTS)}")
        chosen ^= _OUTPUTS[name]
    return chosen


def _score(args: argparse.Namespace, reference: str, hypothesis: str, title: str | None) -> Score:
    modes = args.characters
    if modes and modes != ["NOASCII"]:
        raise ValueError(f"-c: '{' '.join(modes)}' is not supported; use -c or -c NOASCII")
    characters = None if modes is None else "noascii" if modes else "all"
    options = {name: vars(args)[name] for name in ("id_type", "case_sensitive", "allow_missing")}
    score = score_trn(reference, hypothesis, characters=characters, title=title, **options)
    words = (w for line in score.utterances for w in line.reference + line.hypothesis)
    if characters and args.encoding == "ascii" and not all(map(str.isascii, words)):
        raise ValueError(f"{hypothesis}: -c needs -e utf-8, since the text is not plain ASCII")
    return score


def _report(args: argparse.Namespace, reference: str, hypothesis: str, title: str | None) -> None:
    outputs, score = _outputs(args.outputs), _score(args, reference, hypothesis, title)
    if score.with_braces:
        ids = list_some(score.with_braces)
        print(f"sclite: {hypothesis}: {ids}: {BRACES}", file=sys.stderr)
    folder = Path(args.output_dir or Path(hypothesis).parent)
    name = args.name or Path(hypothesis).name
    for report, (suffix, make) in _REPORTS.items():
        if report not in outputs:
            continue
        text = make(score, args.line_width).encode("utf-8")
        if _STDOUT in outputs:
            _print_bytes(text)
        else:
            (folder / f"{name}{suffix}").write_bytes(text)


def _print_bytes(text: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def _run_real(args: argparse.Namespace, reference: str, hypothesis: str, title: str | None) -> None:
    """Check the ids, then run NIST's program on copies of both files.

    NIST's program ignores a last line without a newline, and missing hypotheses.
    """
    joined = read_joined(reference, hypothesis, args.case_sensitive, args.allow_missing)
    command = shlex.split(args.sclite)
    if Path(command[-1]).name == "sctk":
        command.append("sclite")
    with tempfile.TemporaryDirectory() as folder:
        copies = Path(folder, "ref.trn"), Path(folder, "hyp.trn")
        pairs = ((expected, line or replace(expected, tokens=())) for expected, line in joined)
        for copy, side in zip(copies, zip(*pairs, strict=True), strict=True):
            lines = [f" {' '.join(line.tokens)}\t({line.id})\n" for line in side]
            copy.write_text("".join(lines), encoding="utf-8", newline="\n")
        command += ["-r", str(copies[0]), "trn", "-h", str(copies[1]), "trn", title or hypothesis]
        command += ["-i", args.id_type, "-o", *(args.outputs or ["sum", _STDOUT])]
        command += ["-l", str(args.line_width), "-n", args.name or Path(hypothesis).name]
        command += ["-O", args.output_dir or str(Path(hypothesis).parent), "-e", args.encoding]
        command += ["-s"] if args.case_sensitive else []
        command += [] if args.characters is None else ["-c", *args.characters]
        try:
            result = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        except OSError as error:
            reason = f"cannot run '{command[0]}' ({error.strerror}); give the program's path"
            raise ValueError(f"--sclite: {reason}") from None
    _print_bytes(result.stdout)
    if result.returncode != 0:
        raise ValueError(
            f"--sclite: '{args.sclite}' failed with status {result.returncode} on {hypothesis}; "
            f"omit --sclite to use the built-in scorer"
        )


def main(cmd: list[str] | None = None) -> None:
    args = get_parser().parse_args(cmd)
    try:
        reference, _ = _file_and_title(args.reference, "-r", 2)
        hypotheses = [_file_and_title(values, "-h", 3) for values in args.hypotheses]
        if len(hypotheses) > 1 and args.name:
            raise ValueError("-n: one name for several hypotheses; score them one by one")
        for hypothesis, title in hypotheses:
            (_run_real if args.sclite else _report)(args, reference, hypothesis, title)
    except OSError as error:
        sys.exit(f"sclite: {error.filename}: {error.strerror}; check the path")
    except ValueError as error:
        sys.exit(f"sclite: {error}")


if __name__ == "__main__":
    main()
