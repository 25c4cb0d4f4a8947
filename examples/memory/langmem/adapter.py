"""LangMem 0.0.30 behind `retrieve.method external`: a document is remembered by the tool that agents call.

python -m venv VENV && VENV/bin/pip install langmem==0.0.30 langgraph-checkpoint-sqlite

The tools write into LangGraph's SQLite store and call no language model. A namespace holds what comes from
one document of one user. Vectors come from the encoder of the run. The SQLite store calls `text_fields` what
other stores call `fields`; without it a memory's JSON is encoded. The store needs a Python whose sqlite3 can
load extensions.
"""

import json
import os
import urllib.request

PAGE = 1000  # memories that are listed at once


class Memory:
    def __init__(self, folder, settings):
        from langgraph.store.sqlite import SqliteStore  # type: ignore

        self.url = settings["base_url"]
        index = {"dims": settings["dimensions"], "embed": self.embed, "text_fields": ["content"]}
        self.opened = SqliteStore.from_conn_string(os.path.join(folder, "store.db"), index=index)
        self.store = self.opened.__enter__()
        self.store.setup()

    def embed(self, texts):
        body = json.dumps({"model": "encoder", "input": list(texts)}).encode()
        asked = urllib.request.Request(f"{self.url}/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked) as reply:
            return [one["embedding"] for one in json.load(reply)["data"]]

    def add(self, user, documents):
        from langmem import create_manage_memory_tool  # type: ignore

        for document in documents:
            tool = create_manage_memory_tool(
                ("memories", plain(user), plain(document["id"])), store=self.store
            )
            tool.invoke({"action": "create", "content": document["text"]})

    def search(self, user, query, k, time):
        from langmem import create_search_memory_tool  # type: ignore

        tool = create_search_memory_tool(
            ("memories", plain(user)), store=self.store, response_format="content_and_artifact"
        )
        call = {"name": tool.name, "args": {"query": query, "limit": k}, "id": "1", "type": "tool_call"}
        return [
            {
                "text": one.value["content"],
                "sources": [bytes.fromhex(one.namespace[-1][1:]).decode()],
                "score": one.score,
            }
            for one in tool.invoke(call).artifact
        ]

    def delete(self, user, ids):
        from langmem import create_manage_memory_tool  # type: ignore

        wanted = None if ids is None else {plain(id) for id in ids}
        while found := [
            one
            for one in self.store.search(("memories", plain(user)), limit=PAGE)
            if wanted is None or one.namespace[-1] in wanted
        ]:
            for one in found:
                tool = create_manage_memory_tool(one.namespace, store=self.store)
                tool.invoke({"action": "delete", "id": one.key})

    def close(self):
        self.opened.__exit__(None, None, None)


def plain(name):
    """A label that a namespace accepts: it must have no periods."""
    return "x" + name.encode().hex()
