"""mem0 (mem0ai 2.2.1) behind `retrieve.method external`: a document is a message.

python -m venv VENV && VENV/bin/pip install mem0ai==2.2.1

The setting `infer` is false by default: messages are kept as they are, and no language model is called. With
`--retrieve.settings '{"infer": true}'` a language model extracts memories, which `--retrieve.url` and
`--retrieve.model` name. Vectors come from the encoder of the run.
"""

import logging
import os

LOST = ("Error parsing extraction", "Failed to insert", "Failed to embed")  # mem0 logs it and goes on
PAGE = 1000  # memories that are listed at once


def name(user):
    """The user's name without the spaces and slashes that mem0 refuses."""
    return "u" + user.encode().hex()


class Memory:
    def __init__(self, folder, settings):
        os.environ["MEM0_TELEMETRY"] = "False"
        os.environ["MEM0_DIR"] = folder
        os.environ.pop("OPENROUTER_API_KEY", None)
        import mem0  # type: ignore

        server = {"openai_base_url": settings["base_url"], "api_key": "none"}
        embedder = {**server, "model": "encoder", "embedding_dims": None}
        store = {"path": os.path.join(folder, "qdrant"), "on_disk": True, "collection_name": "memories"}
        store["embedding_model_dims"] = settings["dimensions"]
        self.infer, self.lost = settings.get("infer", False), []
        watch = logging.Handler(logging.WARNING)
        watch.emit = lambda record: self.lost.append(record.getMessage())
        logging.getLogger("mem0").addHandler(watch)
        self.memory = mem0.Memory.from_config(  # type: ignore
            {
                "llm": {"provider": "openai", "config": {**server, "model": settings["model"] or "none"}},
                "embedder": {"provider": "openai", "config": embedder},
                "vector_store": {"provider": "qdrant", "config": store},
                "history_db_path": os.path.join(folder, "history.db"),
            }
        )

    def add(self, user, documents):
        for document in documents:
            known = {"document": document["id"], "time": document["time"]}
            self.lost.clear()
            found = self.memory.add(document["text"], user_id=name(user), metadata=known, infer=self.infer)
            if lost := [message for message in self.lost if message.startswith(LOST)]:
                raise RuntimeError(lost[0])
            if not self.infer and not found["results"]:
                raise RuntimeError("the message was not kept")

    def search(self, user, query, k, time):
        found = self.memory.search(query, filters={"user_id": name(user)}, top_k=k, threshold=0.0)
        return [
            {"text": one["memory"], "sources": [one["metadata"]["document"]], "score": one["score"]}
            for one in found["results"]
        ]

    def delete(self, user, ids):
        if ids is None:
            self.memory.delete_all(user_id=name(user))
            return
        found = self.memory.get_all(filters={"user_id": name(user)}, top_k=PAGE)["results"]
        for one in found:
            if one["metadata"]["document"] in ids:
                self.memory.delete(one["id"])

    def close(self):
        self.memory.vector_store.client.close()
