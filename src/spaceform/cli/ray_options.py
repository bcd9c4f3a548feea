"""The options of commands that can be carried out by the actors of a Ray cluster."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from spaceform.study.ray import Ray

Near = Annotated[
    Literal["here", "ray"], typer.Option("--on", help="In this process, or by actors of a Ray cluster.")
]
Address = Annotated[str, typer.Option(help="The address of the Ray cluster.")]
ActorCpus = Annotated[float, typer.Option(help="CPUs that an actor asks the cluster for.", min=0.1)]
ActorGpus = Annotated[float, typer.Option(help="GPUs that an actor asks the cluster for.", min=0)]


def cluster(on: str, address: str, cpus: float, gpus: float) -> "Ray | None":
    """The cluster that is asked for, or None."""
    import spaceform

    return spaceform.Ray(address, cpus, gpus) if on == "ray" else None
