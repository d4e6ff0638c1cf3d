import gzip
import io
import tarfile
import zipfile

import pytest

from compevo_core.errors import SchemaDrift, SourceAbsent, SourceTransient
from compevo_pipeline.sources.common import base
from compevo_pipeline.sources.common.base import Mode
from tests.support.sources import clock, raw


def tar(*members, mode="w:gz"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as bundle:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            bundle.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(*members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in members:
            bundle.writestr(name, content)
    return buffer.getvalue()


def test_a_gzip_is_unpacked_and_a_truncated_one_asks_for_another_fetch():
    packed = gzip.compress(b"a,b\n" * 10_000)
    assert base.gunzip(packed, "x.csv.gz") == b"a,b\n" * 10_000
    with pytest.raises(
        SourceTransient, match=r"x\.csv\.gz: the gzip stream is truncated after .* fetch or copy"
    ):
        base.gunzip(packed[:-20], "x.csv.gz")


def test_a_flipped_byte_in_a_gzip_is_damage_not_data():
    packed = bytearray(gzip.compress(bytes(range(256)) * 400))
    packed[len(packed) // 2] ^= 0xFF
    with pytest.raises(SourceTransient, match="damaged"):
        base.gunzip(bytes(packed), "x.gz")


def test_bytes_that_are_no_gzip_are_another_format():
    with pytest.raises(SchemaDrift, match=r"x\.gz: not a gzip file"):
        base.gunzip(b"REGION,SETTLEMENTDATE\n", "x.gz")


def test_a_decompression_bomb_stops_at_the_cap():
    with pytest.raises(SchemaDrift, match="more than 1000 bytes"):
        base.gunzip(gzip.compress(b"0" * 10_000), "bomb.gz", cap=1000)
    with pytest.raises(SchemaDrift, match="more than"):
        list(base.unzip(zipped(("a", b"0" * 700), ("b", b"0" * 700)), "bomb.zip", cap=1000))
    with pytest.raises(SchemaDrift, match="more than"):
        list(base.untar(tar(("a", b"0" * 5000)), "bomb.tar.gz", cap=1000))


@pytest.mark.parametrize(
    "member", ["../evil.csv", "/etc/passwd", "a/../../evil", "..\\evil.csv", "C:evil.csv"]
)
def test_an_archive_member_that_leaves_its_folder_is_refused(member):
    with pytest.raises(SchemaDrift, match="leads outside its folder"):
        list(base.unzip(zipped(("good.csv", b"1"), (member, b"2")), "x.zip"))
    with pytest.raises(SchemaDrift, match="leads outside its folder"):
        list(base.untar(tar(("good.csv", b"1"), (member, b"2")), "x.tar.gz"))


def test_a_link_in_a_tar_is_refused():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as bundle:
        info = tarfile.TarInfo("day.csv")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        bundle.addfile(info)
    with pytest.raises(SchemaDrift, match="link or device"):
        list(base.untar(buffer.getvalue(), "x.tar"))


def test_members_come_in_name_order_and_folders_are_passed_over():
    assert list(base.untar(tar(("b.csv", b"2"), ("a.csv", b"1")), "x.tar.gz")) == [
        ("a.csv", b"1"),
        ("b.csv", b"2"),
    ]
    assert list(base.unzip(zipped(("b", b"2"), ("folder/", b""), ("a", b"1")), "x.zip")) == [
        ("a", b"1"),
        ("b", b"2"),
    ]


def test_a_truncated_zip_or_tar_asks_for_another_fetch():
    with pytest.raises(SourceTransient, match=r"x\.zip: the zip is damaged or truncated"):
        list(base.unzip(zipped(("a", b"0123456789" * 50))[:-30], "x.zip"))
    with pytest.raises(SourceTransient, match=r"x\.tar: the tar is damaged or truncated"):
        list(base.untar(tar(("a", b"0" * 5000), mode="w")[:2000], "x.tar"))


@pytest.mark.parametrize(
    "page", [b"<!DOCTYPE html><html>", b"\n  <HTML>", b"\xef\xbb\xbf<html>", b"<script>"]
)
def test_a_web_page_under_a_data_name_is_told_apart(page):
    with pytest.raises(SchemaDrift, match=r"x\.csv, line 1: a web page"):
        base.refuse_html(page, "x.csv")


def test_no_bytes_at_all_is_worth_another_try():
    with pytest.raises(SourceTransient, match="empty"):
        base.refuse_html(b"", "x.csv")


def test_a_byte_that_is_not_utf8_is_named_with_its_line():
    with pytest.raises(SchemaDrift, match=r"x\.csv, line 3: byte 0xe9 is not UTF-8"):
        base.decode_text(b"a\nb\ncaf\xe9\n", "x.csv")
    assert base.decode_text(b"\xef\xbb\xbfa\r\nb", "x.csv") == "a\nb"


def test_lossy_decoding_counts_only_what_it_replaced():
    assert base.decode_lossy("old � ".encode() + b"\xe9\xff") == ("old � ��", 2)


def test_json_that_is_cut_is_named_with_its_line():
    with pytest.raises(SchemaDrift, match=r"day\.json, line 2, column 10: not JSON"):
        base.read_json(b'{\n "a": [1,', "day.json")


def test_the_archive_says_what_it_lacks(tmp_path):
    with pytest.raises(SourceAbsent, match="COMPEVO_ARCHIVE"):
        base.archive_files(None, "x", "*.csv")
    with pytest.raises(SourceAbsent, match=r"no file x/\*\.csv"):
        base.archive_files(tmp_path, "x", "*.csv")


def test_a_raw_file_knows_its_hash_its_label_and_where_it_lay(tmp_path):
    (tmp_path / "x").mkdir()
    path = tmp_path / "x" / "a.csv.gz"
    path.write_bytes(gzip.compress(b"1"))
    found = base.archive_raw(path, tmp_path, source="aemo", member=None, clock=clock)
    assert (found.name, found.content, found.url, found.label) == (
        "a.csv",
        b"1",
        "file:x/a.csv.gz",
        "archive:aemo/a.csv",
    )
    assert found.sha256 == raw("a", b"1").sha256
    sample = base.sample_raw("aemo", "a.csv", b"1")
    assert (sample.mode, sample.label) == (Mode.SAMPLE, "sample:aemo/a.csv")
