"""`make test-slow`: what is built from the repository, and works without it."""

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
