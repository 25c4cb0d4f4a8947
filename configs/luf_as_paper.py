"""LUF with the numbers of its Table 10 for SQuAD, as near to the paper as it can be read.

- An update after 4,000 questions, 4 epochs, rate 1e-5; Natural Questions 2,000, 4, 5e-6; TriviaQA
  as SQuAD; WebQuestions 1,000, 1, 5e-6; WebQA 2,000, 3, 5e-6. The encoder is Contriever: give
  `--encoder.model FOLDER`.
- The encoder moves as a whole, for queries and passages, which are then encoded anew: some 53 hours
  of CPU for 21 million passages, so take an accelerator, or `--retrieve.moves query_tower`.
- A question's own irrelevant documents are negatives. In a closed collection that punishes what
  later questions look for, and costs half of the gain (docs/papers/luf.md).
- One user's remark is enough for the shared store: the paper has no quorum.

pbr-jax run luf_as_paper --benchmark.name squad --benchmark.root FOLDER --benchmark.passages FILE --out DIR
"""

from pbr_jax.config import Config, Optimizer
from pbr_jax.methods import retrieve, select
from pbr_jax.options import LUFLoss, Remarks, Stream, adapting


def get_config() -> Config:
    return Config(
        system="luf_as_paper",
        collaboration="signals",
        stream=Stream(size=4000),
        retrieve=retrieve.Luf(
            k=40,
            moves="both",
            starts="last",
            least_own=0.5,
            loss=LUFLoss(negatives="labelled"),
            update=adapting(optimizer=Optimizer(learning_rate=1e-5)),
        ),
        select=select.MultiLevel(),
        remarks=Remarks(quorum=1),
    )
