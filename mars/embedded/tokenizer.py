"""The toy models' tokenizer: one piece a word of the world, bytes for everything else."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mars.embedded.vocabulary import WORDS

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
ROLES = ("user", "assistant", "system")
CONTEXT = 256
BYTE_SCORE, WORD_SCORE = -20.0, -1.0

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] | trim + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] | trim + '<|im_end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
)


def _as_bytes(text: str) -> str:
    """Text in the byte-level alphabet."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(piece for piece, _ in byte_level.pre_tokenize_str(text))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with its chat template; `decode(encode(s)) == s` for any text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*ROLES, *WORDS]
    pieces = [(byte, BYTE_SCORE) for byte in alphabet]
    pieces += [(_as_bytes(word), WORD_SCORE) for word in words]
    core = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in (PAD, START, END)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
