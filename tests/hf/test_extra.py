"""Without the extra, one message says what to install."""

import subprocess
import sys


def test_a_missing_extra_is_one_clear_message():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import chacal\n"
        "for kind in (ValueError, ImportError):\n"
        "    try:\n"
        "        import chacal.hf\n"
        "    except kind as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    message = "chacal.hf needs transformers 5.22 or newer: pip install 'chacal[hf]' (Python 3.11 or"
    assert done.stdout.splitlines() == [f"{message} newer)"] * 2
