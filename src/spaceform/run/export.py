"""A run as one graph for other programs: inputs in; probabilities, confidence and the embedding out.

The graph holds the z-score of pixels, the net, the head and, if the run was evaluated, its calibrator. These
are the same modules that predict in Python. Stochastic heads predict from fixed draws, so the same input
gives the same output everywhere. The batch may have any size. With a coverage the graph also gives the set of
classes of each item; with a share to refuse, it says whether an item is unknown.
"""

import io
import json
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from spaceform.data import Photos
from spaceform.decisions import PredictionSets, Refusal, UnknownScore
from spaceform.heads.base import log_mean_softmax
from spaceform.heads.stochastic import StochasticHead
from spaceform.run import files
from spaceform.run.extraction import photos_of
from spaceform.run.finished import Run
from spaceform.run.model import reach_of
from spaceform.run.predictor import Predictor

OUTPUTS = ("probabilities", "confidence", "embedding")


@final
class Graph(nn.Module):
    """The module that is exported: a batch of inputs in, (probabilities, confidence, embedding) out.

    `before` turns inputs into what the net takes: the z-score of pixels, or the features of a pretrained net.
    After the three outputs come the set of classes and "unknown", if their modules are given. Both use the
    head's probabilities as trained, as their promises do.
    """

    def __init__(
        self,
        net: nn.Module,
        predictor: Predictor,
        before: nn.Module | None = None,
        *,
        sets: PredictionSets | None = None,
        judge: UnknownScore | None = None,
        refusal: Refusal | None = None,
    ) -> None:
        super().__init__()
        self.before = before if before is not None else nn.Identity()
        self.net = net
        self.predictor = predictor
        self.sets = sets
        self.judge = judge
        self.refusal = refusal

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""
        more = {"set": self.sets, "unknown": self.refusal}
        return *OUTPUTS, *(name for name, module in more.items() if module is not None)

    def forward(self, inputs: Float[Tensor, "batch *shape"]) -> tuple[Tensor, ...]:
        x = self.before(inputs)
        z = self.net(x)
        samples = self.predictor.head.logit_samples(z)
        found: tuple[Tensor, ...] = (*self.predictor.of_samples(samples, z), z)
        if self.sets is not None:
            found += (self.sets(log_mean_softmax(samples).exp()),)
        if self.judge is not None and self.refusal is not None:
            found += (self.refusal(self.judge(z, samples, reach=reach_of(self.net, x))),)
        return found


def graph(
    run: Run,
    *,
    calibrator: str | None = "auto",
    draws: int | None = None,
    coverage: float | None = None,
    unknown: float | None = None,
) -> Graph:
    """A copy of the run as one module in evaluation mode, on the CPU, in float32.

    Images are float32 in 0..1, at the size that the net takes: photos must be resized and cropped before.
    `calibrator` is one of those that `evaluate` fitted, "auto" for the one that it chose, or None for the
    probabilities as trained. With another number of fixed `draws` a stochastic head gives probabilities a
    little different from those of `evaluate`. `coverage` and `unknown` are those of `predict`.
    """
    chosen = run.predictor(calibrator).calibrator
    seen = run.how if run.frozen is None else run.frozen.sight
    before: list[nn.Module] = [] if seen is None or not seen.mean else [_ZScore(seen.mean, seen.std)]
    before += [] if run.frozen is None else [deepcopy(run.frozen.body).cpu()]
    model = deepcopy(run.model).cpu().float()
    if draws is not None and isinstance(model.head, StochasticHead):
        model.head.draws = draws
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            # A table may be a view of a larger one; a saved program needs whole tensors.
            setattr(module, name, buffer.clone(memory_format=torch.contiguous_format))
    narrow = None if chosen is None else deepcopy(chosen).cpu().float()
    sets = None if coverage is None else run.held_out.sets(coverage)
    refusal = None if unknown is None else run.held_out.refusal(unknown)
    judge = None if unknown is None else run.held_out.judge
    predictor = Predictor(model.head, narrow)
    given = nn.Sequential(*before)
    return Graph(model.net, predictor, given, sets=sets, judge=judge, refusal=refusal).eval()


def input_shape(run: Run) -> tuple[int, ...]:
    """The shape of one input of the graph: that of a photo, if the run was trained on features of photos."""
    return run.input_shape if run.frozen is None else (3, run.frozen.sight.size, run.frozen.sight.size)


def interface(
    run: Run, calibrator: str | None = "auto", *, coverage: float | None = None, unknown: float | None = None
) -> str:
    """One line that says what goes into the graph of `export` and what comes out, and its calibrator."""
    one = input_shape(run)
    scale = " of 0 to 1" if len(one) == 3 else ""
    more = {"set": coverage, "unknown": unknown}
    outputs = ["probabilities", "confidence", "embedding", *(name for name in more if more[name] is not None)]
    chosen = run.best_calibrator if calibrator == "auto" else calibrator
    shape = ", ".join(map(str, ("batch", *one)))
    return f"inputs ({shape}){scale}; {', '.join(outputs)}; calibrator: {chosen or 'none'}"


def showing(run: Run) -> dict[str, Any] | None:
    """How a photo becomes an input of the graph, in the terms of Pillow; None if inputs are not photos.

    A JPEG may be decoded at a part of its size, but with at least `draft` pixels on each edge. Then the photo
    is resized to `resize` pixels (its shorter edge, or height and width) by the filter `resampling`, and
    `size` pixels on each edge are cut from the centre. With `square`, the middle square is cut out before the
    photo is resized.
    """
    edge = run.recipe.data.thumbnail
    if edge is not None:
        return {
            "draft": 2 * edge,
            "square": True,
            "resize": [edge, edge],
            "resampling": "bilinear",
            "size": edge,
        }
    how = photos_of(run.frozen.sight) if run.frozen is not None else run.how
    if not isinstance(how, Photos):
        return None
    resize = how.resize if isinstance(how.resize, int) else list(how.resize)
    names = {"draft": how.least, "square": False, "resize": resize}
    return {**names, "resampling": how.resampling, "size": how.size}


def export(
    run: Run | str | Path,
    path: str | Path,
    *,
    calibrator: str | None = "auto",
    draws: int | None = None,
    coverage: float | None = None,
    unknown: float | None = None,
) -> Path:
    """Write a run to `path`: as ONNX if it ends in .onnx, as a torch.export program if it ends in .pt2.

    Inputs that are images are float32 of 0 to 1, channels first. The graph contains the z-score, and also the
    pretrained net if the run was trained on its features. The file also has the names of the classes; for
    photos how they are resized and cropped (`showing`); for a table what each feature is; and for texts the
    net that reads them (the inputs are its features). These are the metadata `classes`, `preprocessing`,
    `columns` and `texts` (JSON) of the ONNX model, or extra files `classes.json`, … of the program.

    With a `coverage` the graph also has an output `set`, which is true for the classes in an item's set. With
    a share `unknown` to refuse, it has an output `unknown`. Both promise the same as in `predict`. At the end
    the file is read back and compared with the model on a batch.
    """
    run = run if isinstance(run, Run) else Run.load(run)
    path = Path(path)
    if path.suffix not in (".onnx", ".pt2"):
        raise ValueError(f"path must end in .onnx or .pt2, got {str(path)!r}")
    module = graph(run, calibrator=calibrator, draws=draws, coverage=coverage, unknown=unknown)
    told = {"classes": json.dumps(run.classes)}
    if (how := showing(run)) is not None:
        told["preprocessing"] = json.dumps(how)
    if run.recipe.data.text is not None:
        told["texts"] = json.dumps({"net": run.recipe.data.features, "weights": run.made_by})
    if run.columns:
        told["columns"] = json.dumps([asdict(column) for column in run.columns])
    example = torch.rand(3, *input_shape(run), generator=torch.Generator().manual_seed(0))
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch copies its own deprecated classes
        # A warning about weights in channels-last memory; the file is read back and compared below.
        warnings.filterwarnings("ignore", message="No complete tensor found in the group")
        program = _traced(module, example)
        if path.suffix == ".pt2":
            archive = io.BytesIO()
            torch.export.save(program, archive, extra_files={f"{k}.json": v for k, v in told.items()})
            files.write_bytes(path, archive.getvalue())
            found = [x.detach().numpy() for x in torch.export.load(path).module()(example)]
        else:
            found = _write_onnx(program, path, example, told, module.outputs)
    with torch.inference_mode():
        for name, ours, theirs in zip(module.outputs, module(example), found, strict=True):
            # The mean, since a curve of isotonic regression may jump where rounding changes a probability.
            own = ours.double().numpy()
            off = float(np.abs(own - theirs).mean() / (1 + np.abs(own).mean()))
            if not off < 1e-4:
                raise RuntimeError(
                    f"{path} was written, but its output {name!r} differs from the model's by {off:.1e}"
                )
    return path


def _traced(module: Graph, example: Tensor) -> torch.export.ExportedProgram:
    batch = {"inputs": {0: torch.export.Dim("batch", min=1)}}
    try:
        return torch.export.export(module, (example,), dynamic_shapes=batch, strict=False)
    except torch._dynamo.exc.UserError as error:
        where = type(module.predictor.head).__name__
        reason = " ".join(line.strip(" -") for line in str(error).splitlines()[:2])
        raise ValueError(
            f"torch cannot make a graph of {where} and its net: {reason} Write z.shape[0], not len(z), and "
            "leave out what depends on values"
        ) from error


def _write_onnx(
    program: torch.export.ExportedProgram,
    path: Path,
    example: Tensor,
    told: dict[str, str],
    outputs: tuple[str, ...],
) -> list[np.ndarray]:
    import onnx
    import onnxruntime
    from onnxscript import opset18 as op

    def signbit(x: Any) -> Any:
        """A part of copysign, which ONNX does not have. −0 counts as positive: nothing depends on it."""
        zero: Any = op.Constant(value_float=0.0)
        return op.Less(x, op.CastLike(zero, x))

    own: dict[Callable[..., Any], Callable[..., Any]] = {torch.ops.prims.signbit.default: signbit}
    made = torch.onnx.export(
        program,
        dynamo=True,
        input_names=["inputs"],
        output_names=list(outputs),
        dynamic_shapes={"inputs": {0: "batch"}},
        custom_translation_table=own,
        verbose=False,
    )
    assert made is not None
    model = made.model_proto
    scale = "of 0 to 1, channels first" if example.ndim == 4 else "as they were trained on"
    for key, value in {**told, "inputs": f"float32, {scale}"}.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.checker.check_model(model)
    files.write_bytes(path, model.SerializeToString())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [np.asarray(x) for x in session.run(list(outputs), {"inputs": example.numpy()})]


@final
class _ZScore(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        return (x - self.mean) / self.std
