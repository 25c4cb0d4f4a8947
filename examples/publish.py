"""Publishes what a run has learned, or cached answers, with a card that says where it is from.

    pbr-jax export RUN --format state --slot select --out learned
    python examples/publish.py learned --licence apache-2.0
    pbr-jax cache export answers/answers.jsonl
    python examples/publish.py answers --licence cc-by-4.0 --data "LaMP-7, dev" --upload OWNER/NAME --i-may

Without --upload only README.md is written, so that you can read and edit it first. With it the folder is
uploaded to a private model or data repository of the Hugging Face hub, by the account of `hf auth login`.
Nothing is uploaded without --i-may: learned weights and answers may reveal the texts that they come from.
"""

import argparse
import json
import sys
from pathlib import Path

ANSWERS = """\
An export of `pbr-jax cache export`: answers and likelihoods of language models, each under a hash of
model, prompt and sampling options. Prompts are not in it. `pbr-jax cache import answers.jsonl` adds them
to a cache, and `--llm.offline` then repeats the runs without asking a model."""
LEARNED = """\
Parameters that `{method}` in the slot `{slot}` has learned. `pbr_jax.models.load_params` reads each file,
and the option `training.start` of the same method starts from it."""
TEXTS = ("texts.jsonl", "predictions.jsonl", ".sqlite")  # files of runs that hold users' texts


def card(folder: Path, licence: str, data: str) -> str:
    """The text of README.md. Raises SystemExit for a folder with neither an exported state nor answers."""
    found = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != "README.md")
    files = {file.relative_to(folder).as_posix(): file for file in found}
    texts = [name for name in files if name.endswith(TEXTS)]
    if texts:
        raise SystemExit(f"{folder} has {', '.join(texts)}, which hold users' texts; publish an export")
    if "export.json" in files:
        told = json.loads(files["export.json"].read_text(encoding="utf-8"))
        kind, body = "learned state", LEARNED.format(**told)
        data = data or f"{told['benchmark']}, trained for the split `{told['split']}`"
        details = json.dumps({name: told[name] for name in ("options", "encoder", "key")}, indent=2)
        body += f"\n\n```json\n{details}\n```"
    elif any(name.endswith(".jsonl") for name in files):
        kind, body = "cached answers", ANSWERS
    else:
        raise SystemExit(f"{folder} has no export.json and no .jsonl; give what pbr-jax export wrote")
    if not data:
        raise SystemExit("say with --data which data this comes from, such as --data 'LaMP-7, dev'")
    lines = "\n".join(f"| `{name}` | {file.stat().st_size:,} |" for name, file in files.items())
    return f"""---
license: {licence}
tags: [pbr_jax, personalization]
---

# {kind.capitalize()} of pbr_jax

{body}

Data: {data}.

| file | bytes |
|---|---|
{lines}

It comes from users' texts and may reveal some of them. Deleting a user later does not change it.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--licence", required=True, help="of what is published, such as apache-2.0")
    parser.add_argument("--data", default="", help="what it comes from; an exported state says it itself")
    parser.add_argument("--upload", metavar="OWNER/NAME", help="a repository of the hub")
    parser.add_argument("--i-may", action="store_true", help="the texts may be published in this form")
    options = parser.parse_args()
    text = card(options.folder, options.licence, options.data)
    file = options.folder / "README.md"
    if not file.exists():
        file.write_text(text, encoding="utf-8")
        print(f"wrote {file}; read it, and edit it where it is wrong")
    if not options.upload:
        return
    if not options.i_may:
        sys.exit("add --i-may if the users have agreed, or if the licence of the data allows it")
    from huggingface_hub import HfApi

    kind = "model" if (options.folder / "export.json").is_file() else "dataset"
    HfApi().create_repo(options.upload, repo_type=kind, exist_ok=True, private=True)
    HfApi().upload_folder(repo_id=options.upload, repo_type=kind, folder_path=options.folder)
    print(f"uploaded to {options.upload}, as a private {kind}")


if __name__ == "__main__":
    main()
