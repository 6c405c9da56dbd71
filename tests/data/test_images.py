"""Kinds of images, unreadable ones, decoded copies."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
import torchvision.transforms as T
from miniatures import (
    accept,
    build,
    glyph,
    jpeg,
    own_cache,  # noqa: F401, a fixture of all tests here
    photograph,
)
from PIL import Image

from dmlstudy import cli
from dmlstudy.core.paths import write_atomically
from dmlstudy.data import images as module
from dmlstudy.data.formats import load_images, locate, read_images
from dmlstudy.data.images import Decoded, Files, open_image, short_side, unreadable, verify, write_decoded
from dmlstudy.data.prepare import check, prepare
from dmlstudy.data.transforms import make_transform

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*It is taken all the same:UserWarning"
)  # miniatures are never complete


@pytest.fixture
def broken(tmp_path):
    "A CUB with a truncated, a missing and an empty image among its six training images"
    root = build("cub200", "official lists", tmp_path)
    folder = root / "cub200/CUB_200_2011/images"
    victim = folder / "001.Auk/Auk_1.jpg"
    victim.write_bytes(victim.read_bytes()[:-200])
    (folder / "001.Auk/Auk_2.jpg").unlink()
    (folder / "002.Owl/Owl_0.jpg").write_bytes(b"")
    return root


def test_unreadable_images_stop_a_run_or_are_skipped(broken):
    _, data = read_images("cub200", broken)
    with pytest.raises(ValueError, match="3 of 6 images cannot be read") as error:
        verify({"train": data.train})
    assert all(f"{name}.jpg" in str(error.value) for name in ("Auk_1", "Auk_2", "Owl_0"))
    with pytest.warns(UserWarning, match="3 of 6 images cannot be read: .*Auk_2.jpg .* They are left out."):
        kept, left_out = verify({"train": data.train}, strict=False)
    part = kept["train"]
    assert len(left_out) == 3 and part.labels.tolist() == [0, 1, 1] and part.class_names == data.train.class_names
    assert [path[-9:] for path in part.images.paths] == ["Auk_0.jpg", "Owl_1.jpg", "Owl_2.jpg"]
    assert verify({"test": data.test}) == ({"test": data.test}, {}) and verify(kept) == (kept, {})
    report = check("cub200", broken)
    assert len(report.bad) == 3 and not report.ok and "images/002.Owl/Owl_0.jpg: UnidentifiedImageError" in str(report)
    assert not check("cub200", broken, images=False).bad


def test_the_quick_check_sees_that_listed_images_are_not_there(tmp_path, monkeypatch, capsys):
    root = build("cub200", "official lists", tmp_path)
    accept(monkeypatch, "cub200", load_images("cub200", root, strict=False))
    assert check("cub200", root, images=False).ok
    images = sorted((root / "cub200/CUB_200_2011/images").rglob("*.jpg"))
    images[4].unlink()
    report = check("cub200", root, images=False)
    assert not report.ok and f"1 of 12 listed images are not there, such as {images[4]}" in str(report)
    [image.unlink(missing_ok=True) for image in images]
    assert cli.main(["data", "check", "cub200", "--quick", "--root", str(root)]) == 1
    assert "12 of 12 listed images are not there" in capsys.readouterr().out


def test_verification_is_remembered_until_a_file_changes(tmp_path, monkeypatch):
    data = load_images("cub200", build("cub200", "official lists", tmp_path), strict=False)
    verify({"train": data.train})
    monkeypatch.setattr(module, "unreadable", lambda *a: pytest.fail("decoded again"))
    verify({"train": data.train})
    (data.train.images.folder / data.train.images.paths[2]).write_bytes(b"no image")
    monkeypatch.undo()
    monkeypatch.setenv("DMLSTUDY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="1 of 6 images"):
        verify({"train": data.train})


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"x"', "[" * 100_000])
def test_a_damaged_memory_of_the_verification_is_made_anew(tmp_path, content):
    _, data = read_images("cub200", build("cub200", "official lists", tmp_path))
    (data.train.images.folder / data.train.images.paths[2]).write_bytes(b"no image")
    with pytest.warns(UserWarning, match="1 of 12 images cannot be read"):
        verify({"train": data.train, "test": data.test}, strict=False)
    (file,) = (tmp_path / "cache/verified").iterdir()
    whole = file.read_text()
    file.write_text(content)
    with pytest.warns(UserWarning, match=f"{file.name} is damaged .*decoded once more"):
        assert [*verify({"train": data.train, "test": data.test}, strict=False)[1]] == [data.train.images.paths[2]]
    assert file.read_text() == whole


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path):
    _, data = read_images("cub200", build("cub200", "official lists", tmp_path))
    (tmp_path / "cache").write_text("a file where the folder would be")
    with pytest.warns(UserWarning, match="verified.* the next run decodes all images again"):
        assert verify({"train": data.train})[1] == {}


@pytest.mark.parametrize("options", [{}, {"progressive": True}], ids=["baseline", "progressive"])
def test_the_quick_look_finds_what_decoding_would_find(tmp_path, options):
    photograph(120, 90).save(tmp_path / "whole.jpg", **options)
    content = (tmp_path / "whole.jpg").read_bytes()
    lengths = [*range(0, len(content), 211), *range(len(content) - 12, len(content) + 1)]
    for n in lengths:
        (tmp_path / f"{n}.jpg").write_bytes(content[:n])
    files = Files(tmp_path, [f"{n}.jpg" for n in lengths])
    bad = set()
    for i in range(len(files)):
        try:
            files[i]
        except ValueError:
            bad.add(files.paths[i])
    assert set(unreadable(files)) == bad and 10 < len(bad) < len(lengths)


PICTURE = glyph("AaB", (48, 32))


GREY = PICTURE.convert("L").convert("RGB")


def saved(tmp_path, image, suffix, **options):
    if suffix == ".jpg":
        options |= {"quality": 100, "subsampling": 0}
    image.save(tmp_path / f"x{suffix}", **options)
    return open_image(tmp_path / f"x{suffix}")


def distance(a, b):
    assert a.mode == b.mode == "RGB" and a.size == b.size
    return np.abs(np.asarray(a).astype(int) - np.asarray(b)).mean()


def grey_16_bit(order="<u2"):
    return Image.fromarray(np.asarray(PICTURE.convert("L")).astype(order) * 257)


KINDS = {
    "rgb": (PICTURE, ".png", PICTURE, 0),
    "jpeg": (PICTURE, ".jpg", PICTURE, 1),
    "grey jpeg": (PICTURE.convert("L"), ".jpg", GREY, 1),
    "cmyk jpeg": (PICTURE.convert("CMYK"), ".jpg", PICTURE, 1),
    "cmyk tiff": (PICTURE.convert("CMYK"), ".tif", PICTURE, 0),
    "palette": (PICTURE.quantize(256), ".png", PICTURE, 2),
    "gif": (PICTURE.quantize(256), ".gif", PICTURE, 2),
    "one bit": (PICTURE.convert("1"), ".png", PICTURE.convert("1").convert("RGB"), 0),
    "16 bit png": (grey_16_bit(), ".png", GREY, 0),
    "16 bit tiff": (grey_16_bit(), ".tif", GREY, 0),
    "opaque rgba": (PICTURE.convert("RGBA"), ".png", PICTURE, 0),
    "grey alpha": (PICTURE.convert("LA"), ".png", GREY, 0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_images_become_rgb(tmp_path, kind):
    image, suffix, want, tolerance = KINDS[kind]
    assert distance(saved(tmp_path, image, suffix), want) <= tolerance


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(tmp_path, mode):
    black = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    black.putpixel((1, 1), (0, 0, 0, 255))
    if mode == "P":
        palette = Image.new("P", (4, 4), 0)
        palette.putpalette([0, 0, 0, 0, 0, 0])
        palette.putpixel((1, 1), 1)
        got = saved(tmp_path, palette, ".png", transparency=0)
    else:
        got = saved(tmp_path, black.convert(mode), ".png")
    assert got.getpixel((0, 0)) == (255, 255, 255) and got.getpixel((1, 1)) == (0, 0, 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # transpositions that bring the scene into the stored position
    stored = PICTURE if orientation == 1 else PICTURE.transpose(Image.Transpose(undo[orientation]))
    assert distance(saved(tmp_path, stored, ".png", exif=exif), PICTURE) == 0


@pytest.mark.parametrize("note", [b"no TIFF at all, but text", b"II*\0\x08"], ids=["no header", "cut off"])
@pytest.mark.parametrize("name", ["a.jpg", "b.png"])
def test_a_damaged_note_of_the_camera_turns_nothing(tmp_path, name, note):
    """A JPEG that has a density, as cameras' editors write, is refused by none but `exif_transpose`."""
    Image.fromarray(np.full((20, 30, 3), 120, np.uint8)).save(tmp_path / name, exif=b"Exif\0\0" + note, dpi=(72, 72))
    assert np.asarray(open_image(tmp_path / name)).tolist() == np.full((20, 30, 3), 120).tolist()
    assert not unreadable(Files(tmp_path, [name]))


def test_what_cannot_be_an_image_is_named(tmp_path):
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tif")
    for name, says in (("float.tif", "floating-point"), ("none.jpg", "No such file"), ("text.jpg", "cannot identify")):
        (tmp_path / "text.jpg").write_text("no image")
        with pytest.raises(ValueError, match=f"{name} cannot be read.*{says}"):
            open_image(tmp_path / name)


def test_what_would_never_end_is_refused_by_each_reader(tmp_path):
    """A pipe with the name of an image, and 144 million pixels in 18 KB: also where all images are looked at."""
    os.mkfifo(tmp_path / "pipe.png")
    Image.new("1", (12_000, 12_000)).save(tmp_path / "vast.png")
    says = {"pipe.png": "it is a pipe, a device or a folder", "vast.png": "it has 144,000,000 pixels, more than"}
    let_go = subprocess.Popen(["sh", "-c", 'sleep 9; : > "$0"', tmp_path / "pipe.png"])  # of whoever waits for the pipe
    try:
        found = unreadable(Files(tmp_path, says))
    finally:
        let_go.kill()
    for name, said in says.items():
        assert said in found[name]
        with pytest.raises(ValueError, match=f"{name} cannot be read: {said}"):
            open_image(tmp_path / name)


def test_files_are_a_lazy_picklable_sequence(tmp_path):
    files = load_images("cub200", build("cub200", "official lists", tmp_path), strict=False).train.images
    (files.folder / files.paths[0]).write_bytes(b"no image")  # never asked for below
    part = pickle.loads(pickle.dumps(files.take(torch.tensor([5, 1, 1]))))
    assert part.paths == tuple(files.paths[i] for i in (5, 1, 1)) and len(part.take([])) == 0
    sizes = Files(part.folder, part.paths, lambda image: image.size)
    assert [*sizes] == [(60, 44)] * 3 and sizes[-1] == (60, 44) and sizes[torch.tensor(0)] == (60, 44)
    with pytest.raises(IndexError):
        part[3]


def test_a_decoded_copy_is_the_images_with_the_shorter_side_at_256(tmp_path):
    root = build("cub200", "official lists", tmp_path)
    image = glyph("tall", (40, 70))
    image.save(root / "cub200/CUB_200_2011/images/001.Auk/Auk_0.jpg")
    done = prepare("cub200", root, decoded=True)
    plain, copy = load_images("cub200", root, strict=False), load_images("cub200", root, strict=False, decoded=True)
    for split in ("train", "test"):
        a, b = getattr(plain, split), pickle.loads(pickle.dumps(getattr(copy, split)))
        for i in range(len(a)):
            assert short_side(a[i][0]).tobytes() == b[i][0].tobytes() and min(b[i][0].size) == 256
            assert b[i][0].size == T.Resize(256)(a[i][0]).size
    assert T.Resize(256)(plain.train[0][0]).tobytes() == copy.train[0][0].tobytes()
    assert len(json.loads(done["decoded"].read_text())["sources_sha256"]) == 64
    assert copy.train.images.take([1]).decoded is copy.train.images.decoded
    transform = make_transform("base", False)
    assert torch.equal(transform(plain.train[3][0]), transform(copy.train[3][0]))
    assert len(pickle.dumps(copy.train.images)) < 20_000  # a worker gets names, not pixels


def test_a_decoded_copy_that_does_not_match_is_refused(tmp_path):
    root = build("cub200", "official lists", tmp_path)
    with pytest.raises(FileNotFoundError, match="prepare"):
        load_images("cub200", root, strict=False, decoded=True)
    index = prepare("cub200", root, decoded=True)["decoded"]
    pixels, whole = index.with_suffix(".u8"), index.with_suffix(".u8").read_bytes()
    data = load_images("cub200", root, strict=False, decoded=True)
    pixels.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(ValueError, match="pixels of images/001.Auk/Auk_0.jpg .* damaged"):
        load_images("cub200", root, strict=False, decoded=True).train[0]
    pixels.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=f"has {len(whole) - 1} bytes of pixels beside it, not {len(whole)}"):
        Decoded(index)
    pixels.write_bytes(whole)
    with pytest.raises(ValueError, match="none.jpg is not in the decoded copy"):
        data.train.images.decoded["none.jpg"]
    jpeg(root / "cub200/CUB_200_2011/images/004.Wren/Wren_1.jpg", "another")
    with pytest.raises(ValueError, match="Wren_1.jpg has changed since it was decoded"):
        load_images("cub200", root, strict=False, decoded=True)


def test_an_unreadable_image_leaves_no_decoded_copy(broken):
    files, path = read_images("cub200", broken)[1].train.images, locate("cub200", broken).decoded
    with pytest.raises((ValueError, FileNotFoundError), match="Auk_"):
        write_decoded(files, path)
    assert not [p for p in path.parent.iterdir() if "decoded" in p.name]


@pytest.fixture
def copied(tmp_path):
    "A CUB with a decoded copy: its root, and an image of it"
    root = build("cub200", "official lists", tmp_path)
    prepare("cub200", root, decoded=True)
    return root, root / "cub200/CUB_200_2011/images/001.Auk/Auk_1.jpg"


def test_an_image_changed_at_equal_size_is_found(copied):
    root, image = copied
    content = image.read_bytes()
    os.utime(image, ns=(1, 1))  # copied elsewhere: another time, the same bytes
    assert load_images("cub200", root, strict=False, decoded=True).train[1][0].size == (349, 256)
    image.write_bytes(content[:-2] + b"\0\0")
    with pytest.raises(ValueError, match="Auk_1.jpg has changed since it was decoded"):
        load_images("cub200", root, strict=False, decoded=True)
    image.unlink()
    assert load_images("cub200", root, strict=False, decoded=True).train[1][0].size == (349, 256)


def test_images_added_since_are_found_at_opening(copied):
    root, image = copied
    base = image.parents[2]
    for i in (13, 14):
        jpeg(base / f"images/002.Owl/new_{i}.jpg")
        for name, row in (("images", f"{i} 002.Owl/new_{i}.jpg"), ("image_class_labels", f"{i} 2")):
            (base / f"{name}.txt").write_text((base / f"{name}.txt").read_text() + f"{row}\n")
    with pytest.raises(ValueError, match=r"2 images, such as images/002.Owl/new_13.jpg, are not in the decoded copy"):
        load_images("cub200", root, strict=False, decoded=True)
    prepare("cub200", root, decoded=True)
    assert len(load_images("cub200", root, strict=False, decoded=True).train) == 8


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", "null", "old", "short row"])
def test_a_damaged_index_is_named(copied, content):
    root, _ = copied
    index = locate("cub200", root).decoded
    held = json.loads(index.read_text())
    changed = {"old": held | {"format": 1}, "short row": held | {"images": [["x", 1]]}}
    index.write_text(json.dumps(changed[content]) if content in changed else content)
    with pytest.raises(ValueError, match="decoded_256.json is damaged .*prepare the copy again"):
        load_images("cub200", root, strict=False, decoded=True)
    prepare("cub200", root, decoded=True)
    assert len(load_images("cub200", root, strict=False, decoded=True).train) == 6


def test_unreadable_images_are_left_out_of_the_copy_on_request(broken):
    with pytest.raises(ValueError, match="strict=False, or --no-strict"):
        prepare("cub200", broken, decoded=True)
    done = prepare("cub200", broken, decoded=True, strict=False)
    names = ["images/001.Auk/Auk_1.jpg", "images/001.Auk/Auk_2.jpg", "images/002.Owl/Owl_0.jpg"]
    assert sorted(done["left_out"]) == names and len(Decoded(done["decoded"]).rows) == 9
    assert [row[0] for row in json.loads(done["decoded"].read_text())["left_out"]] == names
    _, data = read_images("cub200", broken, decoded=True)
    with pytest.raises(ValueError, match="3 of 6 images cannot be read: .*Auk_1.jpg.*--no-strict"):
        verify({"train": data.train})
    data = load_images("cub200", broken, strict=False, decoded=True)
    part = data.train
    assert (
        [*data.left_out] == names
        and part.labels.tolist() == [0, 1, 1]
        and [image.height for image in part.images] == [256] * 3
    )
    jpeg(broken / "cub200/CUB_200_2011" / names[1])  # it is there again
    with pytest.raises(ValueError, match="Auk_2.jpg has changed"):
        load_images("cub200", broken, strict=False, decoded=True)


def test_what_a_killed_process_left_is_no_hindrance(copied):
    root, image = copied
    half = image.parents[2] / ".decoded_256.u8"
    code = "import os, sys, filelock\nwith filelock.FileLock(sys.argv[1]):\n    os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(half.with_name(".preparing.lock"))])
    half.write_bytes(b"half")
    prepare("cub200", root, decoded=True)
    assert not half.exists() and len(load_images("cub200", root, strict=False, decoded=True).train) == 6


@pytest.mark.skipif(os.name != "posix", reason="modes are those of Unix")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_are_as_open_to_others_as_the_umask_says(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "a/b.txt", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a/b.txt").stat().st_mode & 0o777 == mode and len([*(tmp_path / "a").iterdir()]) == 1
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "folder", "x")
    assert not [p for p in tmp_path.iterdir() if p.suffix == ".tmp"]
