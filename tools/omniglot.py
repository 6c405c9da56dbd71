"""Make the shipped drawings from the official archives of Omniglot: python tools/omniglot.py FOLDER

FOLDER holds images_background.zip, images_evaluation.zip and all_runs.zip (of one-shot-classification) as they lie in
github.com/brendenlake/omniglot under python/ at commit 057f034baf2ecb8530bc5710e5a23584d2a519cc.
"""

import io
import json
import lzma
import sys
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

ASSETS = Path(__file__).resolve().parents[1] / "dmlstudy" / "assets"


def ink(file: bytes) -> np.ndarray:  # (105, 105), uint8, 1 where there is ink
    """An official image, black on white."""
    return 1 - np.asarray(Image.open(io.BytesIO(file)).convert("1")).astype(np.uint8)


def read_archive(path: Path) -> tuple[np.ndarray, list]:  # (characters, drawers, 105, 105); [alphabet, characters]
    """Images of an archive by file number, such as images_background/Greek/character01/0394_01.png."""
    with zipfile.ZipFile(path) as archive:
        names = sorted((n for n in archive.namelist() if n.endswith(".png")), key=lambda n: n.rpartition("/")[2])
        images = np.stack([ink(archive.read(name)) for name in names])
    characters = list(dict.fromkeys(name.rpartition("/")[2].partition("_")[0] for name in names))
    of = {name.rpartition("/")[2].partition("_")[0]: name.split("/")[-3] for name in names}
    alphabets = [[name, [*of.values()].count(name)] for name in dict.fromkeys(of[c] for c in characters)]
    return images.reshape(len(characters), -1, 105, 105), alphabets


def read_runs(path: Path, images: np.ndarray) -> list:  # of each run 20 pairs of images: test, training
    """The one-shot runs: their images are found again among the drawings (n, 105, 105)."""
    place = {image.tobytes(): i for i, image in enumerate(images)}
    with zipfile.ZipFile(path) as archive:
        lists = sorted(name for name in archive.namelist() if name.endswith("class_labels.txt"))
        pairs = [[line.split() for line in archive.read(name).decode().splitlines()] for name in lists]
        base = lists[0].rpartition("run01/")[0]
        return [[[place[ink(archive.read(base + n)).tobytes()] for n in pair] for pair in run] for run in pairs]


def pack(images: np.ndarray) -> bytes:  # (n, 105, 105), 1 where there is ink
    """Eight pixels a byte, rows padded to 14 bytes, compressed."""
    how = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 0, "pb": 0}
    return lzma.compress(np.packbits(images, axis=-1).tobytes(), format=lzma.FORMAT_XZ, filters=[how])


def write(folder: Path, images: np.ndarray, about: dict) -> None:
    """Both files of the asset."""
    (folder / "omniglot.xz").write_bytes(pack(images))
    (folder / "omniglot.json").write_text(json.dumps(about, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    source = Path(sys.argv[1])
    parts = {name: read_archive(source / f"images_{name}.zip") for name in ("background", "evaluation")}
    drawings = np.concatenate([images.reshape(-1, 105, 105) for images, _ in parts.values()])
    names = {name: alphabets for name, (_, alphabets) in parts.items()}
    write(ASSETS, drawings, {**names, "runs": read_runs(source / "all_runs.zip", drawings)})
