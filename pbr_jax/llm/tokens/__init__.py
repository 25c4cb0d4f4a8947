"""Between texts and token ids: tokenizer, chat template, control tokens, stop tokens."""
