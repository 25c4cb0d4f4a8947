"""LaMP's own pipeline: BM25, documents in the prompt, and a generator tuned on such prompts.

In-prompt augmentation (IPA): Salemi et al., "LaMP: When Large Language Models Meet Personalization", ACL
2024, https://arxiv.org/abs/2304.11406. All weights of the generator are tuned on every training question,
with the documents that this pipeline retrieves. Learning rate, decay, schedule, epochs, batch, beams and
lengths are those of the released code. Its generator is FLAN-T5-base: set `--llm.model` to its folder. The
embedded model can be tuned too, but slowly on a CPU. The code chooses the step on the split that it reports;
here held-out training users choose it.

pbr-jax run lamp_ipa --benchmark.name lamp_7 --benchmark.root FOLDER --llm.model FOLDER --out DIR
"""

from pbr_jax.config import Config, Optimizer, Prompt, Training, TunedGenerator
from pbr_jax.methods import generate, retrieve


def get_config() -> Config:
    optimizer = Optimizer(name="adamw", learning_rate=5e-5, weight_decay=1e-4, schedule="linear", warmup=0.05)
    return Config(
        system="lamp_ipa",
        collaboration="signals",
        retrieve=retrieve.BM25Lamp(k=4),
        prompt=Prompt(max_tokens=256),
        generate=generate.Ipa(max_new_tokens=128, num_beams=4),
        generator=TunedGenerator(
            method="full",
            documents=("pipeline",),
            k=4,
            limit=None,
            training=Training(epochs=10, batch_size=16, optimizer=optimizer),
        ),
    )
