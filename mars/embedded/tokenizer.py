"""The toy models' tokenizer: one piece a word of the world, bytes for everything else."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mars.embedded.vocabulary import WORDS

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
ROLES = ("user", "assistant", "system")
CONTEXT = 256

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] | trim + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] | trim + '<|im_end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with its chat template; `decode(encode(s)) == s` for any text.

    Words are added tokens of a byte-level BPE without merges. Their ids stand in its vocabulary
    too, so that transformers, which makes every Qwen2 tokenizer anew from its vocabulary and
    added tokens, arrives at the same ids (after NFC, which it applies first).
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words, specials = [*ROLES, *WORDS], [PAD, START, END]
    vocabulary = {piece: i for i, piece in enumerate([*alphabet, *words, *specials])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
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
