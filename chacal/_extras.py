"""What to install where an optional package is missing, in words that work.

The package is on no index, so `pip install 'chacal[hf]'` would find nothing, or something else.
"""


def install(extra: str) -> str:
    """How an extra is installed: one of hf, plot, data, eval, play, ray.

    >>> install("plot")
    "install the extra 'plot' (in a clone: pip install -e '.[plot]')"
    """
    return f"install the extra {extra!r} (in a clone: pip install -e '.[{extra}]')"
