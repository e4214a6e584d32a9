"""The texts that a run writes while it trains, all from the same prompt and seed: what it has learnt, to read."""

from __future__ import annotations

from collections.abc import Iterator

from onecard.config.schema import RunConfig
from onecard.data.tokenizers import Tokenizer, new_text
from onecard.models.evaluation import TEXT_TOKENS
from onecard.train.model import GPT
from onecard.train.sample import generate


class ProgressText:
    """Draws the texts of a run. Making one fails where the tokenizer cannot read the prompt."""

    def __init__(self, config: RunConfig, tokenizer: Tokenizer) -> None:
        self.prompt = config.sample_prompt
        self._tokenizer = tokenizer
        self._prompt_tokens = tokenizer.encode(self.prompt) or new_text(tokenizer, config.vocab_size)

    def tokens(self, model: GPT) -> Iterator[int]:
        """The next tokens one by one, as `onecard sample` draws them; no random number of the run is used."""
        return generate(model, self._prompt_tokens, max_new_tokens=TEXT_TOKENS, vocab_size=self._tokenizer.vocab_size)

    def text(self, tokens: list[int]) -> str:
        written = b"".join(map(self._tokenizer.token_bytes, tokens))
        return self.prompt + written.decode("utf-8", errors="replace")
