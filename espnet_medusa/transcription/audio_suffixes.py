"""Which files of a folder are audio or video: those with a suffix of libsndfile or FFmpeg."""

from pathlib import Path

SUFFIXES = (
    # libsndfile
    ".wav", ".wave", ".bwf", ".w64", ".rf64", ".flac", ".mp3", ".mp1", ".ogg", ".oga", ".spx",
    ".opus", ".aif", ".aiff", ".aifc", ".au", ".snd", ".sph", ".nist", ".caf", ".voc", ".ircam",
    ".sf", ".avr", ".pvf", ".sds", ".svx", ".8svx", ".iff", ".wve",
    # FFmpeg: sound
    ".mp2", ".mpa", ".mpga", ".m2a", ".m4a", ".m4b", ".m4r", ".isma", ".aac", ".adts", ".loas",
    ".latm", ".ac3", ".eac3", ".ec3", ".dts", ".dtshd", ".thd", ".mlp", ".spdif", ".mka", ".weba",
    ".wma", ".ra", ".rm", ".amr", ".awb", ".3ga", ".qcp", ".dss", ".gsm", ".g722", ".722", ".lbc",
    ".sbc", ".msbc", ".ape", ".mac", ".apl", ".wv", ".tta", ".tak", ".mpc", ".mp+", ".shn", ".osq",
    ".qoa", ".dsf", ".dff", ".oma", ".aa3", ".omg", ".adx", ".ast", ".mmf", ".rso", ".sox", ".xwma",
    # FFmpeg: video
    ".mp4", ".m4v", ".mov", ".qt", ".f4v", ".ismv", ".3gp", ".3gpp", ".3g2", ".3gpp2", ".psp",
    ".webm", ".mkv", ".mk3d", ".ogv", ".ogm", ".ogx", ".wmv", ".asf", ".dvr-ms", ".wtv", ".avi",
    ".divx", ".flv", ".mpg", ".mpeg", ".mpe", ".vob", ".dvd", ".ts", ".m2ts", ".m2t", ".mts",
    ".trp", ".tp", ".tod", ".rmvb", ".mxf", ".gxf", ".nut", ".nsv", ".nuv", ".dv",
)  # fmt: skip
# Suffixes that text files have, too: TypeScript, PostScript fonts, sources.
ALSO_TEXT = (".ts", ".mts", ".sf", ".ast", ".mac", ".iff")
HEAD_BYTES = 1024


def is_audio(path: Path) -> bool:
    """Return whether the name, or else the beginning, of a file tells that it is audio."""
    suffix = path.suffix.lower()
    return suffix in SUFFIXES and not (suffix in ALSO_TEXT and _is_text(path))


def _is_text(path: Path) -> bool:
    """Return whether a file begins like text; files that cannot be read fail later, with a name."""
    if not path.is_file():  # a pipe would block
        return False
    try:
        with open(path, "rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError:
        return False
    return bool(head) and b"\0" not in head
