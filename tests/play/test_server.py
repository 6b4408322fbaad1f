"""The server: what it answers, what it refuses, and that nothing it is sent brings it down."""

import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio
import psutil
import pytest
from starlette.testclient import TestClient

from chacal.play.player import Player
from chacal.play.questions import ASKED
from chacal.play.server import MOST_BYTES, Turns, make_app
from chacal.tasks.base import stream, uniforms

STORY = {"text": "the camera is in box f. Move the contents of Box F to Box B", "models": ["boxes"]}
HOPS = {"text": STORY["text"], "model": "boxes", "box": "B"}
HOST = "http://127.0.0.1:8123"


@pytest.fixture(scope="module")
def player():
    return Player()


@pytest.fixture(scope="module")
def client(player):
    with TestClient(make_app(("127.0.0.1", "localhost"), player), base_url=HOST) as client:
        yield client


def test_a_story_and_how_it_was_answered(client):
    told = client.post("/api/story", json=STORY).json()
    assert told["sentences"][0] == "The camera is in Box F."
    assert told["told"][0]["told"][-1] == ["", "camera", "", "", "", "", ""]
    hops = client.post("/api/hops", json=HOPS).json()
    assert hops["answer"] == hops["truth"] == "camera"
    rows = client.post("/api/rows", json={"text": STORY["text"], "model": "boxes"}).json()
    assert len(rows["layers"][0][0]["A"]) == len(hops["tokens"])
    chain = client.post("/api/chain", json={"seed": 1, "gamma": 0.5}).json()
    assert chain["gamma"] == 0.5
    drawn = client.post("/api/draw", json={"seed": 1, "boxes": 3, "updates": 4}).json()
    assert client.post("/api/story", json={"text": drawn, "models": []}).json()["updates"] == 4
    about = client.get("/api/about").json()
    assert about["models"][0]["name"] == "boxes"
    assert about["models"][0]["exact_match"] > 0.99


def test_a_sentence_that_cannot_be_read_is_an_answer_and_no_error(client):
    told = client.post("/api/story", json={**STORY, "text": "Fold the key."})
    assert told.status_code == 200
    assert told.json()["clauses"][0]["fault"]["what"]


@pytest.mark.parametrize(
    ("path", "sent", "status", "words"),
    [
        ("/api/story", {"json": {**STORY, "models": ["gpt"]}}, 400, "model is 'gpt'"),
        ("/api/story", {"json": {**STORY, "models": ["boxes"] * 4}}, 400, "at most 3"),
        ("/api/story", {"json": {**STORY, "more": 1}}, 400, "story.more"),
        ("/api/story", {"json": {"text": 3, "models": []}}, 400, "story.text is 3"),
        ("/api/story", {"json": [1]}, 400, "expected an object"),
        ("/api/hops", {"json": {**HOPS, "box": "Q"}}, 400, "box is 'Q'"),
        ("/api/hops", {"json": {**HOPS, "gamma": 1}}, 400, "gamma is 1"),
        ("/api/chain", {"json": {"seed": -1}}, 400, "seed is -1"),
        ("/api/chain", {"json": {"seed": 10**30}}, 400, "seed is 1000"),
        ("/api/draw", {"json": {"seed": 0, "boxes": 99, "updates": 1}}, 400, "boxes is 99"),
        ("/api/nothing", {"json": {}}, 404, "cannot be asked"),
        ("/api/story", {"data": {"text": "x"}}, 415, "application/json"),
        ("/api/story", {"json": {**STORY, "text": "x" * MOST_BYTES}}, 413, str(MOST_BYTES)),
    ],
)  # fmt: skip
def test_bad_questions_are_answered_in_a_sentence(client, path, sent, status, words):
    answer = client.post(path, **sent)
    assert answer.status_code == status
    assert words in answer.json()["error"]


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"NaN", b"[" * 9000, b""])
def test_a_body_that_is_not_json(client, body):
    answer = client.post("/api/story", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400


def test_half_a_character_comes_back_as_it_was_sent(client):
    text = "The key is in Box A. \ud800"
    body = json.dumps({"text": text, "models": []})
    answer = client.post("/api/story", content=body, headers={"content-type": "application/json"})
    assert answer.json()["text"] == text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:8123"}, 421),
        ({"origin": HOST, "sec-fetch-site": "same-origin"}, 200),
        ({}, 200),
    ],
)
def test_only_its_own_page_may_ask(client, headers, status):
    assert client.post("/api/story", json=STORY, headers=headers).status_code == status
    assert client.get("/api/about", headers=headers).status_code == status


def test_a_link_on_another_site_may_lead_to_the_page(client):
    page = client.get("/", headers={"sec-fetch-site": "cross-site"})
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "access-control-allow-origin" not in page.headers


@pytest.mark.parametrize(
    "path",
    [
        "/page/..%2fserver.py", "/page/%2e%2e/server.py", "/page/../server.py", "/server.py",
        "/page/", "/page/page/index.html", "/../../etc/passwd", "/page/%00", "/docs",
    ],
)  # fmt: skip
def test_no_path_leads_outside_the_page(client, path):
    assert client.get(path).status_code == 404


def test_one_story_is_computed_at_a_time_and_the_others_wait(player, monkeypatch):
    inside, most, lock = 0, 0, threading.Lock()
    story = Player.story

    def counted(self, **asked):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        try:
            return story(self, **asked)
        finally:
            with lock:
                inside -= 1

    monkeypatch.setattr(Player, "story", counted)
    with (
        TestClient(make_app(("127.0.0.1",), player), base_url=HOST) as client,
        ThreadPoolExecutor(10) as pages,
    ):
        asked = [
            pages.submit(
                client.post, "/api/story", json={**STORY, "text": f"The key{i} is in Box A"}
            )
            for i in range(30)
        ]
        assert {page.result().status_code for page in asked} == {200}
    assert most == 1


def test_boxes_come_before_what_is_not_so_urgent():
    order = []

    async def take(turns, name, first):
        async with turns.of(first):
            order.append(name)
            await anyio.sleep(0.01)

    async def all_at_once():
        turns = Turns()
        async with anyio.create_task_group() as group:
            for name in ("hops 1", "hops 2", "story 1", "hops 3", "story 2"):
                group.start_soon(take, turns, name, name.startswith("story"))

    anyio.run(all_at_once)
    assert order[:2] == ["story 1", "story 2"]
    assert sorted(order[2:]) == ["hops 1", "hops 2", "hops 3"]


def test_ten_open_pages_cost_one_computation_each_and_what_is_known_none(player):
    model = player.answers("boxes").model
    with TestClient(make_app(("127.0.0.1",), player), base_url=HOST) as client:
        text = "The drum is in Box A. The bell is in Box B."
        client.post("/api/story", json={**STORY, "text": text})
        before = model.calls
        for page in range(10):  # each types one sentence more
            longer = f"{text} Move the drum from Box A to Box {'CDEFG'[page % 5]}."
            client.post("/api/story", json={**STORY, "text": longer})
    assert model.calls - before == 5


def test_a_thousand_random_requests_leave_no_trace(player, monkeypatch):
    monkeypatch.setattr("chacal.play.answers.REMEMBERED", 64)
    uniform = uniforms(stream("random requests"))

    def pick(options):
        return options[int(uniform() * len(options))]

    words = ["the", "key", "box", "box b", "move", "to", ".", "put", "\ud83c"]
    words += ["The key is in Box A."] * 6 + ["Put the lamp into box 2."] * 6
    values = [None, True, 0, -1, 1e308, 0.5, "", "A", "boxes", [], ["boxes"], {}, "x" * 9000]
    kinds = ["story", "hops", "rows", "chain", "draw", "nothing", "about"]

    def value(field):
        if uniform() < 0.1:
            return pick(values)
        if field == "text":
            return " ".join(pick(words) for _ in range(int(uniform() * 12)))
        known = {"models": ["boxes"], "model": "boxes", "box": pick("ABG"), "gamma": pick([0, 0.5])}
        return known.get(field, pick([0, 1, 2, 3]))

    def send(client):
        kind = pick(kinds)
        method = pick(["POST"] * 12 + ["GET", "PUT", "OPTIONS", "HEAD", "DELETE"])
        own = [f.name for f in dataclasses.fields(ASKED[kind][0])] if kind in ASKED else []
        chosen = {name: value(name) for name in own if uniform() < 0.95}
        if uniform() < 0.2:
            chosen[pick(["zz", *own])] = pick(values)
        body = json.dumps(chosen).encode()
        if uniform() < 0.2:
            body = body[: int(uniform() * len(body))]
        path = pick([f"/api/{kind}"] * 8 + ["/", f"/page/{kind}", f"/{kind}%2f..", "/api/%ff"])
        headers = {"content-type": "application/json"} if uniform() < 0.9 else {}
        return client.request(method, path, content=body, headers=headers).status_code

    # an exception of the server's would be raised here
    with TestClient(make_app(("127.0.0.1",), player), base_url=HOST) as client:
        for _ in range(300):
            send(client)
        process = psutil.Process()
        before = process.memory_info().rss
        statuses = [send(client) for _ in range(1000)]
        grown = process.memory_info().rss - before
    assert {200, 400, 404, 405, 415} <= set(statuses)
    assert max(statuses) < 500
    assert statuses.count(200) > 100
    assert grown < 8 * 2**20
