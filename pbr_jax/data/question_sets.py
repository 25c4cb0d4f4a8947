"""What question sets release: a question, and the official files of each set by split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbr_jax.data.records import Record, kind, whole


@dataclass(frozen=True)
class Question:
    """A question as released: `id` is empty where the set has none, `answers` None where withheld.

    `held` are the ids of the passages that answer it, where the set says so. `unit` is the article that it
    was asked of, by title, and `article` the number of this in the file.
    """

    id: str
    text: str
    answers: list[str] | None
    held: tuple[str, ...] = ()
    unit: str = ""
    article: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an example that say what is right: the first answer, others, passages, the unit."""
        answers = list(dict.fromkeys(self.answers or [None]))  # type: ignore[arg-type]
        relevant = (self.held,) if self.held else ()
        return {
            "target": answers[0], "alternatives": tuple(answers[1:]), "relevant": relevant, "unit": self.unit
        }  # fmt: skip


FILES = {
    "nq_open": ("NQ-open.{}.jsonl",),
    "squad": ("{}-v1.1.json",),
    "xquad": ("xquad.{}.json",),
    "web_questions": ("{}.json",),
    "web_qa": ("{}.json.gz", "{}.json", "data/{}.json.gz"),
}
"""Names of a set's official files, with the data's name of the split in them."""

ALIASES = {
    "train": ("train", "trainmodel", "training"),
    "dev": ("dev", "validation", "val", "validation.ann"),
    "dev.ir": ("validation.ir",),
    "devtest": ("devtest",),
    "test": ("test", "test.ann"),
    "test.ir": ("test.ir",),
}
"""The data's names of each split."""


def files(name: str, root: str) -> dict[str, Path]:
    """The official files of a set under a root, by split; of XQuAD a split is a language."""
    folder = Path(root)
    if not root or name not in FILES:
        return {}
    if name == "xquad":
        paths = sorted(folder.glob(FILES[name][0].format("*")))
        return {path.name.removeprefix("xquad.").removesuffix(".json"): path for path in paths}
    return {
        split: folder / file.format(one)
        for split, names in ALIASES.items()
        for one in reversed(names)
        for file in reversed(FILES[name])
        if (folder / file.format(one)).is_file()
    }


def asked(record: Record, key: str) -> str:
    """A question's text; UserError where it is blank."""
    if not (question := record.text(key)).strip():
        raise record.fault(key, "an empty string", "a question")
    return question


def strings(record: Record, key: str) -> list[str]:
    """A list of strings alone."""
    values = record.items(key)
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise record.fault(key, f"{kind(wrong[0])} in the list", "strings alone")
    return [whole(value) for value in values]
