"""The commands of one run, from train to export. Arguments in, calls out."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spaceform.cli import verbosity
from spaceform.cli.ray_options import ActorCpus, ActorGpus, Address, Near, cluster
from spaceform.foundation.messages import counted

if TYPE_CHECKING:
    from spaceform.run.finished import Run
    from spaceform.run.predict import Prediction, PredictionPlan
    from spaceform.study.ray import Ray

Finished = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILES",
        help="Images, folders of images, or one file of arrays: .npz with X, .npy, .parquet, .csv.",
    ),
]
Chosen = Annotated[
    str,
    typer.Option(
        "--calibrator",
        help="auto (the one that predictions use: structured, once the run is evaluated), none, temperature, "
        "norm_aware_temperature, vector, isotonic, structured.",
    ),
]

OneRecipeSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value of the recipe, such as optim.lr=0.1; may be given several times.",
    ),
]
Devices = Annotated[int, typer.Option(help="How many processes, one for each device.", min=1)]
Accelerator = Annotated[str, typer.Option(help="auto, cpu, gpu, mps.")]
DecodeWorkers = Annotated[int, typer.Option(help="How many processes decode photos.", min=0)]
Coverage = Annotated[
    float | None,
    typer.Option(help="Add a set of classes that holds the true one with this probability, such as 0.9."),
]
Unknown = Annotated[
    float | None,
    typer.Option(
        help="Mark items of no known class. About this share of the known ones is marked by mistake."
    ),
]


def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A name (mnist/vmf, digits/cosine) or a .toml file.")
    ],
    out: Annotated[Path, typer.Option(help="The run's folder; the same command continues a run there.")],
    settings: OneRecipeSettings = None,
    devices: Devices = 1,
    nodes: Annotated[int, typer.Option(help="How many machines.", min=1)] = 1,
    accelerator: Accelerator = "auto",
    workers: DecodeWorkers = 0,
    shard_classes: Annotated[
        bool, typer.Option("--shard-classes", help="Split the classes over the processes of --devices.")
    ] = False,
    log: Annotated[
        list[str] | None,
        typer.Option(help="Send curves to tensorboard, mlflow or wandb, too; may be given several times."),
    ] = None,
) -> None:
    """Train one run. If it is stopped, the same command continues, and the result is the same.

    Example: spaceform train digits/vmf --set seed=1 --out runs/vmf-1
    """
    from spaceform.cli.endings import trained
    from spaceform.run.progress import ProgressPrinter
    from spaceform.run.recipe import load_recipe
    from spaceform.run.train import train as run_training

    again = (out / "result.json").exists()
    with ProgressPrinter(verbosity.progress_file(), every=verbosity.seconds_between(5.0)) as printer:
        run = run_training(
            load_recipe(recipe, settings or ()),
            out,
            devices=devices,
            nodes=nodes,
            accelerator=accelerator,
            workers=workers,
            shard_classes=shard_classes,
            log=log or (),
            listener=printer,
        )
    typer.echo(trained(out, run.result, again))
    if "note" in run.result:
        print(f"note: {run.result['note']}", file=sys.stderr, flush=True)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    device: Annotated[str, typer.Option(help="cpu, cuda, mps, ...")] = "cpu",
    workers: DecodeWorkers = 0,
) -> None:
    """Measure a run on its test split; writes metrics.json and outputs.npz into its folder.

    Example: spaceform evaluate runs/vmf-1
    """
    from spaceform.run.evaluate import evaluate as measure

    found = measure(run, device=device, workers=workers)
    for name, value in found.items():
        if isinstance(value, dict):
            for part, inner in value.items():
                typer.echo(f"{f'{name}.{part}':36} {_brief(inner)}")
        else:
            typer.echo(f"{name:36} {_brief(value)}")
    typer.echo(f"written: {run / 'metrics.json'}, {run / 'outputs.npz'}")


def predict(
    run: Finished,
    sources: Sources,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .csv or .parquet file.")],
    top: Annotated[int, typer.Option(help="How many classes to write for each item.", min=1)] = 1,
    reject: Annotated[
        float | None, typer.Option(help="Mark items whose class is less probable than this, for a human.")
    ] = None,
    coverage: Coverage = None,
    unknown: Unknown = None,
    calibrator: Chosen = "auto",
    on: Near = "here",
    address: Address = "auto",
    cpus: ActorCpus = 1.0,
    gpus: ActorGpus = 0.0,
) -> None:
    """Classify new data: class, calibrated probability and confidence of every item.

    Example: spaceform predict runs/vmf-1 photos/ --reject 0.9 --top 3 -o predictions.csv
    """
    from spaceform.cli.endings import predicted
    from spaceform.run.finished import Run
    from spaceform.run.predict import PredictionPlan, check_rejection, write_table

    _ends_in(out, ".csv", ".parquet")
    check_rejection(reject)
    plan = PredictionPlan(None if calibrator == "none" else calibrator, coverage, unknown)
    with _predicted(Run.load(run), sources, out, plan, cluster(on, address, cpus, gpus)) as found:
        table = found.table(top=top, reject=reject)
        write_table(table, out)
    typer.echo(predicted(out, found, table))


def embed(
    run: Finished,
    sources: Sources,
    out: Annotated[Path, typer.Option("--out", "-o", help="An .npz or .parquet file.")],
    on: Near = "here",
    address: Address = "auto",
    cpus: ActorCpus = 1.0,
    gpus: ActorGpus = 0.0,
) -> None:
    """Embed new data, for search and for other models.

    The output has `embedding`, `confidence` and `item`; compare embeddings by the geometry that is printed.

    Example: spaceform embed runs/vmf-1 photos/ -o embeddings.npz
    """
    from spaceform.run.finished import Run
    from spaceform.run.predict import PredictionPlan, write_embeddings

    _ends_in(out, ".npz", ".parquet")
    loaded, plan = Run.load(run), PredictionPlan(None)
    with _predicted(loaded, sources, out, plan, cluster(on, address, cpus, gpus)) as found:
        write_embeddings(found, out)
    items, dim = found.embedding.shape
    geometry = type(loaded.model.head.geometry).__name__
    typer.echo(f"{out}: {counted(items, 'embedding')} of dimension {dim}, to be compared by {geometry}")


def match(
    run: Finished,
    a: Annotated[Path, typer.Argument(metavar="A", help="Images or arrays, as for predict.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The items to compare A with.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A .csv file.")],
    every: Annotated[bool, typer.Option("--all", help="Compare each item of A with each of B.")] = False,
    at_least: Annotated[float, typer.Option(help="Write pairs of at least this probability.")] = 0.0,
    false_accept: Annotated[
        float | None,
        typer.Option(
            help="Mark pairs to accept. Of all pairs of different classes, at most this share is accepted."
        ),
    ] = None,
    prior: Annotated[
        float, typer.Option(help="The share of new pairs that you expect to be of one class.")
    ] = 0.5,
) -> None:
    """Say how probable it is that items share a class: row by row, or each with each.

    Example: spaceform match runs/vmf-1 new/ known/ --all --at-least 0.9 -o matches.csv
    """
    from spaceform.run.finished import Run
    from spaceform.run.match import match as compare

    found = compare(
        Run.load(run),
        a,
        b,
        out,
        every=every,
        at_least=at_least,
        false_accept=false_accept,
        prior=prior,
    )
    kept = "" if found.accepted is None else f"; {found.accepted:,} of them to accept"
    typer.echo(f"{out}: {counted(found.written, 'pair')} of {found.compared:,}{kept}")


def suspects(
    run: Finished,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .csv or .parquet file.")],
    angle: Annotated[
        float,
        typer.Option(help="List items farther than this from the centre of their label, in degrees."),
    ] = 75.0,
    workers: DecodeWorkers = 0,
) -> None:
    """List the labels of a run's own data to look at again, the most suspect first.

    The run needs the head subcentre_arcface.

    Example: spaceform suspects runs/subcentre -o suspects.csv
    """
    from spaceform.cli.endings import suspected
    from spaceform.run.predict import write_table
    from spaceform.run.suspects import suspects as find

    _ends_in(out, ".csv", ".parquet")
    table = find(run, angle=angle, workers=workers)
    write_table(table, out)
    typer.echo(suspected(out, table))


def export(
    run: Finished,
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file that ends in .onnx or .pt2 (torch.export).")
    ],
    calibrator: Chosen = "auto",
    draws: Annotated[
        int, typer.Option(help="How many fixed draws a stochastic head predicts from; an even number.", min=2)
    ] = 64,
    coverage: Coverage = None,
    unknown: Unknown = None,
) -> None:
    """Write net, head and calibrator as one graph: probabilities, confidence and embedding.

    With --coverage the graph also has an output `set`, and with --unknown an output `unknown`.

    At the end the file is read back and compared with the run.

    Example: spaceform export runs/vmf-1 model.onnx
    """
    from spaceform.run.export import export as write
    from spaceform.run.export import interface
    from spaceform.run.finished import Run

    loaded, chosen = Run.load(run), None if calibrator == "none" else calibrator
    write(loaded, out, calibrator=chosen, draws=draws, coverage=coverage, unknown=unknown)
    typer.echo(f"{out}: {interface(loaded, chosen, coverage=coverage, unknown=unknown)}")


@contextmanager
def _predicted(
    run: "Run", sources: list[Path], out: Path, plan: "PredictionPlan", on: "Ray | None"
) -> "Iterator[Prediction]":
    """The prediction of a run. Parts that a cluster made are kept beside the output until it is written."""
    from spaceform.run.predict import predict as classify

    if on is None:
        yield classify(run, sources, **asdict(plan))
        return
    from spaceform.run.on_ray import parts_folder, predict_by, remove_parts

    file, folder = verbosity.progress_file() or sys.stderr, parts_folder(out)

    def tell(done: int, parts: int) -> None:
        print(f"{done:,} of {parts:,} parts", file=file, flush=True)

    yield predict_by(on, run, sources, folder, plan, tell=tell)
    remove_parts(folder)


def _ends_in(path: Path, *endings: str) -> None:
    if path.suffix not in endings:
        raise ValueError(f"the output must end in {' or '.join(endings)}, got {str(path)!r}")


def _brief(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {_brief(inner)}" for name, inner in value.items())
    return f"{value:.4f}" if isinstance(value, float) else str(value)
