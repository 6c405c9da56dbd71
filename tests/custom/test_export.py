"""The best model of a ranking on images of one's own: kept, read again, and asked for the nearest images."""

import hashlib
import io
import json
import os
import sys

import faiss
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tiers import short_photos

from dmlstudy import cli
from dmlstudy.custom import cross_validation
from dmlstudy.custom.export import Kept, _write_gallery, draw_found, find, load
from dmlstudy.data.images import Files
from dmlstudy.study.config import PROFILES

ROWS = ("frozen features", "frozen features, whitened", "frozen features, LDA", "Softmax")
MODES = ("RGB", "L", "CMYK", "RGB")


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    """Twenty classes of four JPEGs in mixed sizes and modes, one broken, ranked by the command; and what it said."""
    place, rng = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    for c, colour in enumerate(rng.integers(100, 160, (20, 3))):
        (folder := place / "photos" / f"colour {c}").mkdir(parents=True)
        for i, mode in enumerate(MODES):
            noise = (colour + rng.normal(0, 60, (*rng.integers(40, 200, 2), 3))).clip(0, 255)
            Image.fromarray(noise.astype(np.uint8)).convert(mode).save(folder / f"{i}.jpg")
    (place / "photos/colour 3/broken.jpg").write_bytes(b"\xff\xd8 no picture")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMLSTUDY_ROOT", str(place))
        patch.setenv("DMLSTUDY_CACHE", str(place / "cache"))
        patch.setitem(PROFILES, "photos", short_photos(steps=20, rates=2))
        patch.setattr(cross_validation, "PRECISION", 0.3)  # so that a distance keeps it: the pictures are mostly noise
        yield place, ["run", "--datasets", f"folder:{place / 'photos'}", "--seeds", "0", "--jobs", "1"]


def test_a_gallery_has_length_1_and_a_picture_does_not_find_itself(tmp_path):
    """By a network that was never trained; embeddings of length 3 are given."""
    rng, names = np.random.default_rng(0), [f"{i}.png" for i in range(6)]
    for name in names:
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(tmp_path / name)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4)).requires_grad_(False)
    pixels = lambda picture, rng: torch.from_numpy(np.array(picture)).float().div(255)
    kept = Kept(tmp_path, {"dim": 4, "normalize": True, "images": str(tmp_path)}, network, pixels)
    f = kept.embed([tmp_path / name for name in names])
    _write_gallery(tmp_path, 3 * f, ["a"] * 6, Files(tmp_path, names), True)
    np.testing.assert_allclose(np.load(tmp_path / "embeddings.npy"), f, atol=1e-6)
    assert {*find(kept, [tmp_path / "0.png"], 5)["image"]} == {*names[1:]}


@pytest.fixture
def pictures(tmp_path):
    """Eight pictures of noise."""
    rng, names = np.random.default_rng(0), [f"{i}.png" for i in range(8)]
    for name in names:
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(tmp_path / name)
    return [tmp_path / name for name in names]


def kept_of(folder, scale=1.0, normalize=True):
    """A model of a layer that was never trained."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 64)).requires_grad_(False)
    network[1].weight.mul_(scale), network[1].bias.mul_(scale)
    pixels = lambda picture, rng: torch.from_numpy(np.array(picture)).float().div(255)
    return Kept(folder, {"dim": 64, "normalize": normalize, "images": str(folder)}, network, pixels)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_picture_does_not_find_itself_at_any_length_of_embeddings(pictures, tmp_path, scale):
    """The gallery was embedded elsewhere, so that a picture lies a little beside itself."""
    kept = kept_of(tmp_path, scale, normalize=False)
    f = kept.embed(pictures)
    f = f * (1 + 1e-4 * np.random.default_rng(0).standard_normal(f.shape)).astype(np.float32)
    _write_gallery(tmp_path, f, ["a"] * 8, Files(tmp_path, [file.name for file in pictures]), False)
    found = find(kept, pictures, 3)
    assert len(found) == 24 and not (found["query"].map(os.path.basename) == found["image"]).any()


def test_an_index_that_is_older_than_the_embeddings_is_not_used(tmp_path):
    """Embeddings of another network where faiss is not installed, or some that were appended by hand."""
    kept, f, names = Kept(tmp_path, {"dim": 6, "normalize": True}, None, None), np.eye(6, dtype=np.float32), "abcdef"
    _write_gallery(tmp_path, f[:5], ["a"] * 5, Files(tmp_path, [*names[:5]]), True)
    for file in tmp_path.iterdir():
        os.utime(file, (1e9, 1e9))
    assert kept.nearest(f[:1], 1)[1].tolist() == [[0]]
    np.save(tmp_path / "embeddings.npy", f[::-1])
    (tmp_path / "names.txt").write_text("".join(f"{name}\ta\n" for name in names))
    assert kept.nearest(f, 1)[1][:, 0].tolist() == [5, 4, 3, 2, 1, 0]


def test_a_picture_of_pillow_that_is_cut_off_is_named(pictures, tmp_path):
    good = Image.open(pictures[0]).convert("RGB").resize((64, 64))
    good.save(memory := io.BytesIO(), "JPEG")
    cut = Image.open(io.BytesIO(memory.getvalue()[: len(memory.getvalue()) // 2]))
    with pytest.warns(UserWarning, match="truncated"):
        f = kept_of(tmp_path).embed([Image.open(pictures[0]), cut, Image.open(pictures[1])])
    assert np.isfinite(f).all(1).tolist() == [True, False, True]


def test_a_picture_that_is_asked_for_twice_is_drawn_twice(pictures, tmp_path):
    kept = kept_of(tmp_path)
    _write_gallery(tmp_path, kept.embed(pictures), ["a"] * 8, Files(tmp_path, [f.name for f in pictures]), True)
    assert len(draw_found(kept, find(kept, [pictures[0]] * 2, 2)).axes) == 8
    with pytest.raises(ValueError, match="nothing was found that could be drawn"):
        draw_found(kept, find(kept, pictures[:1], 0))


def test_galleries_take_tensors_that_numpy_cannot_read():
    """As of a GPU; here their sign is kept apart."""
    from dmlstudy.custom.galleries import gallery, map_2d, worst_classes

    far = lambda x: torch._neg_view(-torch.tensor(x))
    found, labels, f = far([[1], [0], [3], [2]]), far([0, 0, 1, 1]), torch.randn(4, 3)
    with pytest.raises(RuntimeError, match="negative bit"):
        np.asarray(labels)
    assert gallery([np.full((4, 4, 3), 60 * i, np.uint8) for i in range(4)], found, labels)
    assert map_2d(f, labels) and len(worst_classes(f, labels))


def test_many_copies_of_a_picture_hide_none_of_the_others(tmp_path):
    """Fourteen equal files, as where pictures are missing, and six others; then nothing but copies."""
    rng, names = np.random.default_rng(0), [f"{i:02}.png" for i in range(20)]
    for i, name in enumerate(names):
        pixels = np.zeros((8, 8, 3), np.uint8) if i < 14 else rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4)).requires_grad_(False)
    transform = lambda picture, rng: torch.from_numpy(np.array(picture)).float().div(255)
    kept = Kept(tmp_path, {"dim": 4, "normalize": True, "images": str(tmp_path)}, network, transform)
    for held, found in ((names, names[14:]), (names[:14], [])):
        f = kept.embed([tmp_path / name for name in held])
        _write_gallery(tmp_path, f, ["a"] * len(held), Files(tmp_path, held), True)
        assert sorted(find(kept, [tmp_path / "00.png"])["image"]) == found


@pytest.mark.slow
def test_a_copy_is_not_its_own_neighbour_wherever_it_lies(ranked, model, tmp_path):
    """The same bytes under another name are left out; the same picture, saved anew, is a neighbour."""
    kept, first = load(model), ranked[0] / "photos/colour 7/0.jpg"
    (copy := tmp_path / "copy.jpg").write_bytes(first.read_bytes())
    Image.open(first).save(tmp_path / "anew.png")
    found = find(kept, [copy, tmp_path / "anew.png"], 8).set_index("query")
    assert "colour 7/0.jpg" not in {*found.loc[str(copy), "image"]} and len(found.loc[str(copy)]) == 8
    assert found.loc[str(tmp_path / "anew.png"), "image"].iloc[0] == "colour 7/0.jpg"


@pytest.mark.slow
def test_onnx_gives_the_same_points(model):
    onnxruntime = pytest.importorskip("onnxruntime")
    kept = load(model)
    batch = torch.stack([kept.transform(Image.new("RGB", (50, 40 + i), (90 * i, 99, 40))) for i in range(3)])
    (points,) = onnxruntime.InferenceSession(model / "model.onnx").run(["points"], {"images": batch.numpy()})
    np.testing.assert_allclose(points, kept.embed(batch), atol=1e-4)


@pytest.fixture(scope="module")
def model(ranked):
    """The folder of the kept model."""
    place, words = ranked
    assert cli.main([*words, "--methods", "Softmax"]) == 0
    (folder,) = (place / "outputs/custom/models").iterdir()
    return folder


@pytest.mark.slow
def test_the_best_model_is_kept(ranked, model, capsys):
    card = json.loads((model / "card.json").read_text(), parse_constant=pytest.fail)  # NaN is no JSON
    assert card["sha256"] == hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    assert card["method"] in ROWS
    assert [len(card["classes"][part]) for part in ("train", "validation", "test")] == [12, 3, 5]
    f, lines = np.load(model / "embeddings.npy"), (model / "names.txt").read_text().splitlines()
    assert f.shape == (80, card["dim"]) and len(lines) == 80 and "broken" not in "".join(lines)
    before = (model / "model.safetensors").stat().st_mtime_ns
    assert cli.main([*ranked[1], "--methods", "Softmax"]) == 0  # again: what is kept stays
    told = capsys.readouterr().out
    assert (model / "model.safetensors").stat().st_mtime_ns == before
    assert "Should you train? " in told and f"search --model {model}" in told
    assert "Training the whole network is not offered on a CPU" in told or "whole network" in told
    assert ("Up to a distance of" in told or "No distance keeps 90 %" in told) and "may be best by" in told
    (table,) = (ranked[0] / "outputs/custom/tables").glob("photos*.csv")
    rows = pd.read_csv(table).set_index("method")
    assert {*rows.index} >= {*ROWS} and (rows["seeds"] == 4).all() and (rows["unit"] == "folds").all()
    assert (rows["start kept"] <= 4).all() and rows["may be best"].any() and rows["map@r may be best"].any()
    row = rows.loc[card["method"]]  # the card has the values of the verdict, not of one fold
    for metric in ("recall@1", "map@r", "precision@8"):
        assert card["scores"][metric] == pytest.approx(row[metric] / 100, rel=1e-5)
    page = (model / "README.md").read_text()
    assert f"recall@1 {row['recall@1']:.1f} %" in page and "over 4 folds" in page
    assert "squashed to 128 x 128 pixels, whatever their shape" in page
    assert ("* **Trained on** " in page) == (card["method"] == "Softmax")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["embeddings.npy", "names.txt", "card.json"])
def test_an_export_that_lacks_a_file_is_made_again(ranked, model, name):
    before = {file.name: file.read_bytes() for file in model.iterdir()}
    (model / name).write_text("{}") if name == "card.json" else (model / name).unlink()
    if name == "card.json":
        with pytest.raises(ValueError, match="card.json is damaged"):
            load(model)
    else:
        load(model)  # to embed other pictures it is enough
    assert cli.main([*ranked[1], "--methods", "Softmax"]) == 0
    after = {file.name: file.read_bytes() for file in model.iterdir()}
    assert before.keys() == after.keys()
    assert all(before[n] == after[n] for n in ("names.txt", "embeddings.npy", "model.safetensors"))


@pytest.mark.slow
def test_it_is_read_again_and_embeds(model):
    kept, picture = load(model), Image.new("RGB", (90, 60), (120, 130, 140))
    f = kept.embed([picture, picture.resize((30, 40))])
    assert f.shape == (2, kept.card["dim"]) and np.isfinite(f).all()
    batch = torch.stack([kept.transform(p, None) for p in (picture, picture.resize((30, 40)))])
    np.testing.assert_allclose(kept.embed(batch), f, atol=1e-5)
    glass = Image.fromarray(np.uint8(np.random.default_rng(0).integers(0, 255, (60, 90, 4))))  # a file is put on white
    glass.save(model / "glass.png")
    np.testing.assert_array_equal(kept.embed([glass]), kept.embed([model / "glass.png"]))


@pytest.mark.slow
def test_embeddings_index_and_threshold_speak_of_one_distance(ranked, model):
    """Length 1 everywhere; the index's squared distances are those of `find`, and its threshold that of the card."""
    kept, stored = load(model), np.load(model / "embeddings.npy")
    f = kept.embed([ranked[0] / "photos" / path for path, _ in kept.names()[:6]])
    np.testing.assert_allclose(np.linalg.norm(stored, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(f, stored[:6], atol=1e-4)
    square, _ = faiss.read_index(str(model / "index.faiss")).search(f, 5)
    distance, rows = kept.nearest(f, 5)
    np.testing.assert_allclose(np.sqrt(np.maximum(square, 0)), distance, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(stored[rows] - f[:, None], axis=2), distance, atol=1e-3)
    cut = kept.card["verification"]["threshold"]
    assert 0 < kept.card["index"]["threshold"] == pytest.approx(cut**2)


@pytest.mark.slow
def test_a_broken_picture_does_not_stop_the_others(ranked, model, tmp_path):
    kept, good = load(model), ranked[0] / "photos/colour 4/0.jpg"
    (broken := tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match="broken.jpg cannot be read"):
        f = kept.embed([good, broken, good])
    assert np.isnan(f[1]).all() and (f[0] == f[2]).all()
    with pytest.warns(UserWarning, match="broken.jpg cannot be read"):
        found = find(kept, [broken, good], 3)
    assert {*found["query"]} == {str(good)} and "colour 4/0.jpg" not in {*found["image"]}
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="none of 1 images can be read"):
        find(kept, [broken], 3)


@pytest.mark.slow
def test_find_prints_and_draws(ranked, model, capsys, tmp_path):
    images = [str(ranked[0] / "photos/colour 4" / f"{i}.jpg") for i in (0, 2)]
    words = ["search", "--model", str(model), *images, "--k", "5", "--picture", str(tmp_path / "found.png")]
    assert cli.main(words) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == images[0] and not any("colour 4/0.jpg" in line for line in told[1:7])  # not its own neighbour
    assert told[7] == images[1] and len(told) == 16  # two tables of five, the threshold, the picture
    with Image.open(tmp_path / "found.png") as picture:
        assert picture.width == 900


def _other_dimension(model):
    index = model / "index.faiss"
    if index.is_file():
        import faiss

        other = faiss.IndexFlatL2(64)
        other.add(np.zeros((80, 64), np.float32))
        faiss.write_index(other, str(index))
    np.save(model / "embeddings.npy", np.zeros((80, 64), np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(
    "change, said",
    [
        (lambda m: (m / "card.json").unlink(), "holds no model, card.json is missing"),
        (lambda m: (m / "model.safetensors").write_bytes(b"no"), "is not the file of card.json"),
        (lambda m: (m / "names.txt").write_text("a.jpg\ta\n"), "holds 80 images, and"),
        (_other_dimension, "holds 64 dimensions, and the model of"),
        (lambda m: (m / "photo.jpg").write_bytes(b"\xff\xd8 no picture"), "none of 1 images can be read"),
    ],
)
def test_what_cannot_be_used_gets_one_sentence(model, capsys, tmp_path, change, said):
    copy = tmp_path / "model"
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    Image.new("RGB", (60, 60)).save(copy / "photo.jpg")
    change(copy)
    assert cli.main(["find", "--model", str(copy), str(copy / "photo.jpg")]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1


@pytest.mark.slow
def test_few_classes_keep_the_network_as_it_is(ranked, capsys, tmp_path):
    for c in range(12):
        (tmp_path / "few" / f"{c}").mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (40 + i, 50), (20 * c, 100 + 10 * i, 90)).save(tmp_path / "few" / f"{c}" / f"{i}.jpg")
    words = ["run", "--datasets", f"folder:{tmp_path / 'few'}", "--seeds", "0", "--jobs", "1", "--methods", "ImageNet"]
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    assert "Exported: frozen features. There are too few classes" in told
    assert "There is no distance to cut at" in told


def test_names_of_classes_in_other_scripts_are_drawn_with_a_font_that_has_them(tmp_path, recwarn):
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen
    from matplotlib import font_manager

    from dmlstudy.custom.galleries import gallery
    from dmlstudy.report.style import fonts_for

    pen = TTGlyphPen(None)
    pen.moveTo((100, 0)), pen.lineTo((500, 900)), pen.lineTo((900, 0)), pen.closePath()
    font = FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder([".notdef", "cat"])
    font.setupCharacterMap({ord("猫"): "cat"})
    font.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "cat": pen.glyph()})
    font.setupHorizontalMetrics({name: (1000, 0) for name in (".notdef", "cat")})
    font.setupHorizontalHeader(ascent=900, descent=-100)
    font.setupNameTable({"familyName": "Only cats", "styleName": "Regular"})
    font.setupOS2(), font.setupPost()
    font.save(tmp_path / "cats.ttf")
    images, found = [np.zeros((8, 8, 3), np.uint8)] * 3, np.array([[1, 2], [0, 2], [0, 1]])
    with pytest.warns(UserWarning, match="no installed font has 猫"):
        gallery(images, found, ["猫", "dog", "dog"])
    before = [*font_manager.fontManager.ttflist]
    try:
        font_manager.fontManager.addfont(tmp_path / "cats.ttf")
        assert fonts_for(["猫", "dog"]) == ["DejaVu Sans", "Only cats"]
        recwarn.clear()
        gallery(images, found, ["猫", "dog", "dog"]).savefig(tmp_path / "drawn.png")
        assert not [w for w in recwarn if "Glyph" in str(w.message) or "font" in str(w.message)]
    finally:
        font_manager.fontManager.ttflist[:] = before


@pytest.mark.slow
def test_an_inverted_file_finds_what_all_points_give(ranked, model, capsys, monkeypatch):
    """It is written once, with its recall, and again when the embeddings are newer; an unknown engine is refused."""
    image, file = str(ranked[0] / "photos/colour 4/1.jpg"), model / "index_ivf.faiss"
    words = ["search", "--model", str(model), image, "--k", "3"]
    assert cli.main([*words, "--engine", "faiss_ivf"]) == 0
    first, rest = capsys.readouterr().out.split("\n", 1)
    assert first.startswith(f"{file}: 2 of 2 lists hold 100.0% of the 10 nearest")
    assert cli.main(words) == 0
    assert capsys.readouterr().out == rest
    assert cli.main([*words, "--engine", "faiss_ivf"]) == 0
    assert capsys.readouterr().out == rest
    before = file.stat().st_mtime_ns
    np.save(model / "embeddings.npy", np.load(model / "embeddings.npy"))
    assert cli.main([*words, "--engine", "faiss_ivf"]) == 0
    assert file.stat().st_mtime_ns > before
    assert cli.main([*words, "--engine", "hnsw"]) == 2
    assert "There is no engine 'hnsw'. There are: 'exact', 'faiss_ivf'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "faiss", None)  # as if it were not installed
    assert cli.main([*words, "--engine", "faiss_ivf"]) == 2
    assert capsys.readouterr().err == "dmlstudy: this needs faiss: pip install 'dmlstudy[faiss]'\n"
