"""A page of this machine for a kept model: the command, and what a browser makes of it."""

import base64
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from browser import CHROMIUM, Browser
from PIL import Image
from safetensors.torch import save_file

from dmlstudy import cli
from dmlstudy.models import make_model
from dmlstudy.study.run import make_run

COLOURS = {"<b>red</b>": (200, 30, 30), "green": (30, 180, 40), "猫": (30, 40, 200)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A kept model whose classes have colours of their own, one image gone since."""
    import hashlib
    import json
    from dataclasses import asdict

    folder, rng = tmp_path_factory.mktemp("kept"), np.random.default_rng(0)
    run = make_run(dataset="glyphs_fine", model="efficientnet_lite0", embed_dim=16, weights=None)
    network = make_model(run.model, run.embed_dim, None, head=run.head)
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, folder / "model.safetensors")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    said = {"threshold": 0.2, "stated": 0.9, "precision": 0.92, "low": 0.8, "high": 1.0}
    said |= {"found": 0.7, "returned": 3.0, "classes": 5}
    card = {"sha256": digest, "dim": 16, "normalize": True, "images": str(folder), "method": "linear layer"}
    (folder / "card.json").write_text(json.dumps(card | {"verification": said, "run": asdict(run)}))
    lines = []
    for name, colour in COLOURS.items():
        for _ in range(4):
            pixels = np.clip(np.array(colour) + rng.normal(0, 20, (64, 64, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{len(lines)}.png")
            lines.append(f"{len(lines)}.png\t{name}\n")
    (folder / "names.txt").write_text("".join(lines), encoding="utf-8")
    np.save(folder / "embeddings.npy", np.eye(12, 16, dtype=np.float32))
    from dmlstudy.custom.export import load

    kept = load(folder)
    np.save(folder / "embeddings.npy", kept.embed([folder / f"{i}.png" for i in range(12)]))
    (folder / "3.png").unlink()
    return folder


@pytest.fixture(scope="module")
def server(model):
    """The command, and the address it prints."""
    call = [sys.executable, "-m", "dmlstudy", "search", "--model", str(model), "--serve", "--port", "0", "--k", "6"]
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background command is deaf to Ctrl-C
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": heard}
    with subprocess.Popen(call, text=True, **pipes) as process:
        line = process.stdout.readline()
        assert "shows what is nearest to a picture; Ctrl-C ends it" in line, process.stderr.read()
        yield re.match(r"http://127\.0\.0\.1:\d+/", line)[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(900) == 0 and "Traceback" not in process.stderr.read()


def test_the_page_of_a_model_reads_it(model, monkeypatch):
    """The lines of Python in README.md, run in the model's folder."""
    import json

    from dmlstudy.custom.export import page

    card = json.loads((model / "card.json").read_text())
    card |= {"sizes": {"train": 12}, "classes": {"train": ["a", "b"]}, "intervals": {"recall@1": [0.5, 0.4, 0.6]}}
    lines = page(card | {"folds": 8, "versions": {}}).split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(model)
    there = {}
    exec(lines.replace("this folder", ".").replace("photo.jpg", "5.png"), there)
    assert there["points"].shape == (1, 16) and there["lines"][0, 0] == 5 and there["distances"][0, 0] < 1e-3


def test_a_browser_that_goes_away_prints_nothing(capsys):
    """A tab that is closed, or loaded again, resets its connection."""
    from dmlstudy.custom.serve import serve

    model = SimpleNamespace(card={"verification": None, "images": "nowhere", "method": "x"}, names=lambda: [["a", "b"]])
    with serve(model, 0) as server:
        port, ended, real = server.server_address[1], threading.Event(), server.shutdown_request
        server.shutdown_request = lambda request: (real(request), ended.set())
        with socket.create_connection(("127.0.0.1", port)) as talk:
            server.handle_request()
            talk.sendall(f"GET /about HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert talk.recv(4096).startswith(b"HTTP/1.1 200")
            talk.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert ended.wait(60)
    assert capsys.readouterr().err == ""


def test_the_command_says_what_is_missing(model, capsys):
    assert cli.main(["search", "--model", str(model)]) == 2
    assert "name images to find the nearest to, or give --serve" in capsys.readouterr().err


@pytest.mark.slow
def test_a_page_takes_no_images_of_the_command(model, capsys):
    for more in (["3.png"], ["--picture", "found.png"]):
        assert cli.main(["search", "--model", str(model), "--serve", *more]) == 2
        assert "--serve opens a page to drop images on" in capsys.readouterr().err


@pytest.mark.slow
def test_a_port_that_is_taken_is_named(model, server, capsys):
    port = server.rstrip("/").rsplit(":", 1)[1]
    assert cli.main(["search", "--model", str(model), "--serve", "--port", port]) == 2
    assert f"port {port} cannot be used here (Address already in use)" in capsys.readouterr().err
    assert cli.main(["search", "--model", str(model), "--serve", "--port", "99999"]) == 2
    assert "port 99999 cannot be used here (" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_a_picture_is_dropped_in_a_browser(model, server, tmp_path):
    content = base64.b64encode((model / "5.png").read_bytes()).decode()
    drop = f"""(async () => {{
        const bytes = Uint8Array.from(atob("{content}"), c => c.charCodeAt(0)), all = new DataTransfer();
        all.items.add(new File([bytes], "5.png", {{type: "image/png"}}));
        document.dispatchEvent(new DragEvent("drop", {{dataTransfer: all, bubbles: true, cancelable: true}}));
        const wait = ms => new Promise(done => setTimeout(done, ms));
        for (let i = 0; i < 18000 && !document.querySelector("li"); i++) await wait(50);
        const images = [...document.querySelectorAll("li img")];
        await Promise.all(images.map(image => image.complete || new Promise(d => image.onload = image.onerror = d)));
        return {{said: document.getElementById("said").textContent, drawn: images.filter(i => i.naturalWidth).length,
                 cards: [...document.querySelectorAll("li")].map(li => li.innerText),
                 near: document.querySelectorAll("li.near").length, bold: document.querySelectorAll("li b").length,
                 wide: document.documentElement.scrollWidth <= innerWidth}};
    }})()"""
    tab = Browser(tmp_path)
    try:
        for width in (390, 1200):
            tab.size(width)
            tab.open(server)
            assert "12 images of" in tab.run("document.getElementById('about').textContent")
            found = tab.run(drop)
            assert found["cards"][0].startswith("green") and not any("5.png" in card for card in found["cards"])
            assert len(found["cards"]) == 6 and found["said"].startswith("6 nearest images. The picture itself is in")
            assert f"Framed: {found['near']} up to a distance of 0.200, chosen so that 90% are" in found["said"]
            assert found["near"] >= 1 and found["wide"] and not found["bold"]  # a class's name is text
            assert found["drawn"] >= 5  # one image of the gallery may be the one that is gone
        tab.picture(tmp_path / "page.png")
        assert all(url.startswith((server, "blob:", "data:", "about:")) for url in tab.requests)
        broken = drop.replace(content, base64.b64encode(b"no picture").decode())
        said = tab.run(broken.replace('!document.querySelector("li")', '!said.textContent.includes("cannot")'))["said"]
        assert "the image you dropped cannot be read" in said
    finally:
        tab.close()


@pytest.mark.slow
def test_the_program_needs_torch_alone(model):
    from dmlstudy.custom.export import exported, load

    kept = load(model)
    content = exported(make_run(kept.card["run"]), kept.network.state_dict(), True)
    (model / "model.pt2").write_bytes(content["pt2"])
    batch = torch.stack([kept.transform(Image.open(model / f"{i}.png"), None) for i in (0, 5, 9)])
    np.save(model / "batch.npy", batch.numpy())
    alone = "import sys, numpy, torch; p = torch.export.load('model.pt2').module(); x = numpy.load('batch.npy');"
    alone += "numpy.save('out.npy', p(torch.from_numpy(x)).numpy());"
    alone += "assert 'dmlstudy' not in sys.modules"
    subprocess.run([sys.executable, "-I", "-c", alone], cwd=model, check=True)
    np.testing.assert_allclose(np.load(model / "out.npy"), kept.embed(batch), atol=1e-5)
