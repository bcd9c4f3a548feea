"""The page in a real browser: what people do with it, in headless Chromium."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spaceform.report.contents import compute
from spaceform.report.page.page import render
from spaceform.report.records import collect

pytestmark = pytest.mark.slow

CLASSES = ("<script>alert(1)</script>", *"123456789")


@pytest.fixture(scope="module")
def html(tmp_path_factory, make_study) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    make_study(folder / "s", heads=("standard", "hyperbolic", "cosine", "vmf"), classes=CLASSES, items=400)
    path = folder / "report.html"
    path.write_text(render(compute(collect([folder / "s"]))), "utf-8")
    return path


@pytest.fixture(scope="module")
def papers(tmp_path_factory, make_study) -> Path:
    """All of the paper's columns: its widest tables, with its numbers beside ours."""
    folder = tmp_path_factory.mktemp("papers")
    heads = ("standard", "power_spherical")
    for name in ("mnist", "fashion-mnist", "cifar10", "cifar100"):
        make_study(folder / name, heads=heads, data=name, items=60, noise=3)
    path = folder / "report.html"
    path.write_text(render(compute(collect(sorted(folder.iterdir())))), "utf-8")
    return path


def settle(page) -> None:
    """Until what was asked for is painted."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def until(page, condition: str) -> None:
    """Wait for a condition; the page's own policy forbids the evaluated strings of `wait_for_function`."""
    end = time.monotonic() + 300
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)


def painted(page, panel: int = 0) -> int:
    """Pixels of a panel's points."""
    return page.evaluate(
        """panel => {
            const pixels = viewers[0].clouds[panel].image.data;
            let count = 0;
            for (let i = 3; i < pixels.length; i += 4) count += pixels[i] > 0;
            return count;
        }""",
        panel,
    )


def show_viewer(page) -> None:
    page.locator(".clouds").first.scroll_into_view_if_needed()
    until(page, "Boolean(viewers[0].clouds[0].image)")
    settle(page)


def test_a_table_sorts_both_ways_with_missing_values_last(opened) -> None:
    page = opened()
    table = page.locator("table.sortable").first
    page.evaluate("""() => { const cell = document.querySelector('table.sortable tbody tr').cells[1];
        cell.dataset.value = ''; cell.textContent = '—'; }""")
    header = table.locator("th[data-column='1']")

    def column() -> list[str]:
        return table.locator("tbody tr td:nth-child(2)").evaluate_all("all => all.map(x => x.dataset.value)")

    for direction, sign in (("descending", -1), ("ascending", 1)):
        header.locator("button").click()
        assert header.get_attribute("aria-sort") == direction
        values = column()
        assert values[-1] == ""
        numbers = [sign * float(value) for value in values[:-1]]
        assert numbers == sorted(numbers)
    table.locator("th[data-column='0'] button").click()
    names = table.locator("tbody th").evaluate_all("all => all.map(x => x.dataset.value)")
    assert names == sorted(names)


def test_classes_and_heads_toggle(opened) -> None:
    page = opened()
    show_viewer(page)
    before = painted(page)
    chip = page.locator(".classes .chip").nth(3)
    chip.click()
    settle(page)
    assert chip.get_attribute("aria-pressed") == "false"
    assert painted(page) < before
    page.locator("[data-act=none]").click()
    settle(page)
    assert painted(page) == 0
    page.locator("[data-act=all]").click()
    settle(page)
    assert painted(page) == before
    assert page.locator(".cloud:visible").count() == 4
    page.locator(".viewer [data-head='1']").click()
    assert page.locator(".cloud:visible").count() == 3
    assert page.locator(".classes .chip").first.inner_text() == "<script>alert(1)</script>"


def test_points_turn_by_mouse_and_keys_and_come_back(opened) -> None:
    page = opened()
    show_viewer(page)

    def screen() -> list[float]:
        return page.evaluate("Array.from(viewers[0].clouds[0].screen)")

    start = screen()
    canvas = page.locator("canvas.view").first
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 120, steps=4)
    page.mouse.up()
    settle(page)
    assert np.abs(np.subtract(screen(), start)).max() > 10
    page.locator("[data-act=reset]").click()
    settle(page)
    assert np.allclose(screen(), start)
    canvas.focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert np.abs(np.subtract(screen(), start)).max() > 3
    rotation = np.array(page.evaluate("viewers[0].rotation")).reshape(3, 3)
    assert np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-9)
    page.locator("[data-view=emitted]").click()
    settle(page)
    assert page.evaluate("viewers[0].view") == "emitted"


def test_hover_names_the_item_and_shows_its_image(opened) -> None:
    page = opened()
    show_viewer(page)
    box = page.locator("canvas.view").nth(2).bounding_box()
    x, y, i = page.evaluate(
        """() => {
            const { depth, screen, ratio } = viewers[0].clouds[2], best = depth.indexOf(Math.max(...depth));
            return [screen[2 * best] / ratio, screen[2 * best + 1] / ratio, best]; }"""
    )
    page.mouse.move(box["x"] + x, box["y"] + y)
    tip = page.locator(".tip")
    tip.wait_for(state="visible")
    assert page.evaluate("viewers[0].focus") == i
    text = tip.inner_text()
    assert CLASSES[i % 10] in text
    assert f"item {i}" in text
    assert "p = " in text
    assert "‖z‖ = " in text
    until(page, "Boolean(viewers[0].sheet && viewers[0].sheet.complete)")
    settle(page)
    shown = page.evaluate(
        """() => { const canvas = document.querySelector('.tip canvas');
            return Array.from(canvas.getContext('2d').getImageData(0, 0, 8, 8).data); }"""
    )
    from spaceform.report.figures.images import open_pictures

    picture = open_pictures("digits").thumbnails(np.array([i]))[0, ..., 0].astype(int)
    assert np.abs(np.reshape(shown, (8, 8, 4))[..., 0] - picture).max() <= 8
    page.evaluate("document.querySelector('.tip b').textContent = 'Endlos'.repeat(30)")
    assert tip.evaluate("it => it.scrollWidth <= it.clientWidth")
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    tip.wait_for(state="hidden")


def test_dark_by_preference_and_by_button(opened) -> None:
    page = opened(scheme="dark")

    def brightness() -> float:
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in color.strip("rgb()").split(",")) / 3

    def ink() -> str:
        return page.evaluate("getComputedStyle(document.querySelector('.chart svg text')).fill")

    assert brightness() < 40
    dark_ink = ink()
    page.emulate_media(media="print")
    assert brightness() == 255
    page.emulate_media(media="screen")
    assert brightness() < 40
    page.locator("#theme").click()
    assert brightness() > 220
    assert ink() != dark_ink
    page.locator("#theme").click()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert brightness() > 220
    assert page.evaluate("viewers[0].surface") == [255, 255, 255]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert ink() == dark_ink
    assert page.evaluate("viewers[0].surface") != [255, 255, 255]


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_screens_do_not_scroll_sideways(opened, width) -> None:
    page = opened(width=width)
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def too_wide(page) -> list[str]:
    """Tables that do not fit, with all evidence open."""
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    settle(page)
    return page.evaluate(
        """Array.from(document.querySelectorAll('.scroll'))
            .filter(box => box.scrollWidth > box.clientWidth + 1)
            .map(box => box.closest('[id]').id + (box.querySelector('table').id || ''))"""
    )


def test_every_table_can_be_read_on_a_laptop_and_says_where_it_scrolls_on_a_phone(opened, papers) -> None:
    assert too_wide(opened(width=1280)) == []
    assert too_wide(opened(width=1280, path=papers)) == []
    page = opened(width=390, path=papers)
    wide = too_wide(page)
    assert wide
    assert page.locator(".scroll[data-more]").count() == len(wide)
    said = page.evaluate("getComputedStyle(document.querySelector('.scroll[data-more]'), '::before').content")
    assert "Scroll sideways" in said


def test_embeddings_are_drawn_before_anyone_scrolls(opened) -> None:
    page = opened()
    assert page.evaluate("scrollY") == 0
    assert page.locator(".clouds").bounding_box()["y"] > 900
    assert min(painted(page, panel) for panel in range(4)) > 100


def test_paper_shows_what_is_folded_and_the_screen_folds_it_again(opened) -> None:
    page = opened()
    page.locator(".card summary").first.click()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.evidence:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.evidence[open]").count() == 1


def test_evidence_is_one_click_away(opened) -> None:
    page = opened()
    card = page.locator("article.card").first
    assert not card.locator("table").is_visible()
    card.locator("summary").click()
    assert card.locator("table").is_visible()
    assert card.locator("tbody tr").count() == 4


def test_the_picture_shows_one_goal_at_a_time(opened) -> None:
    page = opened()
    figures, buttons = page.locator(".picture figure"), page.locator(".picture [data-panel]")
    assert figures.count() == buttons.count() == 2
    assert [figures.nth(i).is_visible() for i in range(2)] == [True, False]
    buttons.nth(1).focus()
    page.keyboard.press("Enter")
    assert [figures.nth(i).is_visible() for i in range(2)] == [False, True]
    assert [buttons.nth(i).get_attribute("aria-pressed") for i in range(2)] == ["false", "true"]
    page.emulate_media(media="print")
    assert [figures.nth(i).is_visible() for i in range(2)] == [True, True]


def test_other_weights_recommend_the_head_of_least_weighted_loss(opened) -> None:
    page = opened()
    form = page.locator(".weights")
    losses = page.evaluate("JSON.parse(document.getElementById('digits-losses').textContent)")
    sliders, status = form.locator("input"), form.locator("[role=status]")
    assert sliders.count() == len(losses["goals"]) == 2
    labels = [head["label"] for head in losses["heads"]]
    headline = page.locator("header .verdict").inner_text()
    assert status.inner_text() == headline
    assert headline.startswith(f"Choose {labels[losses['choice']]}")
    for shares in ((100, 0), (0, 100), (50, 50)):
        for i, share in enumerate(shares):
            sliders.nth(i).fill(str(share))
        loss = np.array(shares) / sum(shares) @ np.array([goal["loss"] for goal in losses["goals"]])
        order = [labels[i] for i in np.argsort(loss, kind="stable")]
        assert status.inner_text() == f"With these weights choose {order[0]}."
        assert form.locator("tbody th").all_inner_texts() == order
        shown = [float(text) for text in form.locator("tbody td").all_inner_texts()]
        assert np.allclose(shown, sorted(loss), atol=0.0051)
    sliders.nth(0).focus()
    page.keyboard.press("ArrowLeft")
    assert form.locator("output").first.inner_text() == "49"
    for i in range(2):
        sliders.nth(i).fill("0")
    assert status.inner_text() == "Give at least one goal a weight."
    form.locator("[type=reset]").click()
    until(page, "document.querySelector('.weights [role=status]').textContent.startsWith('Choose ')")
    assert status.inner_text() == headline


def test_weights_of_the_study_are_kept_whatever_they_are(tmp_path, make_study, opened) -> None:
    study = make_study(tmp_path / "s", heads=("standard", "cosine"), items=200)
    for job in study.jobs:  # with a calibrator there are three goals above chance, of weights 4, 3 and 0.1
        file = study.path(job) / "metrics.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "calibrator": "temperature"}))
    path = tmp_path / "report.html"
    path.write_text(render(compute(collect([tmp_path / "s"]))), "utf-8")
    page = opened(path=path)
    sliders = page.locator(".weights input")
    assert [sliders.nth(i).input_value() for i in range(sliders.count())] == ["56", "42", "1"]
    said = page.locator(".weights [role=status]").inner_text()
    assert said == page.locator("header .verdict").inner_text()


def processor_time(page) -> Callable[[], float]:
    """Seconds that the page's own thread has worked: other processes of the machine do not count."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        return float(found["TaskDuration"])

    return spent


def test_the_size_of_mnist_is_light_and_quick(tmp_path, make_study, opened) -> None:
    labels, index = np.arange(10_000) % 10, np.arange(10_000)
    if os.environ.get("SPACEFORM_DATA"):
        from spaceform import data

        mnist = data.load("mnist", download=False)
        part = data.split(mnist).test
        labels, index = mnist.labels[part].numpy(), part.numpy()
    heads = ("standard", "hyperbolic", "cosine", "arcface", "vmf")
    make_study(tmp_path / "s", heads=heads, seeds=1, data="mnist", labels=labels, index=index)
    path = tmp_path / "report.html"
    path.write_text(render(compute(collect([tmp_path / "s"]))), "utf-8")
    assert path.stat().st_size < 8_000_000
    page = opened(path=path)  # the first visit warms the browser up
    spent = processor_time(page)
    waits = []
    for _ in range(3):
        page.reload()  # which sets the count to zero
        page.wait_for_selector("html[data-ready]")
        waits.append(spent())
    assert 0.05 < min(waits) < 2.0
    show_viewer(page)
    assert painted(page) > 1000
    began = spent()
    page.evaluate("() => { for (const cloud of viewers[0].clouds) cloud.draw(); }")
    assert spent() - began < 1.0


def test_many_classes_are_found_by_name_and_absent_ones_not_listed(tmp_path, make_study, opened) -> None:
    classes = [f"bird {i}" for i in range(60)]
    make_study(tmp_path / "s", heads=("cosine",), classes=classes, labels=np.arange(300) % 30, dim=4)
    path = tmp_path / "report.html"
    path.write_text(render(compute(collect([tmp_path / "s"]))), "utf-8")
    page = opened(path=path)
    chips = page.locator(".classes .chip")
    assert chips.count() == 30
    page.locator("input[type=search]").fill("bird 2")
    assert chips.all_inner_texts() == ["bird 2", *(f"bird {i}" for i in range(20, 30))]
    chips.first.click()
    page.locator("input[type=search]").fill("")
    assert chips.nth(2).get_attribute("aria-pressed") == "false"
