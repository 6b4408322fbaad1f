"""The exported page: one file that needs no server and no network."""

import re

import pytest
from playwright.sync_api import expect

from chacal.play.export import export_page


@pytest.fixture(scope="module")
def file(tmp_path_factory, browser):
    path = tmp_path_factory.mktemp("export") / "play.html"
    export_page(path)
    return path


@pytest.fixture
def page(open_page, file):
    return open_page(address=file.as_uri(), offline=True)


def test_the_first_story_is_there_with_its_arcs(page):
    page.wait_for_selector('[data-at="boxes C"][aria-label="Box C: camera"]')
    assert page.locator("#arcs .arc.main").count() == 7
    assert page.locator(".model .box.wrong").count() > 0
    page.hover('[data-token="4"]')
    page.wait_for_selector("#row .bar")
    page.click("#earlier")
    page.wait_for_selector('[data-at="boxes C"][aria-label="Box C: empty"]')
    expect(page.locator("#summary")).to_contain_text("Box C is empty")


def test_the_slider_and_other_models(page):
    page.locator("#gamma").fill("0")
    page.wait_for_selector('[data-at="boxes C"].wrong')
    expect(page.locator("#arcs .arc.main")).to_have_count(1)
    page.locator("#gamma").fill("0.9")
    page.locator("#choices").get_by_text("Window").click()
    expect(page.locator(".model")).to_have_count(3)
    page.click('[data-at="boxes-window C"]')
    expect(page).to_have_url(re.compile("boxes-window"))
    assert page.locator("#offline").is_hidden()


def test_every_example_and_grid_is_there(page):
    options = page.locator("#examples option").all_inner_texts()[1:]
    assert len(options) == 4
    for option in options:
        page.select_option("#examples", label=option)
        expect(page.locator("#arcs .arc")).not_to_have_count(0)
        assert page.locator("#offline").is_hidden()
    assert page.get_attribute("#text", "readonly") is not None
    page.click("#view-chain")
    expect(page.locator(".cell.lit")).to_have_count(16)
    page.click("#chain-draw")
    expect(page).to_have_url(re.compile("seed=1"))
    page.locator("#chain-gamma").fill("0.5")
    expect(page.locator(".cell.wrong").nth(20)).to_be_visible()
    assert page.locator("#offline").is_hidden()


def test_what_was_not_computed_ahead_is_said(page):
    page.locator("#gamma").fill("0.3")
    page.click('[data-at="boxes A"]')
    expect(page.locator("#summary")).to_contain_text("computed ahead")
