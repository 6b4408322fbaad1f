"""Without the extra, one message says what to install."""

import subprocess
import sys


def test_an_old_transformers_is_named_with_what_is_needed():
    code = (
        "import sys, types\n"
        "sys.modules['transformers'] = old = types.ModuleType('transformers')\n"
        "old.__version__ = '5.9.1'\n"
        "try:\n"
        "    import chacal.hf\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    message = (
        "chacal.hf needs transformers 5.22 or newer, and this is 5.9.1: install the extra 'hf'"
    )
    assert done.stdout.startswith(message)


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
    message = (
        "chacal.hf needs transformers 5.22 or newer: install the extra 'hf' (in a clone: "
        "pip install -e '.[hf]'), with Python 3.11 or newer"
    )
    assert done.stdout.splitlines() == [message] * 2
