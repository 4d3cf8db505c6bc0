"""Tables as spreadsheets and BIDS write them."""

from __future__ import annotations

import pytest

from nnunet_labelset import LabelSetError
from nnunet_labelset.io.tables import column_of_cases, csv_text, read_table
from tests.helpers.errors import refusal

ROWS = [{"case": "a", "annotated": "liver;spleen"}, {"case": "b", "annotated": ""}]
GOOD = {
    "comma": b"case,annotated\na,liver;spleen\nb,\n",
    "semicolon": b'case;annotated\na;"liver;spleen"\nb;\n',
    "tab": b"case\tannotated\na\tliver;spleen\nb\t\n",
    "byte order mark": b"\xef\xbb\xbfcase,annotated\na,liver;spleen\nb,\n",
    "UTF-16 little": "case,annotated\na,liver;spleen\nb,\n".encode("utf-16"),
    "UTF-16 big": b"\xfe\xff" + "case\tannotated\na\tliver;spleen\nb\t\n".encode("utf-16-be"),
    "padded": b" case , annotated \n a , liver;spleen \n b , \n",
    "padded quotes": b'case, "annotated"\na, "liver;spleen"\nb, ""\n',
    "empty lines": b"\ncase,annotated\n\na,liver;spleen\n,\nb,\n\n",
    "empty columns at the end": b"case,annotated,,\na,liver;spleen,,\nb,,,\n",
    "Windows": b"case,annotated\r\na,liver;spleen\r\nb,\r\n",
    "old Macintosh": b"case,annotated\ra,liver;spleen\rb,\r",
    "no newline at the end": b"case,annotated\na,liver;spleen\nb,",
}


@pytest.mark.parametrize("kind", GOOD)
def test_every_spreadsheet(tmp_path, kind):
    path = tmp_path / "table.csv"  # the ending says nothing
    path.write_bytes(GOOD[kind])
    rows = read_table(path)
    assert rows == ROWS
    assert rows[0].where.startswith(f"{path}, line ")


def test_plain_csv_of_german_excel(tmp_path):
    (tmp_path / "t.csv").write_bytes("Fall;Klinik\r\na;Köln\r\n".encode("cp1252"))
    assert read_table(tmp_path / "t.csv") == [{"Fall": "a", "Klinik": "Köln"}]


BAD = {
    ("line 3", "2 cells", "got 1"): b"case,annotated\na,all\nb\n",
    ("line 2", "2 cells", "got 3"): b"case,annotated\na,liver,spleen\n",
    ("line 2", "NUL"): b"case,annotated\na\0,all\n",
    ("CSV UTF-8",): b"\xff\xfecase\xd8\xd8",
    ("empty", "one line per case"): b"case,annotated\n",
    ("empty",): b"",
    ("'case'", "two columns"): b"case,case\na,b\n",
    ("line ", "table"): b'case,annotated\na,"' + b"x" * 200_000 + b'"\n',
    ("CSV",): b"PK\x03\x04 a workbook",
}


@pytest.mark.parametrize("facts", BAD)
def test_bad_tables_are_one_line(tmp_path, facts):
    (tmp_path / "t.csv").write_bytes(BAD[facts])
    with refusal(LabelSetError, "t.csv", *facts):
        read_table(tmp_path / "t.csv")


def test_no_table(tmp_path):
    with refusal(LabelSetError, tmp_path / "t.csv", "no such file"):
        read_table(tmp_path / "t.csv")
    with refusal(LabelSetError, tmp_path, "Is a directory"):
        read_table(tmp_path)


def test_an_unnamed_column_of_a_bids_table(tmp_path):
    (tmp_path / "p.tsv").write_text("participant_id\tAge\n sub-1\t20\tgood\n")
    assert read_table(tmp_path / "p.tsv") == [{"participant_id": "sub-1", "Age": "20"}]


def test_the_longest_part_of_a_case_name_counts(tmp_path):
    (tmp_path / "p.csv").write_text("id,group\n1,x\nsub-1,y\nsub,z\nfeta_sub-12,w\n")
    cases = ["feta_sub-1", "feta_sub-12", "a_1", "sub_3", "sub1"]
    assert column_of_cases(tmp_path / "p.csv", "group", cases) == {
        "feta_sub-1": "y",
        "feta_sub-12": "w",
        "a_1": "x",
        "sub_3": "z",
    }


@pytest.mark.parametrize("name", ["=1+1", "-x", "'-x", "''=", "@a", "+", "it's", "'quoted'", "a=b"])
def test_what_is_written_is_read_again(tmp_path, name):
    """The apostrophe that keeps a spreadsheet from calculating is no part of the name."""
    path = tmp_path / "t.csv"
    path.write_text(csv_text(["case", name], [(name, "yes")]), encoding="utf-8")
    assert [dict(row) for row in read_table(path)] == [{"case": name, name: "yes"}]
