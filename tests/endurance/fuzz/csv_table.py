"""CSV files with aiola's columns."""

import csv
import io

from espnet_medusa.kaldi.csv_import import read_csv
from fuzz.reader import Reader, write_scratch


def read(data: bytes) -> None:
    """Check that no row is lost and that valid rows survive writing and reading."""
    table = read_csv(write_scratch("table.csv", data))
    assert {"audio", "sentence"} <= {*table.columns}
    assert len({row.id for row in table.rows}) == len(table.rows)
    good = [row for row in table.rows if row.problem is None]
    for row in good:
        assert [*row.fields] == [*table.columns]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(table.columns)
    writer.writerows(row.fields.values() for row in good)
    # A column's name may itself begin with a byte order mark, which is not the file's.
    again = read_csv(write_scratch("again.csv", stream.getvalue().encode("utf-8-sig")))
    assert [row.fields for row in again.rows] == [row.fields for row in good]
    assert sum(row.problem is None for row in again.rows) == len(good)


def seeds() -> list[bytes]:
    """Return tables with all columns, quotes and invalid rows."""
    return [
        b"audio,sentence\na.wav,the cat\n",
        "\ufeffaudio, sentence,language,regulation-start,regulation-factor\r\n"
        'b c.flac,"said ""no"", then\nleft",en,3,1.5\r\nx,too,many,values,here,now\r\n'.encode(),
    ]


READER = Reader(
    "csv_table",
    read,
    seeds,
    (b'"', b'""', b"\r", b"\0", b"audio,sentence\n", b"\xef\xbb\xbf"),
    max_bytes=512,
)
