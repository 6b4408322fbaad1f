"""`chacal play`: the server on a port of this machine, until it is stopped."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable

from chacal._echo import shown
from chacal._extras import install

LOCAL = ("127.0.0.1", "localhost", "[::1]")


def serve(host: str, port: int, browser: bool, say: Callable[[str], None]) -> None:
    """Serve the page.

    Args:
        host: to listen at; 0.0.0.0 for every address of this machine.
        port: 0 for any that is free.
        browser: whether to open the page in one.
        say: told the address.
    """
    try:
        import uvicorn

        from chacal.play.server import make_app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("starlette", "uvicorn", "anyio"):
            raise
        raise ValueError(f"chacal play needs {missing}: {install('play')}") from None
    import torch

    torch.set_num_threads(1)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except (OSError, TypeError, UnicodeError) as error:  # the latter: no host can be called so
            why = getattr(error, "strerror", None) or str(error)
            raise ValueError(
                f"cannot listen at {shown(host)}, port {port}: {why}; expected a free port "
                f"(--port 0 takes any) of an address of this machine"
            ) from None
        anywhere = host in ("0.0.0.0", "::")
        name = f"[{host}]" if ":" in host else host
        app = make_app(("*",) if anywhere else (*LOCAL, name))
        listening.listen()  # whoever comes before the server is up waits, and is not refused
        address = f"http://{'127.0.0.1' if anywhere else name}:{listening.getsockname()[1]}/"
        say(f"chacal plays at {address} (Ctrl-C ends it)")
        if browser:
            webbrowser.open(address)
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
        uvicorn.Server(config).run(sockets=[listening])
