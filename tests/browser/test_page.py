"""The page in a real browser: what someone does with it, and what they must see."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
CHAIN = (
    "The camera is in Box F. Move the contents of Box F to Box B. "
    "Move the contents of Box B to Box D."
)


def box(page, letter, model="boxes"):
    return page.locator(f'[data-at="{model} {letter}"]')


def holds(page, letter, thing, model="boxes"):
    """Wait until a model says that a box holds a thing, or is empty."""
    page.wait_for_selector(f'[data-at="{model} {letter}"][aria-label^="Box {letter}: {thing}"]')


def arcs(page):
    return page.locator("#arcs .arc.main")


def wait_for_arcs(page, count):
    expect(page.locator("#arcs .arc.main")).to_have_count(count)


def test_a_typed_story_fills_the_boxes(open_page):
    page = open_page()
    page.fill("#text", "")
    expect(page.locator("#sentence")).to_contain_text("No sentence yet")
    page.locator("#text").press_sequentially("my unicorn is in box 1")
    holds(page, "A", "unicorn")
    page.locator("#text").press_sequentially("\nmove it to box d")
    holds(page, "D", "unicorn")
    holds(page, "A", "empty")
    assert page.inner_text("#when") == "after sentence 2 of 2"
    page.click("#earlier")
    holds(page, "A", "unicorn")
    page.click("summary")
    assert "Move the unicorn from Box A to Box D." in page.inner_text("#read")


def test_a_click_on_a_box_shows_the_hops(open_page):
    page = open_page("#text=" + quote(CHAIN))
    holds(page, "D", "camera")
    box(page, "D").click()
    wait_for_arcs(page, 5)
    assert "looked back 5 times in a row" in page.inner_text("#summary")
    assert page.locator(".token.on").count() == 6
    for look, word in ((1, "D."), (5, "camera")):
        assert page.inner_text(f".token:has(.order:text-is('{look}'))").startswith(word)
    bars = page.locator("#hops-chart .bar")
    assert bars.first.get_attribute("data-hops") == "5"
    flows = [float(arc.get_attribute("data-flow")) for arc in arcs(page).all()]
    assert max(flows) > 0.9
    page.check("#lengths")
    assert page.locator("#hops-chart .bar").count() > 5
    # an answer's word in the story is a question too
    page.click('.answers .token:text-is("Box F")')
    expect(page.locator("#summary")).to_contain_text("Box F is empty")


def test_pointing_at_a_word_shows_its_rows(open_page):
    page = open_page("#text=" + quote(CHAIN) + "&box=D")
    wait_for_arcs(page, 5)
    page.wait_for_load_state("networkidle")
    page.hover('[data-token="8"]')
    page.wait_for_selector("#row .bar")
    assert "one look (A)" in page.inner_text("#row")
    assert "all looks" in page.inner_text("#row")
    assert page.locator(".token.seen").count() > 0


def test_other_heads_and_layers(open_page):
    page = open_page()
    assert page.locator(".head-buttons button").count() == 8
    assert page.locator(".head-buttons button[aria-pressed=true]").count() == 1
    page.click('[aria-label^="Layer 1, head 3"]')
    expect(page).to_have_url(re.compile("head=2"))
    assert "looks back only once" in page.inner_text("#summary")


def test_the_slider_takes_the_hops_away(open_page):
    page = open_page("#text=" + quote(CHAIN) + "&box=D")
    wait_for_arcs(page, 5)
    page.locator("#gamma").fill("0")
    wait_for_arcs(page, 1)
    page.wait_for_selector('[data-at="boxes D"].wrong')
    assert "but by the story it holds the camera" in page.inner_text("#summary")
    page.locator("#gamma").fill("0.9")
    wait_for_arcs(page, 5)
    holds(page, "D", "camera")
    assert "gamma" not in page.url


def test_what_cannot_be_read_is_underlined_and_said(open_page):
    page = open_page()
    page.fill("#text", "The key is in Box A. Fold the key. Move it to box 9.")
    page.wait_for_selector("#marks mark")
    assert page.locator("#marks mark").all_inner_texts() == ["Fold", "9"]
    assert "A to G" in page.inner_text("#faults")
    # the mark lies under its word: both layers have the same text in the same place
    style = "(id) => { const s = getComputedStyle(document.getElementById(id)); "
    style += "return [s.font, s.padding, s.lineHeight].join() }"
    assert page.evaluate(style, "marks") == page.evaluate(style, "text")
    holds(page, "A", "key")


def test_models_side_by_side(open_page):
    page = open_page("#models=boxes")
    assert page.locator(".model").count() == 1
    page.locator("#choices").get_by_text("Ordinary attention").click()
    page.locator("#choices").get_by_text("Blocks").click()
    expect(page.locator(".model")).to_have_count(3)
    assert page.locator("#choices input:disabled").count() >= 1
    assert page.locator(".model .box.wrong").count() > 0
    wrong = page.locator("[data-at^='boxes-dense'].wrong").first
    assert "wrong: it is" in wrong.get_attribute("aria-label")
    wrong.click()
    expect(page.locator("#summary")).to_contain_text("only once")
    assert page.locator("#gamma-box").is_hidden()


def test_examples_and_stories_at_random(open_page):
    page = open_page()
    page.select_option("#examples", label="As you would say it")
    holds(page, "E", "unicorn")
    page.locator("#draw-boxes").fill("3")
    page.locator("#draw-updates").fill("6")
    page.click("#draw")
    expect(page.locator("#text")).not_to_have_value(re.compile("unicorn"))
    text = page.input_value("#text")
    assert not re.search(r"Box [D-G]", text)
    assert len(re.findall(r"^(?:Put|Move|Remove)", text, re.MULTILINE)) == 6


def test_the_address_holds_the_view(open_page):
    page = open_page()
    page.fill("#text", CHAIN)
    holds(page, "D", "camera")
    box(page, "B", "boxes-dense").click()
    page.click("#earlier")
    expect(page).to_have_url(re.compile("step=2"))
    expect(page.locator("#summary")).to_contain_text("Box B")
    other = open_page("#" + page.url.partition("#")[2])
    expect(other.locator("#summary")).to_contain_text("Box B")
    assert other.input_value("#text") == CHAIN
    assert other.inner_text("#when") == "after sentence 2 of 3"
    assert box(other, "B", "boxes-dense").get_attribute("aria-pressed") == "true"


def test_two_pages_at_once_do_not_mix(open_page):
    pages = [open_page(), open_page()]
    for i in range(3):
        for page, thing in zip(pages, ("drum", "bell"), strict=True):
            page.fill("#text", f"The {thing} is in Box {'ABC'[i]}.")
    for page, thing in zip(pages, ("drum", "bell"), strict=True):
        holds(page, "C", thing)
        expect(page.locator("#summary")).to_contain_text(thing)


def test_a_server_that_is_stopped_and_started_again(open_page, server):
    page = open_page(expected="ERR_CONNECTION_REFUSED|Failed to load")
    assert "Traceback" not in server.stop()
    page.fill("#text", "The drum is in Box C.")
    page.wait_for_selector("#offline:not([hidden])")
    assert "chacal play" in page.inner_text("#offline")
    server.start()
    holds(page, "C", "drum")
    page.wait_for_selector("#offline", state="hidden")


def test_the_grid_of_pointers(open_page):
    page = open_page("#view=chain")
    assert page.locator(".cell").count() == 128
    page.click('[data-place="100"]')
    expect(page.locator(".cell.lit")).to_have_count(13)
    assert page.locator("#chain-arcs .arc").count() == 12
    page.locator('[data-place="100"]').press("ArrowUp")
    expect(page.locator(".cell.lit")).to_have_count(12)
    page.locator("#chain-gamma").fill("0")
    expect(page.locator("#chain-arcs .arc")).to_have_count(1)
    assert page.locator(".cell.wrong").count() > 60
    page.click("#view-story")
    page.wait_for_selector("#story-view:not([hidden])")


def test_the_keyboard_is_enough(open_page):
    page = open_page("#text=" + quote(CHAIN) + "&models=boxes")
    holds(page, "D", "camera")
    page.focus("#text")
    for _ in range(60):
        page.keyboard.press("Tab")
        at = page.evaluate("document.activeElement.dataset.at ?? ''")
        if at == "boxes D":
            break
    assert at == "boxes D"
    page.keyboard.press("Enter")
    wait_for_arcs(page, 5)
    page.focus(".token.question")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("+document.activeElement.dataset.token") == 18
    page.focus("#step")
    page.keyboard.press("ArrowLeft")
    holds(page, "B", "camera")


def test_every_term_is_explained(open_page):
    page = open_page()
    terms = page.locator("#story-view .term")
    assert terms.count() >= 8
    for i in range(terms.count()):
        terms.nth(i).focus()
        page.wait_for_selector("#tip:not([hidden])")
        assert len(page.inner_text("#tip")) > 30
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


@pytest.mark.parametrize("end", ["", "#view=chain"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_sticks_out(open_page, end, width):
    page = open_page(end, viewport={"width": width, "height": 800})
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "end", ["", "#view=chain", "#gamma=0", "#text=" + quote("The key is in box 1. Fold it.")]
)
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_nothing(open_page, end, scheme, width):
    page = open_page(end, color_scheme=scheme, viewport={"width": width, "height": 900})
    page.wait_for_load_state("networkidle")
    page.evaluate(AXE)
    found = page.evaluate("axe.run()")
    told = [(v["id"], [n["html"][:120] for n in v["nodes"]][:3]) for v in found["violations"]]
    assert not told
    assert len(found["passes"]) > 15
