"""What a GPU is needed for, in minutes that are limited: the time of a step, and runs of a profile in their order.

python tools/gpu.py times [PROFILE] [--processes 6]
python tools/gpu.py runs PROFILE [--experiments A B] [--rates] [--processes 3] [--seconds 500]

`runs` trains what is missing, replicate by replicate, several runs side by side on each GPU, and stops in time: what
has ended is kept in outputs/records, what has not is left out. `--rates` first makes the trials of experiment `rates`,
and takes for each protocol the rate at which they reach the highest recall@1 on validation classes (mean over their
methods, each at its best evaluation). Tests: `python -m pytest -m gpu`.
"""

import argparse
import json
import time
from dataclasses import replace
from multiprocessing import get_context

from dmlstudy.study import config, records
from dmlstudy.study import executor as batch
from dmlstudy.study import plan as study
from dmlstudy.study.methods import METHODS


def _timed(run, barrier, out) -> None:
    "In a process of its own: milliseconds of a step, and of an evaluation, while the others do the same"
    import torch

    from dmlstudy.train import measure, train_steps
    from dmlstudy.train.state import resolve

    state = resolve(run, torch.device("cuda"))
    batches, found = state.feed.stream(state.sampler, 0, run.steps), []
    train_steps(state, batches, 20)
    for part in (lambda: train_steps(state, batches, 80), lambda: measure(state)):
        torch.cuda.synchronize()
        barrier.wait()
        began = time.perf_counter()
        part()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    out.put((1e3 * found[0] / 60, 1e3 * found[1], torch.cuda.get_device_name(), torch.__version__))


def times(args: argparse.Namespace) -> None:
    "How long a step takes alone, and where several runs share the GPU"
    profile = args.profile or "cars_whole"
    run = study.all_runs(study.jobs_of(profile, ["objectives"]))[0]
    run, context = replace(run, steps=1000, eval_every=1000), get_context("spawn")
    for n in dict.fromkeys((args.processes, 1)):
        barrier, out = context.Barrier(n), context.Queue()
        workers = [context.Process(target=_timed, args=(run, barrier, out)) for _ in range(n)]
        for one in workers:
            one.start()
        steps, measured, name, version = zip(*[out.get() for _ in workers], strict=True)
        print(f"{name[0]}, torch {version[0]}, {n} at once: {max(steps) / n:.1f} ms a step of {run.method}, ", end="")
        print(f"{max(measured) / n:.0f} ms an evaluation, each divided by {n}", flush=True)


def best_rates(profile: str) -> dict[str, float]:
    "Protocol -> the rate of its trials that is best on validation classes"
    score: dict[tuple[str, float], list[float]] = {}
    for run in study.all_runs(study.jobs_of(profile, ["rates"])):
        curve = records.load_record(run)["curves"]["validation"]["recall@1"]
        score.setdefault((METHODS[run.method].protocol, run.lr), []).append(max(curve))
    means = {at: sum(values) / len(values) for at, values in score.items()}
    print({f"{protocol}, {lr:g}": round(mean, 4) for (protocol, lr), mean in means.items()})
    return {part: max((m, lr) for (p, lr), m in means.items() if p == part)[1] for part, _ in means}


def train(args: argparse.Namespace) -> None:
    "Runs in the order of replicates or seeds, until they are all there or the time is over"
    end, profile, asked = time.monotonic() + args.seconds, args.profile, []

    def plan(*experiments: str, **rates: float) -> list:
        runs = study.all_runs(study.jobs_of(profile, experiments))
        at = lambda run: {"lr": rates[METHODS[run.method].protocol], "replicate": run.replicate}
        return [config.run_of(profile, r.dataset, r.method, r.seed, **at(r)) for r in runs] if rates else runs

    def each(runs: list) -> None:
        asked.extend(runs)
        todo = [run for run in runs if records.load_record(run) is None]
        print(f"{len(runs)} runs, {len(todo)} to train", flush=True)
        for done in pool.each(batch._work, [(run, batch.worker_folders(), None, args.processes) for run in todo]):
            if done and (error := done[1].exception()):
                print(done[0][0].method, "failed:", error, flush=True)
            if time.monotonic() > end:
                raise TimeoutError

    try:
        with batch.Workers(args.processes * max(len(batch._devices()), 1)) as pool:
            if args.rates:
                each(plan("rates"))
            each(plan(*args.experiments, **(best_rates(profile) if args.rates else {})))
    except TimeoutError:
        print("the time is over")
    found = [record for run in asked if (record := records.own_record(run))]
    records.merge_records(records.batch_file(profile), found)
    seconds = [record["made"]["seconds"] for record in found]
    print(json.dumps({"recorded": len(found), "asked": len(asked), "seconds of a run": seconds}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["times", "runs"])
    parser.add_argument("profile", nargs="?", choices=[*config.PROFILES])
    parser.add_argument("--experiments", nargs="*", default=())
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    args = parser.parse_args()
    times(args) if args.what == "times" else train(args)
