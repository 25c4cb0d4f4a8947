"""Runs an adapter of a memory system, and answers requests with lines of JSON.

It runs as a script by the Python of the system's own environment (`python -I host.py ADAPTER FOLDER`), so
it imports nothing but the standard library. A request is `{"n": 1, "call": "search", ...}` on standard
input, and the reply `{"n": 1, "value": ...}` or `{"n": 1, "error": "..."}`. The calls are `open`, `add`,
`search`, `delete`, `files` and `close`. What the system itself prints goes to standard error.

A receipt is written before and after an addition. After a crash an addition with a receipt of its end is not
repeated, and one without is deleted before it is made again.
"""

import importlib.util
import json
import os
import sys
import traceback

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


class Host:
    """An adapter, and the receipts of what was added."""

    def __init__(self, adapter, folder, settings):
        self.home, self.receipts = os.path.join(folder, "home"), os.path.join(folder, "receipts.jsonl")
        os.makedirs(self.home, exist_ok=True)
        os.chdir(self.home)
        self.lock = open(os.path.join(folder, "lock"), "w")  # noqa: SIM115  # held until the process ends
        if fcntl is not None:  # one whose parent was killed may still be in a call
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.state = {}
        with open(self.receipts, "a+", encoding="utf-8") as lines:
            lines.seek(0)
            for line in lines.read().split("\n"):
                try:
                    self.state.update(json.loads(line or "{}"))
                except ValueError:  # the process was killed while it wrote
                    continue
            lines.write("\n")
        sys.path.append(os.path.dirname(os.path.abspath(adapter)))
        spec = importlib.util.spec_from_file_location("adapter", adapter)
        if spec is None or spec.loader is None:
            raise ImportError(f"{adapter} is no Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.memory = module.Memory(self.home, settings)
        self.search, self.delete = self.memory.search, self.memory.delete

    def note(self, key, state):
        with open(self.receipts, "a", encoding="utf-8") as lines:
            lines.write(json.dumps({key: state}) + "\n")
            lines.flush()
            os.fsync(lines.fileno())
        self.state[key] = state

    def add(self, key, user, documents):
        if self.state.get(key) == "done":
            return
        if key in self.state:
            self.delete(user, [document["id"] for document in documents])
        self.note(key, "begun")
        self.memory.add(user, documents)
        self.note(key, "done")

    def files(self):
        if hasattr(self.memory, "files"):
            return self.memory.files()
        found = [os.path.join(at, name) for at, _, names in os.walk(self.home) for name in names]
        return sorted(path for path in found if os.path.isfile(path))

    def close(self):
        getattr(self.memory, "close", lambda: None)()


def main(adapter, folder):
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        os.dup2(2, 1)
        host = None
        for line in sys.stdin:
            request = json.loads(line)
            n, call = request.pop("n"), request.pop("call")
            try:
                if call == "open":
                    host, value = Host(adapter, folder, request["settings"]), None
                else:
                    value = getattr(host, call)(**request)
                reply = {"n": n, "value": value}
                text = json.dumps(reply)
            except Exception as error:
                traceback.print_exc()
                text = json.dumps({"n": n, "error": f"{type(error).__name__}: {error}"})
            replies.write(text + "\n")
            replies.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
