"""Archives are unpacked whole or refused."""

import gzip
import io
import shutil
import tarfile
import zipfile

import pytest
from disks import small_disk
from miniatures import (
    jpeg,
    own_cache,  # noqa: F401, a fixture of all tests here
    photograph,
    text,
)

from dmlstudy.data import archives
from dmlstudy.data.archives import unpack_archive

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*It is taken all the same:UserWarning"
)  # miniatures are never complete


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_full_disk_is_named_when_an_archive_is_unpacked(tmp_path, kind):
    archive, small = tmp_path / f"a.{kind}", tmp_path / "small"
    (tmp_path / "big").write_bytes(bytes(3_000_000))
    pack = zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) if kind == "zip" else tarfile.open(archive, "w")
    with pack:
        (pack.write if kind == "zip" else pack.add)(tmp_path / "big", "big")
    with small_disk(small, 1024):
        with pytest.raises(OSError, match=f"No space left on device, .*a.{kind} was not unpacked: '{small}'"):
            unpack_archive(archive, small)
        assert not [*small.iterdir()]


BAD_MEMBERS = {
    "parent": ("../evil.txt", tarfile.REGTYPE),
    "parent inside": ("a/../../evil.txt", tarfile.REGTYPE),
    "absolute": ("/tmp/evil.txt", tarfile.REGTYPE),
    "backslash": ("..\\evil.txt", tarfile.REGTYPE),
    "drive": ("C:evil.txt", tarfile.REGTYPE),
    "link": ("link", tarfile.SYMTYPE),
    "hard link": ("link", tarfile.LNKTYPE),
    "fifo": ("pipe", tarfile.FIFOTYPE),
    "device": ("null", tarfile.CHRTYPE),
}


@pytest.mark.parametrize("case", BAD_MEMBERS)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_bad_archives_are_refused_and_leave_nothing(tmp_path, kind, case):
    name, type = BAD_MEMBERS[case]
    archive, target = tmp_path / f"bad.{kind}", tmp_path / "below/target"
    modes = {
        tarfile.SYMTYPE: 0o120777,
        tarfile.LNKTYPE: 0o120777,
        tarfile.FIFOTYPE: 0o010644,
        tarfile.CHRTYPE: 0o020644,
    }
    if kind == "tar":
        with tarfile.open(archive, "w") as tar:
            good, bad = tarfile.TarInfo("good.txt"), tarfile.TarInfo(name)
            bad.type, bad.linkname = type, "/etc/passwd"
            tar.addfile(good, io.BytesIO())
            tar.addfile(bad, io.BytesIO())
    else:
        with zipfile.ZipFile(archive, "w") as z:
            z.writestr("good.txt", "")
            info = zipfile.ZipInfo("x")
            info.filename, info.external_attr = name, modes.get(type, 0) << 16
            z.writestr(info, "/etc/passwd")
    with pytest.raises(ValueError, match="was not unpacked: its member"):
        unpack_archive(archive, target)
    assert [*target.iterdir()] == [] and sorted(p.name for p in tmp_path.iterdir()) == [archive.name, "below"]


@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_a_good_archive_is_unpacked_once(tmp_path, kind):
    source, archive = tmp_path / "source", tmp_path / f"good.{kind}"
    jpeg(source / "a/b/x.jpg")
    text(source / "a/y.txt", "hello")
    if kind == "tgz":
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(source, ".")
    else:
        with zipfile.ZipFile(archive, "w") as z:
            z.mkdir("a")
            [z.write(p, p.relative_to(source)) for p in source.rglob("*.*")]
    assert unpack_archive(archive, tmp_path / "target") == 2
    assert (tmp_path / "target/a/b/x.jpg").read_bytes() == (source / "a/b/x.jpg").read_bytes()
    with pytest.raises(FileExistsError, match="already holds a"):
        unpack_archive(archive, tmp_path / "target")
    archive.write_bytes(archive.read_bytes()[:-80] if kind == "tgz" else b"PK" + archive.read_bytes()[2:-90])
    with pytest.raises(ValueError, match="damaged|neither a tar nor a zip"):
        unpack_archive(archive, tmp_path / "other")
    assert [p.name for p in (tmp_path / "target").iterdir()] == ["a"] and not [*(tmp_path / "other").iterdir()]


def packed(folder, kind):
    "An archive of some twenty images, and where its members begin (tar)"
    for i in range(20):
        photograph(90, 80, i).save(folder / f"{i:02}.png")
    archive = folder / f"images.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as z:
            [z.write(p, f"images/{p.name}") for p in sorted(folder.glob("*.png"))]
        return archive, []
    with tarfile.open(archive, "w" if kind == "tar" else f"w:{kind}") as tar:
        [tar.add(p, f"images/{p.name}") for p in sorted(folder.glob("*.png"))]
    with tarfile.open(archive) as tar:
        return archive, [member.offset for member in tar]


def refused(archive, target, says="download it again"):
    with pytest.raises(ValueError, match=says) as error:
        unpack_archive(archive, target)
    assert str(archive) in str(error.value) and [*target.iterdir()] == []


@pytest.mark.parametrize("kind", ["tar", "gz", "bz2", "xz", "zip"])
def test_a_shortened_archive_is_refused(tmp_path, kind):
    archive, starts = packed(tmp_path, kind)
    whole, target = archive.read_bytes(), tmp_path / "target"
    if kind == "tar":  # in a header, between members, in a member, without its end
        cuts = [starts[10] + 100, starts[10], starts[10] + 600, whole.rindex(b"IEND") // 512 * 512 + 512]
    else:
        cuts = [1, len(whole) // 3, len(whole) // 2, len(whole) - 30, len(whole) - 5]
    for cut in cuts:
        archive.write_bytes(whole[:cut])
        refused(archive, target)
    archive.write_bytes(whole)
    assert unpack_archive(archive, target) == 20


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zip"])
def test_a_wrong_byte_anywhere_in_a_compressed_archive_is_found(tmp_path, kind):
    archive, _ = packed(tmp_path, kind)
    whole = archive.read_bytes()
    places = [len(whole) * i // 7 for i in range(1, 7)] + ([len(whole) - 6] if kind == "gz" else [])
    for place in places:
        archive.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        refused(archive, tmp_path / "target")


def test_a_wrong_header_does_not_end_a_tar(tmp_path):
    archive, starts = packed(tmp_path, "tar")
    content = bytearray(archive.read_bytes())
    content[starts[-1] + 5] ^= 0x5A  # the last member: nothing but zeros would follow
    archive.write_bytes(content)
    refused(archive, tmp_path / "target", "it is damaged .*download it again")


def test_a_compression_that_python_does_not_know_is_explained(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as z:
        z.writestr("a.txt", "hello")
    content = bytearray((tmp_path / "x.zip").read_bytes())
    for place in (8, content.find(b"PK\1\2") + 10):
        content[place : place + 2] = b"\x09\0"  # deflate64
    (tmp_path / "x.zip").write_bytes(content)
    refused(tmp_path / "x.zip", tmp_path / "target", "unpack it by another program")


def test_members_that_contradict_each_other_are_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        [tar.addfile(tarfile.TarInfo(name), io.BytesIO()) for name in ("a", "a/b")]
    refused(tmp_path / "x.tar", tmp_path / "target")


def test_folders_without_a_bottom_are_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("a/" * 2000 + "b"), io.BytesIO())
    refused(tmp_path / "x.tar", tmp_path / "target", "its member 'a/a/.* lies 2001 folders deep")


def test_an_archive_larger_than_the_disk_is_refused_before_it_is_written(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as z:
        [z.writestr(f"{i}", bytes(300_000)) for i in range(10)]
    monkeypatch.setattr(shutil, "copyfileobj", lambda *a: pytest.fail("written"))
    with small_disk(tmp_path / "small", 1024):
        with pytest.raises(OSError, match="No space left on device, .*x.zip was not unpacked"):
            unpack_archive(tmp_path / "x.zip", tmp_path / "small")


def test_more_members_than_any_data_set_has_are_refused(tmp_path, monkeypatch):
    archive, _ = packed(tmp_path, "zip")
    assert archives._MEMBERS > 120_072  # of SOP
    monkeypatch.setattr(archives, "_MEMBERS", 19)
    refused(archive, tmp_path / "target", "it holds more than 19 members")


def test_an_archive_without_a_file_is_refused(tmp_path):
    """Zeros are an archive that ends at once."""
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(bytes(10_240)))
    refused(tmp_path / "x.tar.gz", tmp_path / "target", "it holds no file; download it again")


@pytest.mark.parametrize("header", [b"99 path=a\n", b"0 path=a\n", b"22 GNU.sparse.map=a,b\n"])
def test_a_malformed_extended_header_is_named(tmp_path, header):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        more = tarfile.TarInfo("more")
        more.type, more.size = tarfile.XHDTYPE, len(header)
        tar.addfile(more, io.BytesIO(header))
        tar.addfile(tarfile.TarInfo("a"), io.BytesIO())
    refused(tmp_path / "x.tar", tmp_path / "target", "was not unpacked: it ")
