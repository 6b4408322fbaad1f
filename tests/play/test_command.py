"""`chacal play`: its address, what it refuses, and the page as one file."""

import base64
import gzip
import http.client
import json
import re
import socket
import subprocess
import sys

import pytest

from chacal.bench.page import time_page
from chacal.play.export import ORDER, assemble, export_page, key_of
from chacal.play.questions import page_files
from chacal.play.serve import serve


def test_it_serves_its_page_until_it_is_told_to_stop():
    command = [sys.executable, "-m", "chacal", "play", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        line = server.stderr.readline()
        (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", line)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
            connection.request("GET", "/")
            assert b"chacal" in connection.getresponse().read()
            connection.close()
        finally:
            server.terminate()
        assert "Traceback" not in server.stderr.read()


def test_a_port_that_is_taken_is_named():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=rf"port {port}: .*--port 0 takes any"):
            serve("127.0.0.1", port, False, print)


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_extra_one_message_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom chacal.commands.cli import main\n"
    code += "sys.argv = ['chacal', 'play']\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        f"chacal: chacal play needs {missing}: install the extra 'play' (in a clone: "
        "pip install -e '.[play]')\n"
    )


def test_an_export_to_nowhere_is_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(ValueError, match="gone is not there; expected a folder"):
        export_page(tmp_path / "gone" / "play.html")


def test_the_page_asks_nobody_else():
    for name, data in page_files().items():
        text = data.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//\w+\.\w+", text), name
        assert text.count("\n") <= 400, f"{name}: a file past 400 lines wants to be two"


def test_the_modules_are_one_script_in_the_order_of_their_imports():
    files = page_files()
    assert {name for name in files if name.endswith(".js")} == set(ORDER)
    names = []
    for i, name in enumerate(ORDER):
        text = files[name].decode()
        for imported in re.findall(r'^import .* from "\./(.*)";$', text, re.MULTILINE):
            assert imported in ORDER[:i]
        pattern = r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+|\$)"
        names += re.findall(pattern, text, re.MULTILINE)
    assert len(names) == len(set(names)), "two modules have a name in common"
    packed = base64.b64encode(gzip.compress(b"{}")).decode()
    page = assemble(files, packed)
    assert "import " not in re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)[0]
    assert 'src="' not in page
    assert page.count("/page/") == 0


def test_a_question_has_the_key_that_the_page_gives_it():
    # page/api.js: fields in one order, nothing between, and none without a value
    asked = {"text": "the “key”", "models": ["boxes"], "gamma": 0}
    key = key_of("story", asked)
    assert key == 'story {"gamma":0,"models":["boxes"],"text":"the “key”"}'
    assert json.loads(key.partition(" ")[2]) == asked


def test_the_page_can_be_timed():
    times = time_page(2, 1)
    assert times.pages == 2
    assert times.answers > 20
    assert 0 < times.median <= times.slowest
