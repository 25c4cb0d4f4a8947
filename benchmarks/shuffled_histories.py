"""A benchmark as a folder of `own` in which each user has the history of another: a test of `pbr-jax check`.

    python benchmarks/shuffled_histories.py --name lamp_7 --root FOLDER --out shuffled
    pbr-jax check shuffled --out checks/shuffled

Users are drawn by lot into one circle, and each has the history of the one before, so that nobody keeps the
own one. The own history cannot help beyond other users' documents then, and a check must say so. `--keep`
leaves the histories where they are, for comparison. `--users` takes the first few. Of each user there is the
first question with all that it sees.
"""

import argparse
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pbr_jax import data, tasks
from pbr_jax.base.files import write_text
from pbr_jax.base.types import Example
from pbr_jax.data.own import DOCUMENTS
from pbr_jax.options import Benchmark


def written(examples: Sequence[Example], owners: Sequence[str], folder: Path, split: str) -> None:
    """The questions with the histories of `owners`, user for user."""
    folder.mkdir(parents=True)
    histories = {example.user_id: example for example in examples}
    documents = (
        _line(id=f"{example.id}-{place}", user=example.user_id, text=document.text, fields=document.fields)
        for example, owner in zip(examples, owners, strict=True)
        for place, document in enumerate(histories[owner].profile)
    )
    write_text(folder / DOCUMENTS, "".join(documents))
    write_text(folder / f"{split}.jsonl", "".join(map(_question, examples)))


def _question(example: Example) -> str:
    return _line(id=example.id, user=example.user_id, input=example.input, target=example.target)


def _line(**record: Any) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _one_each(examples: Iterator[Example]) -> Iterator[Example]:
    """The first question of each user."""
    seen: set[str] = set()
    for example in examples:
        if example.user_id not in seen and example.target is not None:
            seen.add(example.user_id)
            yield example


def circle(names: Sequence[str], seed: int) -> list[str]:
    """For each name another one, so that all names are given once."""
    drawn = random.Random(seed).sample(list(names), len(names))
    before = dict(zip(drawn, [drawn[-1], *drawn[:-1]], strict=True))
    return [before[name] for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--name", default="lamp_7")
    parser.add_argument("--root", required=True)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--users", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    benchmark = Benchmark(name=options.name, root=options.root, split=options.split)
    examples = list(islice(_one_each(data.read(benchmark)), options.users))
    names = [example.user_id for example in examples]
    written(examples, names if options.keep else circle(names, options.seed), options.out, options.split)
    task = Path(tasks.__file__).with_name(f"{data.task(benchmark).name}.toml")
    shutil.copyfile(task, options.out / "task.toml")
    print(f"{options.out}: {len(examples)} users")


if __name__ == "__main__":
    main()
