"""Many clients at once, and a server that is killed: nobody sees another's text, and nothing is lost."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from memories import HISTORIES, Client, echoing

import pbr_jax
from pbr_jax.serving.guard import Limits
from pbr_jax.serving.keys import Keys

pytestmark = pytest.mark.usefixtures("fresh_cache")

CLIENTS, QUESTIONS = 50, 20


def test_a_thousand_interleaved_answers_hold_no_canary_of_another(
    write_tweets: Callable[..., Path], serve: Callable[..., Client], tmp_path: Path, capfd: Any
):
    """Nor do exports, errors, metrics and logs. The model repeats its prompt, so an answer has all of it."""
    users = [f"user{number}" for number in range(20)]
    histories = {user: [f"canary-{user}-{i} about tea" for i in range(3)] for user in users}
    keys = Keys(tmp_path / "keys.json")
    with echoing(write_tweets(histories)) as config:
        port = serve(pbr_jax.open(config), keys=keys, limits=Limits(queue=CLIENTS)).port
        clients = {user: Client(port, keys.add(user)) for user in users}
        answers: list[tuple[str, int, str]] = []

        def work(number: int) -> None:
            user = users[number % len(users)]
            own = clients[user]
            for step in range(QUESTIONS):
                got = [own.ask(f"about tea {number} {step}", user=users[step])]
                if step % 5 == 0:
                    text = f"canary-{user}-{number}-{step} about tea"
                    got.append(own("POST", "/v1/users/me/documents", {"texts": [text]}))
                    got.append(own("GET", "/v1/users/me/export"))
                    got.append(own("GET", f"/v1/users/{users[step]}/export"))
                    got.append(own("POST", "/v1/users/me/documents", {"texts": [" "], "time": text}))
                answers.extend((user, one.status, one.body.decode()) for one in got)

        with ThreadPoolExecutor(CLIENTS) as threads:
            list(threads.map(work, range(CLIENTS)))
        metrics = clients[users[0]]("GET", "/metrics").body.decode()
    asked = [body for _, status, body in answers if status == 200 and '"chat.completion"' in body]
    assert len(asked) + sum(status == 429 for _, status, _ in answers) >= CLIENTS * QUESTIONS
    assert len(asked) > CLIENTS * QUESTIONS // 2
    assert {status for _, status, _ in answers} <= {200, 400, 403, 429}
    for user, status, body in answers:
        assert set(re.findall(r"canary-(user\d+)-", body)) <= ({user} if status == 200 else set())
    assert all("canary-" in body for body in asked)
    out, err = capfd.readouterr()
    assert "canary" not in metrics + out + err
    assert not any(user in metrics + out + err for user in users)


@contextlib.contextmanager
def started(out: Path, told: Path) -> Iterator[tuple[subprocess.Popen[bytes], Client]]:
    """`pbr-jax serve` in a process of its own, and a client of it; `told` gets what it says."""
    command = [sys.executable, "-m", "pbr_jax", "serve", str(out), "--port", "0"]
    with told.open("wb") as file, subprocess.Popen(command, stderr=file, env={**os.environ}) as process:
        found = None
        while not found:
            assert process.poll() is None, told.read_text()
            time.sleep(0.05)
            found = re.search(r"serving out on http://127\.0\.0\.1:(\d+)/", told.read_text())
        yield process, Client(int(found[1]))


@pytest.mark.long
def test_what_was_acknowledged_survives_a_kill(write_tweets: Callable[..., Path], tmp_path: Path):
    pytest.importorskip("fastapi", reason="pip install 'pbr-jax[serve]'")
    with echoing(write_tweets(HISTORIES)) as config:
        pbr_jax.run(config, tmp_path / "out")
        kept: list[str] = []
        with started(tmp_path / "out", tmp_path / "first") as (process, client):

            def add(number: int) -> None:
                for step in range(1000):
                    try:
                        answer = client(
                            "POST", "/v1/users/eve/documents", {"texts": [f"note {number} {step}"]}
                        )
                        kept.extend(one["id"] for one in answer.json["documents"])
                    except (OSError, http.client.HTTPException, ValueError):  # the server is gone
                        return
                    if len(kept) > 20:
                        process.send_signal(signal.SIGKILL)

            with ThreadPoolExecutor(4) as threads:
                list(threads.map(add, range(4)))
            assert process.wait() == -signal.SIGKILL
        assert len(kept) > 20
        with started(tmp_path / "out", tmp_path / "second") as (process, client):
            found = client("GET", "/v1/users/eve/documents").json["documents"]
            assert set(kept) <= {one["id"] for one in found}
            assert "i love tea" in client.ask("about tea", user="ann").body.decode()
            process.send_signal(signal.SIGINT)
            assert process.wait() == 0
        assert (tmp_path / "second").read_text().splitlines()[-1] == "stopped"


def test_another_address_than_this_machines_wants_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("fastapi", reason="pip install 'pbr-jax[serve]'")
    from pbr_jax.cli.main import main

    assert main(["serve", "dense", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "without keys every caller may be anybody; give --keys FILE" in capsys.readouterr().err
    file = str(tmp_path / "keys.json")
    assert main(["serve", "dense", "--host", "0.0.0.0", "--keys", file]) == 2
    assert "has no keys; pbr-jax keys add" in capsys.readouterr().err
    assert main(["keys", "add", "--file", file, "--user", "ann"]) == 0
    key = capsys.readouterr().out.strip()
    assert Keys(Path(file)).caller(key) == ("ann",)
    assert main(["keys", "add", "--file", file]) == 2
    assert main(["keys", "add", "--file", file, "--user", "ann", "--trusted"]) == 2
    assert main(["keys", "add", "--file", file, "--trusted"]) == 0
    capsys.readouterr()
    assert main(["keys", "list", "--file", file]) == 0
    assert capsys.readouterr().out.splitlines() == ["user ann", "trusted"]
    assert main(["keys", "rm", "--file", file, "--user", "ann"]) == 0
    assert json.loads(Path(file).read_text())["keys"][0]["user"] is None
    Path(file).write_text("nonsense")
    assert main(["keys", "list", "--file", file]) == 2
