"""Imported first: says what to install where transformers is missing or too old."""


class MissingExtra(ImportError, ValueError):
    """The extra is not installed: bad input to a user, a failed import to an importer."""


try:
    import transformers
except ImportError:
    raise MissingExtra(
        "chacal.hf needs transformers 5: pip install 'chacal[hf]' (Python 3.11 or newer)"
    ) from None

if int(transformers.__version__.split(".")[0]) < 5:
    raise MissingExtra(
        f"chacal.hf needs transformers 5, and {transformers.__version__} is installed: "
        f"pip install 'chacal[hf]' (Python 3.11 or newer)"
    )
