"""VoxPopuli's data preparation, called from tests in a folder whose `vox` has the miniature."""

from pathlib import Path

import prepare_voxpopuli
import voxpopuli_miniature as miniature

from espnet_medusa.kaldi.table import read_table

TEST_SESSION = "20190201-0900-PLENARY-15"


def run(*options: str, lang: str = "de") -> int:
    """Return the command's exit status."""
    try:
        prepare_voxpopuli.main(["--lang", lang, "--voxpopuli", "vox", "--nj", "2", *options])
    except SystemExit as stop:
        return stop.code
    return 0


def tables(name: str) -> dict[str, dict[str, str]]:
    return {path.name: read_table(path) for path in Path("data", name).iterdir() if path.is_file()}


def problems(capsys) -> list[str]:
    return capsys.readouterr().out.splitlines()


def key_of(utterance: miniature.MiniatureUtterance) -> str:
    return f"{utterance.columns['speaker_id']}-{utterance.id('de')}"


def rewrite(utterances) -> None:
    miniature.write_annotation(Path("vox"), "de", utterances)


def damage_audio(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(data[: len(data) * 2 // 3])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(b"OggS is missing" * 20)
