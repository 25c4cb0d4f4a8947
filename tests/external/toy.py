"""A memory system for tests: a file of lines, searched by shared words. `settings` make it fail.

`die` (before, during, after) is when the process ends in the addition of the document `at`, once; `hang` and
`noise` are calls in which it sleeps or prints; `answer` is what every search gives; `error` is a call that
fails.
"""

import json
import os
import signal
import sys
import time


class Memory:
    def __init__(self, folder, settings):
        self.file, self.settings = os.path.join(folder, "memory.jsonl"), settings
        self.writes = os.path.join(folder, "writes.jsonl")

    def read(self):
        if not os.path.exists(self.file):
            return []
        with open(self.file, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def add(self, user, documents):
        self.fault("add")
        for document in documents:
            self.die("before", document)
            for turn in document["text"].splitlines():
                with open(self.file, "a", encoding="utf-8") as lines:
                    lines.write(json.dumps({"user": user, "id": document["id"], "text": turn}) + "\n")
                self.die("during", document)
        self.die("after", documents[-1])

    def search(self, user, query, k, time):
        self.fault("search")
        if "answer" in self.settings:
            return self.settings["answer"]
        words = set(query.lower().split())
        own = [one for one in self.read() if one["user"] == user]
        scored = [(len(words & set(one["text"].lower().split())), -i, one) for i, one in enumerate(own)]
        best = sorted(scored, reverse=True, key=lambda three: three[:2])[:k]
        return [{"text": one["text"], "sources": [one["id"]], "score": score} for score, _, one in best]

    def delete(self, user, ids):
        self.fault("delete")
        kept = [
            one for one in self.read() if one["user"] != user or (ids is not None and one["id"] not in ids)
        ]
        with open(self.file, "w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(one) + "\n" for one in kept)

    def die(self, when, document):
        mark = os.path.join(os.path.dirname(self.file), "died")
        if (
            self.settings.get("die") == when
            and document["id"] == self.settings["at"]
            and not os.path.exists(mark)
        ):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    def fault(self, call):
        if self.settings.get("noise") == call:
            print('{"n": 1, "value": "noise"}')
            sys.stdout.flush()
            os.system("echo noise of a child")
        if self.settings.get("hang") == call:
            time.sleep(60)
        if self.settings.get("error") == call:
            raise ValueError("out of memories")
