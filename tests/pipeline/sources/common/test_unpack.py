"""Archives that are cut, damaged, too large or hostile."""

import gzip
import io
import tarfile
import zipfile

import pytest

from compevo_core.errors import SchemaDrift, SourceTransient
from compevo_pipeline.sources.common.unpack import (
    gunzip,
    read_members,
    untar,
    unzip,
    unzip_nested,
)


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
    assert gunzip(packed, "x.csv.gz") == b"a,b\n" * 10_000
    with pytest.raises(
        SourceTransient, match=r"x\.csv\.gz: the gzip stream is truncated after .* fetch or copy"
    ):
        gunzip(packed[:-20], "x.csv.gz")


def test_a_flipped_byte_in_a_gzip_is_damage_not_data():
    packed = bytearray(gzip.compress(bytes(range(256)) * 400))
    packed[len(packed) // 2] ^= 0xFF
    with pytest.raises(SourceTransient, match="damaged"):
        gunzip(bytes(packed), "x.gz")


def test_bytes_that_are_no_gzip_are_another_format():
    with pytest.raises(SchemaDrift, match=r"x\.gz: not a gzip file"):
        gunzip(b"REGION,SETTLEMENTDATE\n", "x.gz")


def test_a_decompression_bomb_stops_at_the_cap():
    with pytest.raises(SchemaDrift, match="more than 1000 bytes"):
        gunzip(gzip.compress(b"0" * 10_000), "bomb.gz", cap=1000)
    with pytest.raises(SchemaDrift, match="more than"):
        list(unzip(zipped(("a", b"0" * 700), ("b", b"0" * 700)), "bomb.zip", cap=1000))
    with pytest.raises(SchemaDrift, match="more than"):
        list(untar(tar(("a", b"0" * 5000)), "bomb.tar.gz", cap=1000))


@pytest.mark.parametrize(
    "member", ["../evil.csv", "/etc/passwd", "a/../../evil", "..\\evil.csv", "C:evil.csv"]
)
def test_an_archive_member_that_leaves_its_folder_is_refused(member):
    with pytest.raises(SchemaDrift, match="leads outside its folder"):
        list(unzip(zipped(("good.csv", b"1"), (member, b"2")), "x.zip"))
    with pytest.raises(SchemaDrift, match="leads outside its folder"):
        list(untar(tar(("good.csv", b"1"), (member, b"2")), "x.tar.gz"))


def test_a_link_in_a_tar_is_refused():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as bundle:
        info = tarfile.TarInfo("day.csv")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        bundle.addfile(info)
    with pytest.raises(SchemaDrift, match="link or device"):
        list(untar(buffer.getvalue(), "x.tar"))


def test_members_come_in_name_order_and_folders_are_passed_over():
    assert list(untar(tar(("b.csv", b"2"), ("a.csv", b"1")), "x.tar.gz")) == [
        ("a.csv", b"1"),
        ("b.csv", b"2"),
    ]
    assert list(unzip(zipped(("b", b"2"), ("folder/", b""), ("a", b"1")), "x.zip")) == [
        ("a", b"1"),
        ("b", b"2"),
    ]


def test_a_truncated_zip_or_tar_asks_for_another_fetch():
    with pytest.raises(SourceTransient, match=r"x\.zip: the zip is damaged or truncated"):
        list(unzip(zipped(("a", b"0123456789" * 50))[:-30], "x.zip"))
    with pytest.raises(SourceTransient, match=r"x\.tar: the tar is damaged or truncated"):
        list(untar(tar(("a", b"0" * 5000), mode="w")[:2000], "x.tar"))


def test_a_zip_of_zips_yields_the_files_of_both():
    inner = zipped(("b.csv", b"2"), ("a.csv", b"1"))
    outer = zipped(("week/second.zip", inner), ("first.csv", b"0"))
    assert list(unzip_nested(outer, "week.zip")) == [
        ("first.csv", b"0"),
        ("a.csv", b"1"),
        ("b.csv", b"2"),
    ]


def test_the_zips_in_a_zip_share_its_cap_and_hold_no_third_one():
    inner = zipped(("a.csv", b"0" * 600))
    assert len(list(unzip_nested(zipped(("a.zip", inner)), "one.zip", cap=1000))) == 1
    with pytest.raises(SchemaDrift, match=r"two\.zip!b\.zip!a\.csv: unpacks to more than"):
        list(unzip_nested(zipped(("a.zip", inner), ("b.zip", inner)), "two.zip", cap=1000))

    deep = zipped(("deep.zip", zipped(("middle.zip", inner))))
    with pytest.raises(SchemaDrift, match=r"x\.zip!deep\.zip!middle\.zip: a zip in a zip in a zip"):
        list(unzip_nested(deep, "x.zip"))


@pytest.mark.parametrize("member", ["../out.csv", "/out.csv"])
def test_a_path_out_of_an_inner_zip_is_refused(member):
    with pytest.raises(SchemaDrift, match="leads outside its folder"):
        list(unzip_nested(zipped(("a.zip", zipped((member, b"1")))), "x.zip"))


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("x.csv", b"1"),
        ("x.csv.gz", gzip.compress(b"1")),
        ("x.zip", zipped(("x.csv", b"1"))),
        ("X.ZIP", zipped(("x.zip", zipped(("x.csv", b"1"))))),
        ("x.tar.gz", tar(("x.csv", b"1"))),
        ("x.tar", tar(("x.csv", b"1"), mode="w")),
    ],
)
def test_a_file_is_unpacked_as_its_name_says(tmp_path, name, packed):
    path = tmp_path / name
    path.write_bytes(packed)
    assert list(read_members(path)) == [("x.csv", b"1")]


def encrypt(packed):
    """Sets the mark of encryption in both headers of the first member."""
    marked = bytearray(packed)
    marked[6] |= 1
    marked[packed.index(b"PK\x01\x02") + 8] |= 1
    return bytes(marked)


def test_an_encrypted_zip_is_refused_by_name():
    with pytest.raises(SchemaDrift, match=r"secret\.zip: the zip is encrypted .*fetch it again"):
        list(unzip(encrypt(zipped(("a.csv", b"1,2"))), "secret.zip"))
