"""The page as text: self-contained, escaped, honest about what is missing; and the command that writes it."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

from spaceform.report.contents import compute
from spaceform.report.page.page import render
from spaceform.report.page.viewer import script_json
from spaceform.report.records import collect
from spaceform.study.folder import Failure

pytestmark = pytest.mark.slow

NASTY = ("<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>", 'a"b&c', "$x$", "_hidden")


def attributes(page: str) -> set[str]:
    """The names of all attributes of all elements."""
    found: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, _tag, attrs):
            found.update(name for name, _ in attrs)

    Reader().feed(page)
    return found


def points(page: str) -> dict:
    """What the viewer reads."""
    pattern = r'<script type="application/json" id="[^"]*-points">(.*?)</script>'
    return json.loads(re.search(pattern, page, re.DOTALL)[1])


@pytest.fixture(scope="module")
def page(tmp_path_factory, make_study) -> str:
    folder = tmp_path_factory.mktemp("page")
    make_study(
        folder / "s", heads=("standard", "hyperbolic", "vmf"), classes=NASTY, dim=5, items=120, noise=3
    )
    return render(compute(collect([folder / "s"])))


def test_nothing_is_fetched_and_nothing_foreign_may_run(page) -> None:
    for address in re.findall(r'(?:src|href)="([^"]*)"', page):
        assert address.startswith(("#", "data:")), address
    assert "@import" not in page
    assert "url(http" not in page
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1].replace(
        "&#39;", "'"
    )
    assert policy.startswith("default-src 'none'")
    for tag in ("style", "script"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"<[^>]+\sstyle=", page.split("</style>")[1].split("<script")[0])
    assert not [name for name in attributes(page) if name.startswith("on")]


def test_names_are_text_wherever_they_stand(page) -> None:
    assert page.count("<script>") == 1
    assert "<img src=x" not in page
    data = points(page)
    assert tuple(data["classes"]) == NASTY
    assert json.loads(script_json({"a": "</script><!--\u2028&"})) == {"a": "</script><!--\u2028&"}
    assert "<" not in script_json(["</script>"])


def test_points_come_back_from_their_packing(page) -> None:
    data = points(page)
    head = data["heads"][2]
    xyz = np.frombuffer(base64.b64decode(head["xyz"]), "<i2").reshape(-1, 3) * head["scale"] / 32767
    confidence = np.frombuffer(base64.b64decode(head["confidence"]), "<f4")
    assert head["symbol"] == "κ"
    assert len(xyz) == 120
    assert np.allclose(np.linalg.norm(xyz, axis=1), confidence, rtol=1e-3)
    labels = np.frombuffer(base64.b64decode(data["labels"]), "<u2")
    assert labels.tolist() == [i % 5 for i in range(120)]


def test_advice_carries_its_evidence(page) -> None:
    cards = re.findall(r'<article class="card.*?</article>', page, re.DOTALL)
    goals = [re.search(r'class="eyebrow">([^<]+)', card)[1] for card in cards]
    assert goals == ["Accuracy", "Telling right from wrong by the norm"]
    for card in cards:
        assert card.count("<tr>") == 4
        assert "The evidence" in card
        assert "the best with" in card
        said = " ".join(re.findall(r"<p>(.*?)</p>|class=\"key\">(.*?)</span>", card, re.DOTALL)[0])
        said = re.sub(r"<svg.*?</svg>", "", said)  # a colour has the name of its geometry
        assert re.search("vMF|Standard|Hyperbolic", said)
        assert not re.search(r"\b(vmf|standard|hyperbolic)\b", said)  # titles, not names


def test_missing_pieces_leave_notes_and_a_whole_page(tmp_path, make_study) -> None:
    study = make_study(tmp_path / "s", heads=("standard", "vmf"), seeds=1, data=str(tmp_path / "gone"))
    text = render(compute(collect([study.folder])))
    assert "One seed only, so no error bar: Standard, vMF." in text
    assert "The images cannot be shown: " in text
    assert "There is one seed of each head, so it is not known here how much seeds differ" in text
    for job in study.jobs:
        (study.path(job) / "outputs.npz").unlink()
    text = render(compute(collect([study.folder])))
    assert "standard-seed0, vmf-seed0: no outputs.npz that can be read" in text
    assert "No run has left embeddings to show." in text
    assert "No run has left probabilities to draw from." in text
    for job in study.jobs:
        for name in ("metrics.json", "result.json", "history.jsonl"):
            (study.path(job) / name).unlink()
        study.record_failure(job, Failure("Broken", "it broke: <b>&"))
    text = render(compute(collect([study.folder])))
    assert "failed: it broke: &lt;b&gt;&amp;" in text
    assert "nothing to compare yet" in text
    assert "No run has left its training curve." in text
    assert text.rstrip().endswith("</html>")


def test_a_retrieval_page_and_several_data_sets(tmp_path, make_study) -> None:
    make_study(tmp_path / "a", heads=("standard", "cosine"), task="retrieval")
    make_study(tmp_path / "b", heads=("standard", "cosine"), data="mnist")
    text = render(compute(collect([tmp_path / "a", tmp_path / "b"])))
    assert "Which geometry? digits (retrieval), MNIST" in text
    assert "Table 4 of the paper" in text
    assert "Own metric and cosine at test" in text
    assert "The paper and ours on MNIST" in text
    assert text.count('data-viewer="') == 2
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_the_command_writes_every_file_from_a_real_run(tmp_path) -> None:
    from spaceform.cli.app import app
    from spaceform.run.evaluate import evaluate
    from spaceform.run.recipe import load_recipe
    from spaceform.run.train import train

    settings = ["budget.epochs=2", "budget.episodes=4", "net.dim=3"]
    evaluate(train(load_recipe("digits/cosine", settings), tmp_path / "run"))
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    out = tmp_path / "run" / "report"
    assert result.output.strip() == f"written: {out / 'report.html'}"
    for suffix in ("svg", "pdf", "png"):
        assert len(list((out / "figures").glob(f"*.{suffix}"))) == 9
    for suffix in ("md", "tex", "csv"):
        assert len(list((out / "tables").glob(f"*.{suffix}"))) == 9
    text = (out / "report.html").read_text("utf-8")
    assert "the three coordinates that the net emits" in text.lower()
    assert "Cosine is the only head with a value (" in text
