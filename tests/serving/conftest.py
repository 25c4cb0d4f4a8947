"""Web servers of systems, in threads of this process on 127.0.0.1."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from memories import Client


def pytest_configure(config: pytest.Config) -> None:
    for name in ("benchmark", "vcr"):
        config.addinivalue_line("markers", f"{name}: of langchain-tests, which is imported here")


@pytest.fixture
def serve() -> Iterator[Callable[..., Client]]:
    """Serves a system; the client of its callers. Skips where the packages are absent."""
    uvicorn = pytest.importorskip("uvicorn", reason="pip install 'pbr-jax[serve]'")
    pytest.importorskip("fastapi", reason="pip install 'pbr-jax[serve]'")
    from pbr_jax.serving.app import application

    with contextlib.ExitStack() as stack:

        def start(system: Any, **options: Any) -> Client:
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=256))
            config = uvicorn.Config(
                application(system, hosts=("127.0.0.1",), **options), log_config=None, access_log=False
            )
            server = uvicorn.Server(config)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()

            def stop() -> None:
                server.should_exit = True
                thread.join()

            stack.callback(stop)
            return Client(listening.getsockname()[1])

        yield start
