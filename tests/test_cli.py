"""The command: what it prints, what it refuses, and its exit status."""

import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from work import calls

from dmlstudy import cli
from dmlstudy.core.paths import asset
from dmlstudy.study import records
from dmlstudy.study.config import PROFILES
from dmlstudy.study.methods import METHODS
from dmlstudy.study.plan import all_runs, jobs_of


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Call the command in an empty folder: exit status, what it printed, what it complained of."""
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))

    def call(*words: str) -> tuple[int, str, str]:
        try:
            status = cli.main(words)
        except SystemExit as error:
            status = error.code
        return status, *capsys.readouterr()

    return call


def test_an_option_that_nothing_would_hear_is_refused(call, tmp_path):
    """Each with what it goes with."""
    unheard = {"--resources GPU=1": "--scheduler", "--replace": "--fresh", "--against Softmax": "--extend"}
    unheard |= {"--size 224": "folder:DIR", "--keep-aspect": "folder:DIR"}
    for words, other in unheard.items():
        status, _, complaint = call("run", "--profile", "smoke", "--dry-run", *words.split())
        assert status == 2 and f"{words.split()[0]} goes with {other}" in complaint, words
    (tmp_path / "photos/cat").mkdir(parents=True)
    (tmp_path / "photos/cat/1.jpg").touch()
    status, _, complaint = call("run", "--datasets", f"folder:{tmp_path / 'photos'}", "--replicates", "1", "--dry-run")
    assert status == 2 and "say which with --seeds" in complaint


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help(call, command):
    status, told, _ = call(*command.split(), "--help")
    assert status == 0 and told.startswith("usage: dmlstudy")
    if not command:
        assert all(name in told for name in cli.COMMANDS)
    assert max(map(len, told.splitlines())) <= 100


@pytest.mark.parametrize(
    "words, hint",
    [
        ("rnu", "Did you mean 'run'?"),
        ("run --profile smok", "Did you mean 'smoke'?"),
        ("run --datasets glyph_fine", "Did you mean 'glyphs_fine'"),
        ("run --methods Sofmax", "'Softmax'"),
        ("run --experiments objective", "Did you mean 'objectives'?"),
        ("run --seeds some", "write them as 0 2 5-7"),
        ("run --seeds 3-1", "write 1-3"),
        ("run --seeds ,", "',' holds no seed"),
        ("run --seeds 0-300000000", "holds 300,000,001 seeds: 100,000 are the most"),
        ("drop 0123456789ab", "there is no record under 0123456789ab"),
        ("run --datasets ,", "',' holds no name"),
        ("run --methods ;", "';' holds no name"),
        ("run --jobs -1", "'-1' is not a number of processes"),
        ("tables --jobs 1.5", "'1.5' is not a number of processes"),
        ("tables --profile nothing", "There is no profile 'nothing'"),
        ("tables --profile smoke", "dmlstudy run --profile smoke"),
        ("tune --profile paper", "has no search of its own"),
        ("tune --profile glyphs_full", "has no search of its own"),
        ("data check cub20", "Did you mean 'cub200'"),
    ],
)
def test_wrong_names_meet_the_right_ones(call, words, hint):
    status, _, complaint = call(*words.split())
    assert status == 2 and hint in complaint and "Traceback" not in complaint


def test_list(call):
    status, told, _ = call("list")
    assert status == 0
    for name in (*PROFILES, *METHODS, "glyphs_fine", "objectives"):
        assert name in told
    assert all(len(line.split("  ")) > 1 for line in told.splitlines() if line.startswith("  "))


def test_dry_run_trains_nothing(call, tmp_path):
    status, told, _ = call("run", "--dry-run", "--jobs", "3")
    runs = len({run for job in jobs_of("glyphs") for run in job.runs()})
    assert status == 0 and f"{runs} runs on 3 workers: about" in told
    assert not (tmp_path / "outputs/runs").exists()


def test_dry_run_estimates_from_records(call):
    from dmlstudy.study.config import run_of

    run = run_of("smoke", "glyphs_fine", "Softmax")
    fields = {"key": run.key(), "run": vars(run), "curves": {}, "made": {"seconds": 3600.0}}
    records.write_batch("smoke", [fields])
    status, told, _ = call(
        "run", "--profile", "smoke", "--methods", "Softmax", "--dry-run", "--seeds", "5", "6", "--jobs", "1"
    )
    assert status == 0 and "2 runs on 1 workers: about 2:00 h" in told


def test_status_of_nothing(call):
    assert "dmlstudy run begins one" in call("status")[1]
    status, told, _ = call("status", "--profile", "smoke")
    rows = [line.split() for line in told.splitlines()]
    assert status == 0 and ["experiment", "data", "set", "runs", "recorded", "training", "failed"] in rows
    assert ["omniglot_few", "7", "0", "0", "0"] in [row[1:] for row in rows]


def test_tune_dry_run_has_two_stages(call):
    before = asset("tuned_glyphs.json").read_bytes() if asset("tuned_glyphs.json").exists() else None
    status, told, _ = call("tune", "--dry-run")
    assert status == 0 and told.count("search ") == 6
    assert before == (asset("tuned_glyphs.json").read_bytes() if before is not None else None)


def test_decide_says_what_is_open_and_what_the_next_look_takes(call):
    status, told, _ = call("decide", "Z1", "--ledger", "2", "--hours", "0")
    assert status == 0 and "40 open" in told and "Z1   T                        not looked at yet" in told
    assert "the next look takes about" in told and "W1 " not in told
    status, _, wrong = call("decide", "Z9", "--ledger", "2")
    assert status == 2 and "There is no claim 'Z9'. Did you mean" in wrong


def test_data(call, tmp_path, monkeypatch):
    monkeypatch.setenv("DMLSTUDY_DATA", str(tmp_path))
    status, told, _ = call("data", "list")
    assert status == 0 and "glyphs_fine: comes with dmlstudy" in told and "cub200: not found" in told
    status, told, _ = call("data", "check", "cub200")
    assert status == 1 and "CUB_200_2011" in told
    assert call("data", "prepare", "cub200")[0] == 1


@pytest.mark.parametrize(
    "words", ["data check --root ROOT cub200", "data --root ROOT check cub200", "data --root ROOT --quick check cub200"]
)
def test_options_stand_anywhere(call, tmp_path, words):
    status, told, _ = call(*words.replace("ROOT", str(tmp_path)).split())
    assert status == 1 and told.startswith(f"cub200 was not found below {tmp_path}")


def test_data_check_of_everything(call, tmp_path, monkeypatch):
    from miniatures import build

    monkeypatch.setenv("DMLSTUDY_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "root"
    root.mkdir()
    status, told, _ = call("data", "check", "--root", str(root))
    assert status == 1 and all(f"{name} was not found below" in told for name in ("cub200", "inshop", "cifar10"))
    assert [line for line in told.splitlines() if line.startswith("glyphs_")] == [
        f"glyphs_{name}: comes with dmlstudy" for name in ("fine", "cross", "many", "shop")
    ]
    assert not [*root.iterdir()] and not (tmp_path / "cache").exists()
    build("cifar10", "python", root)
    before = sorted(root.rglob("*"))
    status, told, _ = call("data", "check", "--root", str(root), "--quick")
    assert f"cub200: not found below {root}" in told and "cifar10: " in told and "not usable as it is" in told
    assert status == 1 and len(told.splitlines()) < 20 and sorted(root.rglob("*")) == before


def test_data_check_of_an_embedded_set_is_a_line(call, tmp_path):
    status, told, _ = call("data", "check", "glyphs_shop", "--root", str(tmp_path))
    assert status == 0 and not [*tmp_path.iterdir()]
    assert told.startswith("glyphs_shop: comes with dmlstudy; train ") and " images; query " in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("broken", [lambda: pickle.loads(b""), lambda: zipfile.ZipFile(io.BytesIO(b"x"))])
def test_a_damaged_file_is_no_traceback(call, monkeypatch, broken):
    def read(args):
        "Read it"
        return broken()

    monkeypatch.setitem(cli.COMMANDS, "list", (read, ""))
    status, _, complaint = call("list")
    assert status == 2 and complaint.startswith("dmlstudy: a file is damaged or cut off (")


def test_dry_run_checks_what_the_run_will_check(call, monkeypatch, tmp_path):
    ask = ("run", "--profile", "paper", "--datasets", "cub200", "--seeds", "0", "--dry-run")
    monkeypatch.setenv("DMLSTUDY_DATA", str(tmp_path))
    status, told, _ = call(*ask)
    assert status == 1 and "not possible as it is: cub200 was not found below" in told
    shapes = tmp_path / "cub200/CUB_200_2011/images/001.Shape"
    shapes.mkdir(parents=True)
    (shapes / "a.jpg").write_bytes(b"")
    assert call(*ask)[0] == 1
    (tmp_path / "outputs").write_text("a file")
    assert f"{tmp_path / 'outputs'} cannot be written" in call("run", "--profile", "drill", "--dry-run")[1]


def test_the_work_to_list_runs_grows_no_faster_than_their_number(call):
    def dry(n: int) -> None:
        status, told, _ = call("run", "--profile", "drill", "--seeds", f"0-{n - 1}", "--dry-run")
        assert status == 0 and f"{2 * n} runs on" in told

    few, many = (calls(lambda: dry(n)) for n in (100, 1000))  # noqa: B023, called at once
    assert many < 12 * few


def test_without_notebooks_the_command_says_what_to_clone(call, monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules["dmlstudy"], "__file__", str(tmp_path / "site/dmlstudy/__init__.py"))
    status, _, complaint = call("run", "--profile", "drill")
    assert status == 2 and "call dmlstudy in a clone of the project" in complaint
    assert not (tmp_path / "outputs").exists()


def test_a_full_disk_says_where_to_look(call, monkeypatch, tmp_path):
    def write(args):
        "Write"
        with open("/dev/full", "w") as file:
            file.write("x")

    monkeypatch.setitem(cli.COMMANDS, "list", (write, ""))
    status, _, complaint = call("list")
    assert status == 2 and "No space left on device (nothing says which file" in complaint
    assert str(tmp_path / "outputs") in complaint


def test_data_prepare_unpacks_what_it_is_given(call, tmp_path):
    from miniatures import build, cub

    build("cifar10", "python", tmp_path / "root")
    status, told, _ = call("data", "prepare", "cifar10", "--root", str(tmp_path / "root"))
    assert status == 0 and "held in memory" in told
    cub(tmp_path / "source/CUB_200_2011", True)
    with tarfile.open(tmp_path / "CUB_200_2011.tgz", "w:gz") as tar:
        tar.add(tmp_path / "source", ".")
    words = [
        "data",
        "prepare",
        "cub200",
        "--root",
        str(tmp_path / "root"),
        "--archive",
        str(tmp_path / "CUB_200_2011.tgz"),
    ]
    status, _, complaint = call(*words)
    assert status == 2 and "the official file has 97eceeb196236b17998738112f37df78" in complaint
    status, told, _ = call(*words, "--no-strict", "--decoded")
    assert status == 0 and "15 files; " in told and "not the official file" in told and "SHA256" in told
    assert (tmp_path / "root/cub200/CUB_200_2011/decoded_256.json").is_file()
    root = ("cub200", "--root", str(tmp_path / "root"))
    next((tmp_path / "root/cub200/CUB_200_2011").rglob("*.jpg")).write_bytes(b"no picture")
    status, _, complaint = call("data", "prepare", *root)
    assert status == 2 and "leave such images out: strict=False, or --no-strict" in complaint
    status, told, _ = call("data", "prepare", *root, "--no-strict")
    assert status == 0 and told.count("left out: ") == 1 and ".jpg (" in told
    status, _, complaint = call("data", "check", "cub200", "--archive", "x.tgz")
    assert status == 2 and "--archive and --download go with" in complaint


def test_a_home_that_nobody_knows_is_a_sentence(call, monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # whom no list of users knows
    status, _, complaint = call("data", "check", "cub200", "--root", "~/data")
    assert status == 2 and "Could not determine home directory. Write paths out in full" in complaint


@pytest.mark.slow
def test_exit_status_of_the_process(tmp_path):
    code = "import sys; from dmlstudy.cli import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    for words, expected in (("list", 0), ("run --profile smok", 2)):
        call = [sys.executable, "-c", code, *words.split()]
        assert subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True).returncode == expected


def test_help_needs_nothing_but_python(tmp_path):
    """Options are read before anything heavy is imported, and a missing package is a sentence."""
    parts = "numpy torch pandas scipy filelock papermill matplotlib IPython tqdm PIL".split()
    block = f"import sys\nsys.modules.update(dict.fromkeys({parts}))\n"
    code = block + "from dmlstudy.cli import main\ntry: main()\nfinally: print(len(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    ask = lambda *words: subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    for words in (["--help"], ["run", "--help"]):
        found = ask(*words)
        assert found.returncode == 0 and found.stdout.startswith("usage: dmlstudy"), found.stderr
        assert int(found.stdout.splitlines()[-1]) < 400  # modules, those of Python's start included
    found = ask("list")
    assert "pip install 'dmlstudy[study]'" in found.stderr and "Traceback" not in found.stderr


def test_settings_name_the_command():
    settings = (Path(cli.__file__).parents[1] / "settings.ini").read_text()
    assert "console_scripts = dmlstudy=dmlstudy:main" in settings


def test_tune_keeps_what_was_chosen_for_rows_without_trials_here(call, monkeypatch, tmp_path):
    """All but the one row that was asked for was taken out of the file of choices."""
    from dmlstudy.study import search

    before = {"glyphs_fine": {"ArcFace": {"lr": 1.0}, "Softmax": {"lr": 2.0}}}
    (file := tmp_path / "tuned_glyphs.json").write_text(json.dumps(before))
    place = lambda name: file if name == file.name else asset(name)
    monkeypatch.setattr("dmlstudy.core.paths.asset", place)
    monkeypatch.setattr("dmlstudy.study.config.asset", place)
    monkeypatch.setattr("dmlstudy.study.executor.run_batch", lambda runs, jobs: [])
    monkeypatch.setattr(search, "chosen_by_search", lambda profile, trials: {"glyphs_fine": {"Softmax": {"lr": 3.0}}})
    status, told, _ = call("tune", "--methods", "Softmax")
    assert status == 0 and told.count(f"chosen so far: {file}") == 2
    assert json.loads(file.read_text()) == {"glyphs_fine": {"ArcFace": {"lr": 1.0}, "Softmax": {"lr": 3.0}}}
    status, _, wrong = call("tune", "--methods", "Proxy-Anchor")
    assert status == 2 and "There is no method of profile glyphs 'Proxy-Anchor'" in wrong


def test_trials_that_were_searched_are_known(monkeypatch):
    """Those of the glyphs, measured at other steps than today's runs, were all to be trained again."""
    monkeypatch.delenv("DMLSTUDY_ROOT", raising=False)
    for name, profile in PROFILES.items():
        if profile.search and records.batch_file(f"{name}_search").is_file():
            known = {record["key"] for record in records.each_record(f"{name}_search", ["key"])}
            assert known == {run.key() for run in all_runs(jobs_of(name, ["search"], **profile.trial_draws))}, name


def test_a_dry_run_asks_for_no_data_that_nothing_needs(call, monkeypatch):
    """A complete batch was called impossible without its images."""
    (run, *_) = all_runs(jobs_of("cars_official"))
    records.save_record({"key": run.key(), "run": vars(run), "curves": {}, "made": {"seconds": 1.0}})
    words = "run --profile cars_official --dry-run --seeds".split()
    only = ["--methods", run.method]
    status, told, _ = call(*words, str(run.seed), *only)
    assert (status, "0 runs on" in told, "not possible" in told) == (0, True, False)
    status, told, _ = call(*words, str(run.seed + 1), *only)
    assert status == 1 and "not possible as it is: cars196_crops was not found" in told


def test_what_a_run_needs_of_a_worker_is_a_number(call):
    status, _, wrong = call("run", "--profile", "smoke", "--scheduler", "tcp://127.0.0.1:1", "--resources", "GPU")
    assert status == 2 and "--resources are names with a number each, such as GPU=1; got 'GPU'" in wrong


def test_methods_that_nothing_trains_are_no_success(call):
    status, _, wrong = call("run", *"--profile glyphs --experiments switch --methods ArcFace --dry-run".split())
    assert status == 2 and "nothing that was asked for trains these methods: see dmlstudy list" in wrong


def test_a_folder_is_studied_alone(call, tmp_path):
    """It was trained for hours before the other data set was refused."""
    status, _, wrong = call("run", "--datasets", f"folder:{tmp_path}", "grocery", "--methods", "Softmax", "--dry-run")
    assert status == 2 and "a folder of images is studied alone" in wrong


def test_replicates_that_no_search_was_made_for_are_refused(call):
    words = "run --profile omniglot_redrawn --methods SHT --experiments objectives --dry-run --replicates"
    assert "no search has chosen for 1 rows: dmlstudy tune --profile omniglot_redrawn" in call(*words.split(), "30")[2]
    assert "no search has chosen" not in call(*words.split(), "10")[2]
