"""What a GPU is needed for, in minutes that are limited: its tests, the time of a step, runs of a profile in order.

python tools/gpu.py times | runs PROFILE [--experiments A B] [--methods "A; B"] [--processes 6] [--seconds 500]

`runs` trains what is missing, replicate by replicate, several runs side by side on each GPU, and stops in time: what
has ended is kept in outputs/records, what has not is left out. Tests: `python -m pytest -m gpu`.
"""

import argparse
import json
import time

from dmlstudy import batch, records, study


def times() -> None:
    "Milliseconds of a step of the whole network on 112 images of 128 pixels, and of an evaluation of 8,131 embeddings"
    import torch

    from dmlstudy.losses import make_loss
    from dmlstudy.metrics import evaluate
    from dmlstudy.models import make_model
    from dmlstudy.train.state import metrics_of

    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    x, y = torch.randn(112, 3, 128, 128, device="cuda"), torch.arange(112, device="cuda") // 2
    loss = make_loss("multisimilarity", 98, 128).cuda()
    for precision, layout in (("float32", "contiguous"), ("float32", "channels_last"), ("bf16", "channels_last")):
        model = make_model("efficientnet_lite0", 128, "imagenet").cuda()
        images = x
        if layout == "channels_last":
            model, images = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
        for step in range(60):
            if step == 20:
                torch.cuda.synchronize()
                began = time.perf_counter()
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
                f = model(images).float()
            optimizer.zero_grad()
            loss(f, y).backward()
            optimizer.step()
        torch.cuda.synchronize()
        print(f"step, {precision}, {layout}: {(time.perf_counter() - began) * 25:.1f} ms")
    f, labels = torch.randn(8131, 128, device="cuda"), torch.arange(8131, device="cuda") % 98
    for names in (("recall@1", "map@r"), ("nmi",), ("rho", "intra"), metrics_of("cars196_crops")["test"]):
        evaluate(f, labels, names, progress=False)
        began = time.perf_counter()
        evaluate(f, labels, names, progress=False)
        print(f"evaluation of {len(names)}, such as {names[0]}: {(time.perf_counter() - began) * 1e3:.0f} ms")


def train(args: argparse.Namespace) -> None:
    "Runs in the order of replicates or seeds, until they are all there or the time is over"
    end, chosen = time.monotonic() + args.seconds, [m.strip() for m in args.methods.split(";") if m.strip()]
    runs = study.all_runs(study.jobs_of(args.profile, args.experiments, methods=chosen))
    todo = [run for run in runs if records.load_record(run) is None]
    print(f"{len(runs)} runs, {len(todo)} to train", flush=True)
    try:
        with batch.Workers(args.processes * max(len(batch._devices()), 1)) as pool:
            tasks = [(run, batch.places(), None, args.processes) for run in todo]
            for done in pool.each(batch._work, tasks):
                if done and (error := done[1].exception()):
                    print(done[0][0].method, "failed:", error, flush=True)
                if time.monotonic() > end:
                    raise TimeoutError
    except TimeoutError:
        print("the time is over")
    found = [record for run in todo if (record := records.own_record(run))]
    records.merge_records(records.batch_file(args.profile), found)
    seconds = sorted(record["made"]["seconds"] for record in found)
    print(json.dumps({"trained": len(found), "left": len(todo) - len(found), "seconds of a run": seconds}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["times", "runs"])
    parser.add_argument("profile", nargs="?", choices=[*study.PROFILES])
    parser.add_argument("--experiments", nargs="*", default=())
    parser.add_argument("--methods", default="")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    args = parser.parse_args()
    times() if args.what == "times" else train(args)
