"""Files of outputs: when one is written anew."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from dmlstudy.report.files import alike, write_output


def page(pixels, kind="webp"):
    Image.fromarray(pixels).save(out := io.BytesIO(), kind, **({"lossless": True} if kind == "webp" else {}))
    return f"<p>5.0</p><img src='data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}'>".encode()


@pytest.fixture
def drawn():
    return np.random.default_rng(0).integers(0, 256, (120, 120, 3), dtype=np.uint8)


def test_a_page_with_another_picture_is_written_anew(tmp_path, drawn):
    (moved := drawn.copy())[:40] = 0
    file = write_output(tmp_path / "page.html", page(drawn))
    assert not any(alike(page(drawn, kind), page(moved, kind), ".html") for kind in ("webp", "png"))
    assert write_output(file, page(moved)).read_bytes() == page(moved)


def test_a_page_whose_picture_differs_by_an_edge_stays(tmp_path, drawn):
    (edge := drawn.copy())[0, 0] ^= 255
    assert page(edge) != page(drawn) and alike(page(drawn), page(edge), ".html")
    assert write_output(write_output(tmp_path / "page.html", page(drawn)), page(edge)).read_bytes() == page(drawn)
