"""Embeddings of any origin: files in, every metric with an interval out."""

import io
import itertools
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dmlstudy import cli
from dmlstudy.custom import embedding_files as embeddings
from dmlstudy.custom.embedding_files import _group_jackknife
from dmlstudy.metrics import DEFAULT, evaluate

_SHAPE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 10000), }"
HUGE = b"\x93NUMPY\x01\x00\x76\x00" + _SHAPE.ljust(117) + b"\n"  # 128 bytes that announce 36 TiB


@pytest.fixture
def files(tmp_path):
    """Embeddings of 24 classes whose names are words."""
    rng = np.random.default_rng(0)
    labels = np.repeat([f"class {i}" for i in range(24)], 5)
    f = rng.normal(size=(24, 8)).repeat(5, 0) + 0.6 * rng.normal(size=(120, 8))
    np.save(tmp_path / "f.npy", f.astype(np.float32))
    np.save(tmp_path / "y.npy", labels)
    return tmp_path


def test_every_metric_has_its_value_and_interval(files, capsys):
    words = ["evaluate", str(files / "f.npy"), str(files / "y.npy"), "--csv", str(files / "out.csv")]
    assert cli.main(words) == 0
    told, table = capsys.readouterr().out, pd.read_csv(files / "out.csv").set_index("metric")
    assert "120 embeddings of 8 dimensions" in told and [*table.index] == [*DEFAULT]
    f, labels = np.load(files / "f.npy"), np.unique(np.load(files / "y.npy"), return_inverse=True)[1]
    for name, value in evaluate(f, labels, DEFAULT, kmeans_restarts=5).items():
        if name.endswith("_std"):
            continue
        assert table.loc[name, "value"] == pytest.approx(value, rel=1e-5), name
    assert (table["low"] <= table["value"]).all() and (table["value"] <= table["high"]).all()
    assert table["high"].sub(table["low"]).drop(["recall@8"]).gt(0).all()


def packed():
    """A compressed archive of arrays with a wrong byte that no decompression takes."""
    np.savez_compressed(memory := io.BytesIO(), embeddings=np.random.default_rng(0).normal(size=(50, 8)))
    content = bytearray(memory.getvalue())
    content[80] ^= 0xFF
    return bytes(content)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda d: np.save(d / "y.npy", np.arange(119)), "got (120, 8) and (119,)"),
        (
            lambda d: (d / "f.npy").write_text("0.1, 0.2"),
            "is not an .npy or .npz file, nor .csv, .tsv, .parquet: write one with np.save",
        ),
        (
            lambda d: np.savez(open(d / "f.npy", "wb"), f=np.zeros((120, 8))),
            "There is no array of the file 'embeddings'",
        ),
        (lambda d: (d / "f.npy").write_bytes(b"PK\x03\x04 and no more"), "is damaged, or holds other things"),
        (lambda d: (d / "f.npy").write_bytes((d / "f.npy").read_bytes()[:200]), "is damaged, or holds other things"),
        (lambda d: (d / "f.npy").write_bytes(packed()), "f.npy is damaged, or holds other things"),
        (lambda d: (d / "f.npy").write_bytes(HUGE), "is damaged, or too large for this memory"),
        (lambda d: (d / "f.npy").unlink(), "No such file"),
        (lambda d: np.save(d / "f.npy", np.full((120, 8), np.nan)), "hold NaN or infinity"),
    ],
)
def test_wrong_files_are_refused_in_a_sentence(files, capsys, change, said):
    change(files)
    assert cli.main(["evaluate", str(files / "f.npy"), str(files / "y.npy"), "--metrics", "recall@1"]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1


def test_few_classes_have_no_interval(files, capsys):
    np.save(files / "y.npy", np.repeat(np.arange(6), 20))
    assert cli.main(["evaluate", str(files / "f.npy"), str(files / "y.npy"), "--metrics", "recall@1", "nmi"]) == 0
    assert capsys.readouterr().out.count(" nan") == 4


def told(words, capsys):
    assert cli.main(["evaluate", *map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_every_format_gives_the_same_table(files, capsys):
    f, y = np.load(files / "f.npy"), np.load(files / "y.npy")
    np.savez(files / "both.npz", embeddings=f, labels=y)
    table = pd.DataFrame(f, columns=[f"e{i}" for i in range(8)])
    table.assign(label=y, path="x.png").to_csv(files / "both.csv", index=False)
    table.assign(species=y).to_csv(files / "named.tsv", index=False, sep="\t")
    lists = pd.DataFrame({"class": y, "embedding": [*f], "number": range(120)})
    lists.to_parquet(files / "both.parquet")
    lists.assign(embedding=[str(row.tolist()) for row in f]).to_csv(files / "lists.csv", index=False)
    metrics = ["--metrics", "recall@1", "precision@4", "nmi"]
    first = told([files / "f.npy", files / "y.npy", *metrics], capsys)
    for name in ("both.npz", "both.parquet", "lists.csv"):
        assert told([files / name, *metrics], capsys) == first, name
    assert told([files / "both.csv", *metrics], capsys) == "8 dimensions: e0 to e7; not taken: path\n" + first
    named = told([files / "named.tsv", "--label", "species", *metrics], capsys)
    assert named == "8 dimensions: e0 to e7\n" + first
    assert told([files / "f.npy", files / "both.csv", *metrics], capsys) == first  # labels of another file
    assert cli.main(["evaluate", str(files / "named.tsv")]) == 2
    assert "has no labels: name a file of them, or a column with --label" in capsys.readouterr().err


def test_labels_of_arrays_are_named_as_columns_are(files, capsys):
    f, y = np.load(files / "f.npy"), np.load(files / "y.npy")
    np.savez(files / "levels.npz", embeddings=f, labels=np.roll(y, 1), kind=y)
    np.savez(files / "kinds.npz", kind=y)
    metrics = ["--metrics", "recall@1"]
    first = told([files / "f.npy", files / "y.npy", *metrics], capsys)
    assert told([files / "levels.npz", *metrics], capsys) != first
    assert told([files / "levels.npz", "--label", "kind", *metrics], capsys) == first
    assert told([files / "f.npy", files / "kinds.npz", "--label", "kind", *metrics], capsys) == first
    assert cli.main(["evaluate", str(files / "levels.npz"), "--label", "color"]) == 2
    assert "has no labels: name a file of them, or a column with --label" in capsys.readouterr().err
    assert cli.main(["evaluate", str(files / "f.npy"), str(files / "kinds.npz")]) == 2
    assert "array of the file" in capsys.readouterr().err


def test_numbering_is_no_dimension_unless_it_is_named(files, capsys):
    f, y = np.load(files / "f.npy"), np.load(files / "y.npy")
    table = pd.DataFrame(f, columns=[f"d{i}" for i in range(8)]).assign(label=y)
    table.assign(sku=np.random.default_rng(1).permutation(120) * 10).to_csv(files / "sku.csv", index=False)
    table.assign(price=np.arange(120) % 7).to_csv(files / "price.csv", index=False, sep=";")
    table.assign(photoID=np.arange(120) // 5, Unnamed=1.5).to_csv(files / "id.csv")
    first = told([files / "f.npy", files / "y.npy", "--metrics", "recall@1"], capsys)
    said = told([files / "sku.csv", "--metrics", "recall@1"], capsys)
    assert said == "8 dimensions: d0 to d7; not taken: sku\n" + first
    said = told([files / "price.csv", "--metrics", "recall@1"], capsys)  # whole numbers among fractions; semicolons
    assert said == "8 dimensions: d0 to d7; not taken: price\n" + first
    said = told([files / "id.csv", "--columns", "d*", "--metrics", "recall@1"], capsys)
    assert said == "8 dimensions: d0 to d7; not taken: Unnamed: 0, photoID, Unnamed\n" + first
    assert told([files / "sku.csv", "--columns", "d*", "sku"], capsys).startswith("9 dimensions: d0 to sku\n")
    table[["label"]].assign(number=range(120)).to_csv(files / "none.csv", index=False)
    assert cli.main(["evaluate", str(files / "none.csv")]) == 2
    assert "number look like names or numbering; --columns takes them" in capsys.readouterr().err


def test_words_that_end_as_id_does_are_no_numbering():
    dimensions = ["humid", "acid", "GRID", "centroid", "length"]
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(9, 5)), columns=dimensions)
    table = table.assign(photoID=table["humid"], place_id=table["acid"], imageId=1.5, ID=0.5)
    assert embeddings.vector_columns(table, []) == (dimensions, ["photoID", "place_id", "imageId", "ID"])


def test_swapped_files_get_one_sentence(files, capsys):
    assert cli.main(["evaluate", str(files / "y.npy"), str(files / "f.npy")]) == 2
    complaint = capsys.readouterr().err
    assert "y.npy holds labels and" in complaint and "name the embeddings first" in complaint
    assert complaint.count("\n") == 1


def test_labels_of_a_table_are_taken_as_they_are_written(files):
    """01 is not 1, and NA is a name; whole numbers match those of an array."""
    read = lambda: embeddings.read_inputs(files / "t.csv", say=lambda text: None)[1]["label"].tolist()
    for labels, said in (
        (["01", "1", "NA", "1e5"], None),
        (["1", "20", "0", "3"], [1, 20, 0, 3]),
        (["1.0", "2.0", "1.0", "3.0"], [1, 2, 1, 3]),
        (["a", "nan", "b", "b"], ["a", None, "b", "b"]),
        (["a", "", "b", "b"], ["a", None, "b", "b"]),
    ):
        rows = [f"{label},{i / 7},{i * i / 3}" for i, label in enumerate(labels)]
        (files / "t.csv").write_text("\n".join(["label,e0,e1", *rows]))
        assert read() == (said or labels)
    with pytest.raises(ValueError, match="some labels are missing"):
        embeddings.class_intervals(np.eye(4), np.array(read(), object), ["recall@1"])


@pytest.fixture
def parted(tmp_path):
    """Queries and gallery of 24 classes as tables: label, d0 to d5."""
    rng, labels = np.random.default_rng(1), np.repeat(range(24), 5)
    f = rng.normal(size=(24, 6))[labels] + 0.5 * rng.normal(size=(120, 6))
    table = pd.DataFrame(f.round(5), columns=[f"d{i}" for i in range(6)])
    table.insert(0, "label", labels)
    table[::2].to_csv(tmp_path / "q.csv", index=False)
    return table[::2], table[1::2], tmp_path


def test_columns_of_a_gallery_are_found_by_name(parted, capsys):
    _, gallery, place = parted
    words, found = [place / "q.csv", "--gallery", place / "g.csv", "--metrics", "recall@1"], []
    for columns in (gallery.columns, ["d3", "d1", "label", "d0", "d2", "d5", "d4"]):
        gallery[columns].to_csv(place / "g.csv", index=False)
        found.append(told(words, capsys))
    assert found[0] == found[1] and "recall@1 0.58" in found[0]
    gallery.rename(columns={"d3": "e[3]"}).to_csv(place / "g.csv", index=False)
    assert cli.main(["evaluate", *map(str, words)]) == 2 and "There is no column 'd3'" in capsys.readouterr().err


def test_a_word_among_the_labels_of_a_gallery_changes_none_of_the_others(parted):
    queries, gallery, place = parted
    more = pd.DataFrame([["other", *[9.5] * 6]], columns=gallery.columns)
    values = []
    for table in (gallery, pd.concat([gallery.astype({"label": object}), more])):
        table.to_csv(place / "g.csv", index=False)
        f, y, f_gallery, y_gallery, _ = embeddings.read_inputs(place / "q.csv", gallery=place / "g.csv", say=len)
        of = f, y["label"], ["recall@1"], True, 0, 5, f_gallery, y_gallery["label"]
        values.append(embeddings.class_intervals(*of)[0])
    assert values[0]["value"] == values[1]["value"] > 0.5 and values[1]["low"] == values[1]["low"]


@pytest.mark.parametrize(
    "text, said",
    [
        ("{e},{e}\n{e},{e}\n", "has no line of column names"),  # as np.savetxt writes numbers
        ("ant, 0.5, -0.25\nbee, 0.5, 0.75\n", "has no line of column names"),
        ("1,2\n3,4\n", "has no line of column names"),
        ("e0,e1,label\n0.5,1.5,ant, adult\n0.5,1.5,bee, adult\n", "is damaged, or not a table: Length of header"),
        ("e0,e1,label\n0.5,1.5,ant\n0.5,1.5,bee, adult\n", "is damaged, or not a table"),
    ],
)
def test_a_table_without_names_or_with_longer_lines_is_refused(tmp_path, text, said):
    """It would lose its first image, or take the next column."""
    (tmp_path / "f.csv").write_text(text.format(e="1.5e-01"))
    with pytest.raises(ValueError, match=said):
        embeddings.read_embeddings(tmp_path / "f.csv")


def test_columns_may_be_numbered(tmp_path):
    """As pandas names them; and a comma at the end of each line is no column."""
    (tmp_path / "f.csv").write_text("label,0,1\nant,0.5,1.5,\nbee,2.5,3.5,\n")
    f, labels = embeddings.read_embeddings(tmp_path / "f.csv")
    assert f.tolist() == [[0.5, 1.5], [2.5, 3.5]] and labels["label"].tolist() == ["ant", "bee"]


def test_a_row_that_is_no_number_is_named_by_its_place_in_the_file(files):
    f, labels = np.load(files / "f.npy"), np.load(files / "y.npy")
    f[100] = np.nan
    with pytest.raises(ValueError, match="1 of 120 embeddings hold NaN or infinity; first rows: 100"):
        embeddings.class_intervals(f, labels, ["recall@1"])


def test_what_is_wrong_is_said_once_of_all(files, recwarn):
    f, labels = np.load(files / "f.npy")[:-4], np.load(files / "y.npy")[:-4]  # the last is alone in its class
    embeddings.class_intervals(f, labels, ["recall@1"])
    assert [str(w.message)[:29] for w in recwarn] == ["1 of 116 queries have no other"[:29]]


def test_the_time_of_a_gallery_of_other_classes_is_estimated_from_the_queries_classes():
    rng = np.random.default_rng(0)
    f, gallery = (rng.normal(size=(n, 4)).astype(np.float32) for n in (100, 4000))
    of = f, np.arange(100) // 10, ["recall@1"], gallery, np.arange(4000) - 5
    assert embeddings.seconds_ahead(*of, rounds=1, some=40) > 0


def test_the_time_of_a_gallery_without_the_first_classes_of_the_queries_is_estimated():
    rng = np.random.default_rng(0)
    f, gallery = (rng.normal(size=(n, 4)).astype(np.float32) for n in (60, 400))
    of = f, np.arange(60) // 10, ["recall@1"], gallery, 2 + np.arange(400) % 4
    assert embeddings.seconds_ahead(*of, rounds=1, some=100) > 0


def test_queries_of_few_classes_have_no_interval(files):
    f, y = np.load(files / "f.npy"), np.load(files / "y.npy")
    (found,) = embeddings.class_intervals(f[:5], y[:5], ["recall@1"], f_gallery=f[5:], labels_gallery=np.roll(y, 5)[5:])
    assert found["value"] >= 0 and np.isnan([found["low"], found["high"]]).all()


def test_a_gallery_its_intervals_and_what_is_relevant(files, capsys):
    f, y = np.load(files / "f.npy"), np.load(files / "y.npy")
    np.savez(files / "query.npz", embeddings=f[::2], labels=y[::2])
    np.save(files / "g.npy", f[1::2]), np.save(files / "gy.npy", y[1::2])
    labels = np.unique(y, return_inverse=True)[1]
    given = [files / "query.npz", "--gallery", files / "g.npy"]
    table = files / "out.csv"
    told([*given, "--gallery-labels", files / "gy.npy", "--csv", table], capsys)
    found = pd.read_csv(table).set_index("metric")
    expected = evaluate(f[::2], labels[::2], ["recall@1", "map@r"], f[1::2], labels[1::2])
    assert found["value"][["recall@1", "map@r"]].to_dict() == pytest.approx(expected)
    assert (found.loc["recall@1", "low"] < expected["recall@1"]) and "nmi" not in found.index
    assert cli.main(["evaluate", *map(str, given)]) == 2
    assert "need labels of the same names" in capsys.readouterr().err
    np.save(files / "r.npy", labels[::2, None] == labels[1::2])
    said = told([*given, "--relevance", files / "r.npy", "--metrics", "recall@1", "--csv", table], capsys)
    assert pd.read_csv(table)["value"][0] == pytest.approx(expected["recall@1"]) and "without classes" in said
    np.save(files / "several.npy", np.eye(24)[labels])  # a column a class
    told([files / "f.npy", "--relevance", files / "several.npy", "--metrics", "map@r", "--csv", table], capsys)
    assert pd.read_csv(table)["value"][0] == pytest.approx(evaluate(f, labels, ["map@r"])["map@r"])


def test_a_hierarchy_has_a_table_a_level_and_no_intervals_are_faster(files, capsys):
    y = np.load(files / "y.npy")
    half = np.where(np.char.str_len(y) > 7, "two digits", "one")
    np.save(files / "y.npy", np.stack([half, y], 1))
    words = [files / "f.npy", files / "y.npy", "--no-intervals", "--csv", files / "out.csv", "--metrics", "recall@1"]
    assert "no intervals, not asked" in told(words, capsys)
    table = pd.read_csv(files / "out.csv").set_index("level")["value"]
    assert [*table.index] == [1, 2] and table[1] > table[2]


def test_a_table_that_cannot_be_kept_is_printed(files, capsys):
    words = ["evaluate", str(files / "f.npy"), str(files / "y.npy"), "--metrics", "recall@1"]
    assert cli.main([*words, "--csv", str(files / "nowhere/out.csv")]) == 2
    shown = capsys.readouterr()
    assert "recall@1 0." in shown.out and "nowhere" in shown.err


def test_a_long_evaluation_says_that_it_is_one(files, capsys):
    np.save(files / "f.npy", np.random.default_rng(0).normal(size=(21_000, 4)).astype(np.float32))
    np.save(files / "y.npy", np.arange(21_000) // 4)
    words = [files / "f.npy", files / "y.npy", "--metrics", "norm_mean"]
    assert re.match(r"this takes about \d+ s; --no-intervals is faster\n", told(words, capsys))
    assert re.match(r"this takes about \d+ s\n", told([*words, "--no-intervals"], capsys))


def test_the_time_ahead_grows_with_the_square_of_the_set(monkeypatch):
    """By a clock on which a part of the classes takes half a second."""
    ticks, parts = itertools.count(0, 0.5), []
    measured = embeddings.class_intervals
    monkeypatch.setattr(embeddings, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(embeddings, "class_intervals", lambda f, *more: parts.append(len(f)) or measured(f, *more))
    f, y = np.random.default_rng(0).normal(size=(800, 4)).astype(np.float32), np.arange(800) // 4
    assert embeddings.seconds_ahead(f, y, ["recall@1"], rounds=11, some=200) == 11 * 0.5 * 16
    assert embeddings.seconds_ahead(f[:80], y[:80], ["recall@1"], f, y, rounds=1, some=200) == 0.5 * 4 * (80 / parts[1])
    assert parts[0] == 200 and parts[1] % 4 == 0


def test_the_luck_of_a_start_is_not_counted_nine_times():
    """Scores that are nothing but luck: 3.2 times too wide, if half of the surplus were not taken off."""
    rng = np.random.default_rng(0)

    def scores(keep):
        starts = rng.normal(size=3)
        return {"nmi": starts.mean(), "nmi_std": starts.std(ddof=1)}

    found = [_group_jackknife(scores, 20, rng, 3)["nmi"] for _ in range(400)]
    width = np.mean([high - low for _, low, high in found]) / (2 * 1.96 / 3**0.5)
    assert 2.0 < width < 2.6
