"""Archives of data sets: checked, fetched and put in their place."""

import http.server
import io
import shutil
import socket
import tarfile
import threading
import zipfile
from contextlib import suppress

import pytest
from miniatures import (
    cub,
    grocery,
    inshop,
    own_cache,  # noqa: F401, a fixture of all tests here
    text,
)

from dmlstudy import cli
from dmlstudy.data.archives import ADDRESSES, checksums, download
from dmlstudy.data.formats import ARCHIVES, SOURCES, locate, read_images
from dmlstudy.data.images import Decoded
from dmlstudy.data.prepare import prepare

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*It is taken all the same:UserWarning"
)  # miniatures are never complete


@pytest.mark.parametrize("top", ["GroceryStoreDataset/dataset", "GroceryStoreDataset-fc80ba9/dataset", "dataset"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_grocery_is_prepared_from_any_archive_of_its_repository(tmp_path, top, kind, capsys):
    grocery(tmp_path / "source" / top)
    archive = shutil.make_archive(tmp_path / "g", kind, tmp_path / "source")
    words = ["data", "prepare", "grocery", "--root", str(tmp_path / "root"), "--archive", archive]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "MIT licence" in said and "Klasson, Zhang and Kjellström (WACV 2019)" in said and "28 files" in said
    place = locate("grocery", tmp_path / "root")
    assert (
        place.folder == tmp_path / "root/grocery" / top and len(read_images("grocery", tmp_path / "root")[1].test) == 12
    )


@pytest.mark.parametrize("kind", ["zip", "gz"])
def test_an_archive_larger_than_the_data_set_can_be_is_refused(tmp_path, kind, monkeypatch):
    monkeypatch.setitem(SOURCES["cub200"], "bytes", 1e6)
    (tmp_path / "zeros").write_bytes(bytes(4_000_000))
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as z:
            z.write(tmp_path / "zeros", "CUB_200_2011/x")
    else:
        with tarfile.open(tmp_path / "x.gz", "w:gz") as tar:
            tar.add(tmp_path / "zeros", "CUB_200_2011/x")
    assert (archive := tmp_path / f"x.{kind}").stat().st_size < 10_000
    with pytest.raises(ValueError, match=f"x.{kind} was not unpacked: it holds more than 3 MB"):
        prepare("cub200", tmp_path / "root", archive, strict=False)
    assert [*(tmp_path / "root/cub200").iterdir()] == []


def test_a_rendered_set_has_nothing_to_unpack(tmp_path, capsys):
    assert cli.main(["data", "prepare", "glyphs_fine", "--archive", str(tmp_path / "x.zip")]) == 1
    assert "glyphs_fine comes with dmlstudy: there is nothing to fetch or to unpack" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"PK\3\4 and half of it", b"<html>"])
def test_what_is_called_an_archive_is_never_copied(tmp_path, content):
    (tmp_path / "img.zip").write_bytes(content)  # its MD5 is not known
    with pytest.raises(ValueError, match="img.zip was not unpacked.*download it again"):
        prepare("inshop", tmp_path / "root", tmp_path / "img.zip")
    assert not [*(tmp_path / "root/inshop").iterdir()]
    (tmp_path / "mine.zip").write_bytes(content)
    with pytest.raises(ValueError, match="mine.zip was not unpacked.*download it again"):
        prepare("cub200", tmp_path / "root", tmp_path / "mine.zip", strict=False)


@pytest.fixture
def archive(tmp_path):
    cub(tmp_path / "source/CUB_200_2011", True)
    with tarfile.open(tmp_path / "CUB_200_2011.tgz", "w:gz") as tar:
        tar.add(tmp_path / "source", ".")
    return tmp_path / "CUB_200_2011.tgz"


def test_prepare_compares_checksums(tmp_path, archive, monkeypatch):
    with pytest.raises(ValueError, match="the official file has 97eceeb196236b17998738112f37df78"):
        prepare("cub200", tmp_path / "root", archive)
    assert not (tmp_path / "root").exists()
    monkeypatch.setitem(ARCHIVES, "cub200", {archive.name: checksums(archive)["md5"]})
    renamed = archive.rename(tmp_path / "download.bin")
    done = prepare("cub200", tmp_path / "root", renamed)
    assert done["official"] is True and done["files"] == 15 and len(done["sha256"]) == 64
    assert done["place"].folder == tmp_path / "root/cub200/CUB_200_2011"
    (tmp_path / "again.tgz").write_bytes(renamed.read_bytes() + b"\0")
    with pytest.raises(ValueError, match=f"the official file has one of {done['md5']}. strict=False"):
        prepare("cub200", tmp_path / "b", tmp_path / "again.tgz")
    assert prepare("cub200", tmp_path / "b", tmp_path / "again.tgz", strict=False)["official"] is False


@pytest.fixture
def served(archive, monkeypatch):
    """The archive at an address of this machine, in place of the official one; how often it was asked for."""
    asked = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **more):
            super().__init__(*args, directory=str(archive.parent), **more)

        def log_message(self, *args):
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        monkeypatch.setitem(ADDRESSES, "cub200", url + archive.name)
        monkeypatch.setitem(ARCHIVES, "cub200", {archive.name: checksums(archive)["md5"]})
        yield asked
        server.shutdown()


def test_download_fetches_once_and_prepare_goes_on(tmp_path, archive, served, capsys):
    root = tmp_path / "root"
    fetched = download("cub200", root)
    assert fetched.read_bytes() == archive.read_bytes() and fetched == root / "archives" / archive.name
    assert download("cub200", root) == fetched and len(served) == 1
    fetched.write_bytes(b"half of it")
    assert cli.main(["data", "prepare", "cub200", "--download", "--decoded", "--root", str(root)]) == 0
    told = capsys.readouterr().out
    assert len(served) == 2 and "non-commercial research" in told and "15 files; the official file" in told
    assert f"MD5 {checksums(archive)['md5']}" in told and "decoded to" in told
    assert len(Decoded(locate("cub200", root).decoded).rows) == 12


def test_download_that_fails_says_where_else(tmp_path, served, monkeypatch):
    monkeypatch.setitem(ADDRESSES, "cub200", "http://127.0.0.1:9/CUB_200_2011.tgz")
    with pytest.raises(OSError, match=r"could not be fetched .* get it from https://www.vision.caltech.edu"):
        download("cub200", tmp_path / "root")
    assert not [*(tmp_path / "root" / "archives").iterdir()]


def test_a_download_that_breaks_off_is_named_and_fetched_again(tmp_path, monkeypatch):
    """First in chunks, as GitHub sends; then with a length; then whole. No MD5 of this archive is published."""
    with zipfile.ZipFile(memory := io.BytesIO(), "w") as z:
        z.writestr("dataset/a.txt", "x" * 5000)
    whole, ok = memory.getvalue(), b"HTTP/1.1 200 OK\r\n"
    length = ok + b"Content-Length: %d\r\n\r\n" % len(whole)
    chunk = ok + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(whole)

    def answer(server):
        for content in (chunk + whole[:1000], length + whole[:1000], length + whole):
            talk, _ = server.accept()
            with talk:
                talk.recv(4096)
                talk.sendall(content)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=[server], daemon=True).start()
        monkeypatch.setitem(ADDRESSES, "grocery", f"http://127.0.0.1:{server.getsockname()[1]}/g.zip")
        with pytest.raises(OSError, match=r"could not be fetched .*get it from https://"):
            download("grocery", tmp_path)
        with suppress(OSError):  # by Python's version the short one is noticed at once
            download("grocery", tmp_path)
        assert download("grocery", tmp_path).read_bytes() == whole


def test_prepare_an_archive_by_command(tmp_path, archive, capsys):
    words = ["data", "prepare", "cub200", "--archive", str(archive), "--root", str(tmp_path / "root")]
    assert cli.main(words) == 2 and "--no-strict" in capsys.readouterr().err
    assert cli.main([*words, "--no-strict"]) == 0
    assert "not the official file" in (told := capsys.readouterr().out) and "decoded" not in told
    assert cli.main(["data", "prepare", "cub200", "--root", str(tmp_path / "root")]) == 0
    assert "decoded to" in capsys.readouterr().out
    assert cli.main(["data", "check", "--archive", str(archive)]) == 2
    assert "go with: dmlstudy data prepare" in capsys.readouterr().err


def test_prepare_copies_single_files(tmp_path, monkeypatch):
    inshop(tmp_path / "source", "list_eval_partition.txt", "")
    with zipfile.ZipFile(tmp_path / "img.zip", "w") as z:
        [z.write(p, p.relative_to(tmp_path / "source")) for p in (tmp_path / "source/img").rglob("*.jpg")]
    assert not prepare("inshop", tmp_path / "root", tmp_path / "img.zip")["place"]
    done = prepare("inshop", tmp_path / "root", tmp_path / "source/list_eval_partition.txt", decoded=True)
    assert done["place"].layout == "list and images" and done["official"] is None
    assert len(Decoded(done["decoded"]).rows) == 12
    text(tmp_path / "notes.txt", "x")
    with pytest.raises(ValueError, match="no file of inshop that is not an archive 'notes.txt'"):
        prepare("inshop", tmp_path / "root", tmp_path / "notes.txt")
