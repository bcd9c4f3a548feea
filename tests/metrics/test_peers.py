"""Agreement with other packages, on random and adversarial inputs, to 1e-6."""

import warnings

import numpy as np
import pytest
import torch

from reference import metric_loops as loops
from reference.peers import peer
from spaceform.calibrators import TemperatureScaling
from spaceform.geometry import Euclidean, Sphere
from spaceform.metrics import aurc, auroc, brier, calibration_error, ood_auroc, ood_fpr, retrieval

pytestmark = pytest.mark.slow

NORMS = ("l1", "l2", "max")


def random_data(n: int, classes: int, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    p = torch.softmax(2 * torch.randn(n, classes, generator=g), -1)
    return p, p.sqrt().multinomial(1, generator=g).squeeze(-1)


def one_hot_data(shift: int):
    y = torch.arange(60) % 4
    return torch.eye(4)[y], (y + shift) % 4


CASES = {
    "random": random_data(1000, 10),
    "binary": random_data(301, 2, 1),
    "three examples": random_data(3, 3, 2),
    "perfect": one_hot_data(0),
    "all wrong": one_hot_data(1),
    "all ties": (torch.full((60, 4), 0.25), torch.zeros(60).long()),
    "one class is right": (random_data(90, 5)[0], torch.full((90,), 3)),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", CASES)
def test_adaptive_calibration_error_of_torch_uncertainty(name, norm):
    theirs = peer("torch_uncertainty.metrics.classification").AdaptiveCalibrationError
    p, y = CASES[name]
    bins = min(15, len(y))  # with fewer examples than bins theirs is NaN
    metric = theirs(task="multiclass", num_classes=p.shape[1], num_bins=bins, norm=norm)
    metric.update(p, y)
    assert calibration_error(p, y, bins, norm=norm).item() == pytest.approx(metric.compute().item(), abs=1e-6)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", CASES)
def test_equal_width_of_torchmetrics(name, norm):
    theirs = peer("torchmetrics.functional.classification").multiclass_calibration_error
    p, y = CASES[name]
    expected = theirs(p, y, num_classes=p.shape[1], n_bins=15, norm=norm).item()
    assert calibration_error(p, y, 15, "equal_width", norm).item() == pytest.approx(expected, abs=1e-6)


TIED = {"perfect", "all wrong", "all ties"}  # netcal refuses equal-mass bins of tied confidences


@pytest.mark.parametrize(
    ("name", "equal_width"), [(n, w) for n in CASES for w in (False, True) if w or n not in TIED]
)
def test_netcal(name, equal_width):
    """Confidence against being right, which netcal takes as a binary problem.

    Its quantile cuts are ours where the bins divide the examples (elsewhere sizes may differ by one).
    """
    theirs = peer("netcal.metrics").ECE(15, equal_intervals=equal_width)
    p, y = CASES[name]
    n = len(y) - len(y) % 15 or len(y)
    p, y = p[:n].double(), y[:n]
    expected = theirs.measure(p.amax(-1).numpy(), (p.argmax(-1) == y).long().numpy())
    binning = "equal_width" if equal_width else "equal_mass"
    assert calibration_error(p, y, 15, binning, "l1").item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_scikit_learn(name):
    sklearn = peer("sklearn.metrics")
    p, y = (x.double() if x.is_floating_point() else x for x in CASES[name])
    if p.shape[1] > 2:
        p = p / p.sum(-1, keepdim=True)
        expected = sklearn.brier_score_loss(y, p, labels=range(p.shape[1]))
        assert brier(p, y).item() == pytest.approx(expected, abs=1e-6)
    score, correct = p.amax(-1), p.argmax(-1) == y
    if 0 < correct.sum() < len(y):
        expected = sklearn.roc_auc_score(correct, score)
        assert auroc(score, correct).item() == pytest.approx(expected, abs=1e-12)
        inside, outside = score[correct], score[~correct]
        fpr, tpr, _ = sklearn.roc_curve(correct, score, drop_intermediate=False)
        assert ood_fpr(inside, outside).item() == pytest.approx(fpr[tpr >= 0.95 - 1e-9][0], abs=1e-12)
        assert ood_auroc(inside, outside).item() == auroc(score, correct).item()


def test_area_under_risk_coverage_of_torch_uncertainty():
    """Theirs is the trapezoid from coverage 1/N on, ours the mean: they differ by the curve's ends."""
    theirs = peer("torch_uncertainty.metrics.classification").AURC()
    p, y = (x[:200] for x in CASES["random"])
    theirs.update(p, y)
    score, correct = p.amax(-1), p.argmax(-1) == y
    first, last = float(not correct[score.argmax()]), (~correct).double().mean().item()
    trapezoid = (200 * aurc(score, correct).item() - (first + last) / 2) / 199
    assert trapezoid == pytest.approx(theirs.compute().item(), abs=1e-6)


def accuracy_calculator(z, y, queries=None):
    peer("faiss").omp_set_num_threads(1)
    module = peer("pytorch_metric_learning.utils.accuracy_calculator")
    names = ("mean_average_precision_at_r", "r_precision", "precision_at_1")
    calculator = module.AccuracyCalculator(include=names, k="max_bin_count", device=torch.device("cpu"))
    asked = () if queries is None else (z, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = calculator.get_accuracy(*((z, y) if queries is None else queries), *asked)
    return [found[n] for n in names]


def unit_points(n: int, classes: int, seed: int, noise: float):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    z = torch.randn(classes, 16, generator=g)[y] + noise * torch.randn(n, 16, generator=g)
    return torch.nn.functional.normalize(z, dim=-1), y


@pytest.mark.parametrize("geometry", [Euclidean(), Sphere()], ids=lambda g: type(g).__name__)
@pytest.mark.parametrize(
    ("n", "classes", "noise"),
    [
        (600, 20, 0.5),
        (600, 20, 4.0),
        (400, 150, 0.5),
        (200, 1, 1.0),
        (3, 2, 1.0),
        (120, 2, 2.0),
        (60, 5, 0.01),
    ],
)
def test_accuracy_calculator_of_pytorch_metric_learning(n, classes, noise, geometry):
    """Unit vectors: Euclidean and cosine order are the same, theirs is Euclidean."""
    z, y = unit_points(n, classes, seed=n, noise=noise)
    found = retrieval(z, y, geometry)
    ours = [found.map_at_r, found.r_precision, found.precision_at_1]
    assert ours == pytest.approx(accuracy_calculator(z, y), abs=1e-6, nan_ok=True)
    asked = unit_points(100, classes, seed=n, noise=noise)
    found = retrieval(z, y, geometry, queries=asked)
    ours = [found.map_at_r, found.r_precision, found.precision_at_1]
    assert ours == pytest.approx(accuracy_calculator(z, y, asked), abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("case", ["all ties", "many ties", "all wrong", "perfect"])
def test_with_ties_theirs_lies_between_the_worst_and_the_best_order(case):
    """They break ties by position; ours is the worst order, and the loops know the best."""
    y = torch.arange(40) % 4
    g = torch.Generator().manual_seed(0)
    z = {
        "all ties": torch.ones(40, 3),
        "many ties": torch.randint(3, (40, 2), generator=g).float(),
        "all wrong": torch.eye(10)[torch.arange(40) // 4],
        "perfect": torch.eye(4)[y],
    }[case]
    theirs = accuracy_calculator(z, y)
    found = retrieval(z, y, Euclidean())
    s = Euclidean().pairwise(z.double(), z.double()).tolist()
    best = loops.retrieval(lambda q, i: s[q][i], y.tolist(), y.tolist(), True, (1,), worst=False)
    for low, value, high in zip(
        (found.map_at_r, found.r_precision, found.precision_at_1),
        theirs,
        (*best[:2], best[2][1]),
        strict=True,
    ):
        assert low - 1e-9 <= value <= high + 1e-9


def test_temperature_scaling_is_at_least_as_good_as_theirs():
    scaler = peer("torch_uncertainty.post_processing").TemperatureScaler()
    netcal = peer("netcal.scaling").TemperatureScaling()
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2000, 10, generator=g)
    y = torch.softmax(logits / 1.8, -1).multinomial(1, generator=g).squeeze(-1)
    batch = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(logits, y), batch_size=2000)
    scaler.fit(batch, progress=False)
    ours = TemperatureScaling().fit(logits, y)
    assert ours.temperature == pytest.approx(scaler.temperature[0].item(), rel=0.02)

    def loss(log_probs: torch.Tensor) -> float:
        return torch.nn.functional.nll_loss(log_probs, y).item()

    best = loss(ours(logits.double()))
    assert best <= loss(torch.log_softmax(logits.double() / scaler.temperature[0].item(), -1)) + 1e-12
    p = torch.softmax(logits, -1).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        netcal.fit(p, y.numpy())
    assert best <= loss(torch.from_numpy(np.asarray(netcal.transform(p), dtype=np.float64)).log()) + 1e-9
