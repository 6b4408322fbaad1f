"""`make test-slow`: what is built from the repository, and works without it."""

import socket
import subprocess

import pytest


@pytest.fixture(scope="session")
def run():
    """Run a command; what it printed. A failure shows the end of it."""

    def call(*command, **options):
        done = subprocess.run(
            [str(part) for part in command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options,
        )  # fmt: skip
        assert done.returncode == 0, (
            f"{command}: exit code {done.returncode}\n{done.stdout[-3000:]}"
        )
        return done.stdout

    return call


@pytest.fixture
def free_port():
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
