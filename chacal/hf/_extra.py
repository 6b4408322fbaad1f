"""Imported first: says what to install where transformers is missing or too old."""

from chacal._extras import install


class MissingExtra(ImportError, ValueError):
    """The extra is not installed: bad input to a user, a failed import to an importer."""


INSTALL = f"{install('hf')}, with Python 3.11 or newer"

try:
    import transformers
except ImportError:
    raise MissingExtra(f"chacal.hf needs transformers 5.22 or newer: {INSTALL}") from None

if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 22):
    raise MissingExtra(
        f"chacal.hf needs transformers 5.22 or newer, and this is {transformers.__version__}: "
        f"{INSTALL}"
    )
