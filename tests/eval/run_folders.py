"""Changes to finished runs that were written by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pbr_jax.eval.run_files import sealed


def change(
    folder: Path,
    name: str = "results.json",
    edit: Callable[[int, dict[str, Any]], dict[str, Any]] | None = None,
    **fields: Any,
) -> Path:
    """Updates each line of predictions.jsonl, overwrites fields of a file, and seals the folder anew."""
    if edit is not None:
        lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
        write_lines(folder / "predictions.jsonl", [line | edit(i, line) for i, line in enumerate(lines)])
    file, results = folder / name, folder / "results.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    results.write_text(json.dumps(sealed(folder, json.loads(results.read_text()))))
    return folder


def write_lines(file: Path, lines: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def with_texts(folder: Path, before: str = "") -> Path:
    """Adds histories, categories, two documents and texts, which begin with `before`, to each question."""
    texts = []

    def edit(i: int, line: dict[str, Any]) -> dict[str, Any]:
        ranked = [
            {"id": f"d{i}", "user_id": line["user_id"], "score": 2.5, "scores": {"bm25": 1.0, "dense": 0.5}},
            {"id": f"e{i}", "user_id": line["user_id"], "score": 1.5, "span": [3, 9]},
        ]
        seen = [{**one, "text": f"{before}text of {one['id']}"} for one in ranked]
        seen[0]["time"] = 86400.0
        texts.append(
            {"id": line["id"], "query": f"query {i}", "input": f"{before}input {i}", "documents": seen}
        )
        return {"category": f"c{i % 2}", "history": i, "prompt_documents": 1, "documents": ranked}

    change(folder, edit=edit)
    write_lines(folder / "texts.jsonl", texts)
    return change(folder)
